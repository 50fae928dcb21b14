"""Has the service's worker replaced when it holds more memory than it should."""

import logging
import math
import os
import signal
from collections.abc import Callable, Iterable

import psutil

from control.agent.processes import ADMISSION, Footprint

NOT_SOONER_S = 60.0
"""A worker that has just begun is not measured by what the old one held."""
SERVICE = "control.service"
"""A word of the arbiter's command line: a pid file may be old, its pid somebody else's."""

log = logging.getLogger("weir.agent")


class Recycler:
    """Asks gunicorn's arbiter to replace its worker gracefully (SIGHUP): the new one takes over
    before the old one ends."""

    def __init__(
        self, limit_bytes: int, kill: Callable[[int, signal.Signals], None] = os.kill
    ) -> None:
        self._limit_bytes = limit_bytes
        self._kill = kill
        self._last = -math.inf

    def look(self, footprints: Iterable[Footprint], arbiter: int | None, now: float) -> None:
        """Act where a worker is above the limit, at most once a minute."""
        largest = max((f.uss_bytes for f in footprints if f.role == ADMISSION), default=0)
        if largest <= self._limit_bytes or now - self._last < NOT_SOONER_S:
            return
        if arbiter is None or not is_service(arbiter):
            return
        self._last = now
        log.warning(
            "service_recycled arbiter=%d uss_bytes=%d limit_bytes=%d",
            arbiter, largest, self._limit_bytes,
        )  # fmt: skip
        try:
            self._kill(arbiter, signal.SIGHUP)
        except OSError as exc:
            log.warning("service_not_recycled arbiter=%d error=%s", arbiter, exc)


def is_service(pid: int) -> bool:
    """Whether a process is the admission service."""
    try:
        return SERVICE in psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
