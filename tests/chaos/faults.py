"""What all faults need: a victim, a way to hold it, and to know when it is back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import psutil
import requests

from tests.chaos.bed import SESSION_TTL_S, Bed
from tests.chaos.causes import Cause, Causes
from tests.chaos.limits import LimitsInForce
from tests.chaos.logs import AccessLog
from tests.chaos.outcome import Kind
from tests.chaos.plan import HOLDS_S, Event

CUT = str(Kind.CUT)
SENT_AWAY = str(Kind.SENT_AWAY)
RELAY_AWAY = ("refused: no_backend",)
RELAY_LOST = (CUT, *RELAY_AWAY)
SERVICE_AWAY = ("refused: admission_down",)
RECOVERS_S = 30.0
"""nginx and the service are back within it: weir up waits up to 5 s between two starts."""
LINGERS_S = 1.0
"""nginx closes a connection so long after it has given its answer up (`lingering_timeout`)."""
AFTERMATH_S = 1.0
"""How long after its end a fault may still be seen."""
RELAY_MISSED_S = AFTERMATH_S + HOLDS_S["worker-stop"][1] + LINGERS_S
"""The same, by a worker for which another one relays: it may stand still itself."""

Fault = Callable[[Event], str]
"""Does an event; returns when it is undone, and says in words what was done."""


class Missed(Exception):
    """There was nothing to do it to."""


@dataclass(frozen=True)
class Scene:
    """Where faults happen, and what is noted of them. ``over``: what lasts is to end now."""

    bed: Bed
    causes: Causes
    limits: LimitsInForce
    log: AccessLog
    over: threading.Event = field(default_factory=threading.Event)
    problems: list[str] = field(default_factory=list)


class Faults:
    """Some of the faults, by their name in the plan."""

    by_name: dict[str, Fault]

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._node = scene.bed.node
        self._causes = scene.causes

    def _hold(self, event: Event, pid: int, cause: Cause | None) -> None:
        """Stop a process, and let it go on after the event's time."""
        os.kill(pid, signal.SIGSTOP)
        try:
            self._scene.over.wait(event.hold_s)
        finally:
            if cause:
                cause.until = time.monotonic() + AFTERMATH_S
            send(pid, signal.SIGCONT)

    def _recovered(self, event: Event, cause: Cause, url: str, replaced: tuple[str, int]) -> str:
        """Wait until another answers in the place of one of a service's processes, and let the
        cause end then; how long that took, in words."""
        began = time.monotonic()
        while time.monotonic() < began + RECOVERS_S:
            if not self._is_there(*replaced) and _answers(url):
                now = time.monotonic()
                cause.until = now + AFTERMATH_S + (SESSION_TTL_S if self._settles(now) else 0)
                return f"back after {now - began:.1f} s"
            time.sleep(0.05)
        self._scene.problems.append(f"{event}: {url} gave no answer for {RECOVERS_S:g} s")
        return "not back"

    def _settles(self, now: float) -> bool:
        """Whether a service that begins may have to hear first what runs."""
        lately = self._causes.near(now, RECOVERS_S)
        return self._scene.bed.local or any("journal" in fault for fault in lately)

    def _is_there(self, service: str, pid: int) -> bool:
        """Whether a process is still one of a service's, or none is yet."""
        try:
            master = self._node.pid(service)
            workers = self._node.workers(service)
        except (FileNotFoundError, ValueError, psutil.NoSuchProcess):
            return True
        return pid == master or pid in workers or not workers


def one_of(event: Event, among: Collection[Any]) -> Any:
    """The event's victim."""
    if not among:
        raise Missed("there was none")
    ordered = sorted(among)
    return ordered[int(event.pick * len(ordered))]


def send(pid: int, number: signal.Signals) -> bool:
    """Signal a process; whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=2).ok
    except requests.RequestException:
        return False
