"""Does what the plan says, whatever kind of fault it is."""

import time
from collections.abc import Collection

import psutil
import requests

from tests.chaos.faults import Fault, Missed, Scene
from tests.chaos.nginx_faults import NginxFaults
from tests.chaos.operator_faults import OperatorFaults
from tests.chaos.plan import Event
from tests.chaos.service_faults import ServiceFaults


class Injector:
    """All faults of a scene. For threads: faults overlap."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._faults: dict[str, Fault] = {}
        for kind in (NginxFaults, ServiceFaults, OperatorFaults):
            self._faults |= kind(scene).by_name

    @property
    def faults(self) -> Collection[str]:
        """The names of those that can be done."""
        return self._faults.keys()

    def inject(self, event: Event) -> str:
        """Do one; what was done, in words. :class:`Missed` where it could not be."""
        try:
            return self._do(event)
        except Missed:
            self._scene.causes.withdraw(str(event), time.monotonic())
            raise

    def end(self) -> None:
        """Undo at once what still lasts."""
        self._scene.over.set()

    def _do(self, event: Event) -> str:
        try:
            return self._faults[event.fault](event)
        except (ProcessLookupError, FileNotFoundError, ValueError, psutil.NoSuchProcess) as exc:
            raise Missed(f"it was gone: {exc}") from exc
        except requests.RequestException as exc:
            raise Missed(f"the admin plane was away: {type(exc).__name__}") from exc
