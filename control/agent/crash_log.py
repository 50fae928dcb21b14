"""Workers of which nginx's error log says that they crashed."""

import re
from typing import NamedTuple

from control.agent.follower import Follower

CRASH = re.compile(rb"\[alert\] .*worker process (\d{1,10}) exited on signal (\d{1,3})")
"""nginx's master, which always writes it: ``ngx_process_get_status``."""


class Crash(NamedTuple):
    """A worker that a signal ended."""

    pid: int
    signal: int


class CrashLog:
    """Reads on in the error log. What it finds is only a hint: who is dead, the processes say."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def tick(self, now: float) -> list[Crash]:
        """The crashes that were written since the last round."""
        matches = [CRASH.search(line) for line in self._follower.poll(now)]
        self._follower.commit()
        return [Crash(int(match[1]), int(match[2])) for match in matches if match]
