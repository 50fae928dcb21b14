"""One process decides at a time: a lock in the state directory, handed from one to the next.

The kernel lets go of it however its holder ends. A successor that is ready to decide announces
itself; the holder serves until then, so that a reload leaves a gap of milliseconds and not of a
start.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.01
SAY_EVERY_S = 10.0

log = logging.getLogger("weir.succession")


class DecisionLock:
    """The right to decide, held by one process. ``sleep`` is the caller's, gevent's or not."""

    def __init__(self, path: Path, sleep: Callable[[float], object] = time.sleep) -> None:
        self._path = path
        self._announcement = path.with_suffix(".successor")
        self._sleep = sleep
        self._file = path.open("a+")
        self.was_held = path.stat().st_size > 0
        """Whether somebody decided here before."""

    def take(self) -> None:
        """Announce this process, and wait until the holder has gone."""
        waited = 0.0
        while not self._try():
            if waited == 0.0 or waited >= SAY_EVERY_S:
                self._announcement.touch()
                holder = self._path.read_text() or "?"
                log.warning("waiting_for_predecessor pid=%s lock=%s", holder, self._path)
                waited = 0.0
            self._sleep(POLL_S)
            waited += POLL_S
        self._announcement.unlink(missing_ok=True)
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    @property
    def has_successor(self) -> bool:
        """Whether somebody is ready to decide, and waits."""
        return self._announcement.exists()

    def leave(self) -> None:
        """Let the next one in."""
        self._file.close()

    def _try(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True
