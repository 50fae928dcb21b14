"""One node's agent: the log tailer, the worker watch and the memory monitor, round by round."""

import logging
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from control.agent.checkpoint import Checkpoint
from control.agent.crash_log import CrashLog
from control.agent.follower import Follower
from control.agent.memory_monitor import MemoryMonitor
from control.agent.outage import Outage
from control.agent.tailer import Tailer
from control.agent.worker_watch import WorkerWatch
from control.client import ServiceClient, ServiceError

WATCH_S = 0.25
REPORT_S = 1.0
MEMORY_S = 2.0

log = logging.getLogger("weir.agent")


class Agent:
    """All parts on one thread: nothing here waits but for the service, with a deadline.

    ``about`` is what the report says of the agent itself.
    """

    def __init__(
        self,
        *,
        node: str,
        client: ServiceClient,
        checkpoint: Checkpoint,
        logs: dict[str, Follower],
        tailer: Tailer,
        crash_log: CrashLog,
        watch: WorkerWatch,
        memory: MemoryMonitor,
        about: dict[str, Any],
    ) -> None:
        self._node = node
        self._client = client
        self._checkpoint = checkpoint
        self._logs = logs
        self._tailer = tailer
        self._crash_log = crash_log
        self._watch = watch
        self._memory = memory
        self._about = about
        self._outage = Outage()
        self._watch_due = Every(WATCH_S)
        self._report_due = Every(REPORT_S)
        self._memory_due = Every(MEMORY_S)
        self._streams = 0
        self._defects: Counter[str] = Counter()

    def tick(self, now: float, wall: float) -> bool:
        """One round: ``now`` from a clock that no one sets, ``wall`` since the epoch. True
        where there is more to do at once."""
        self._apart(self._look_at_memory, now, wall)
        self._apart(self._look_for_crashes, now)
        if not self._outage.is_over(now):
            return False
        try:
            more = bool(self._apart(self._tail, now))
            self._apart(self._look_for_the_dead, now)
            self._apart(self._report, now, wall)
        except ServiceError as exc:
            self._outage.failed(exc, now)
            return False
        self._outage.ended(now)
        return more

    def finish(self, now: float) -> bool:
        """A last round: read and deliver what is left. True where there is more; a
        :class:`ServiceError` where it could not be delivered."""
        try:
            return self._tail(now)
        except ServiceError as exc:
            self._outage.failed(exc, now)
            raise

    def _apart(self, part: Callable[..., Any], *arguments: float) -> Any:
        """Run one part; a defect in it does not stop the others."""
        try:
            return part(*arguments)
        except ServiceError:
            raise
        except Exception:
            self._defects[part.__name__] += 1
            count = self._defects[part.__name__]
            if count & (count - 1) == 0:  # the 1st, 2nd, 4th, 8th ...: told, and not for ever
                log.exception("round_failed part=%s count=%d", part.__name__, count)
            return None

    def _look_at_memory(self, now: float, wall: float) -> None:
        if self._memory_due(now):
            self._memory.tick(now, wall, self._streams)

    def _look_for_crashes(self, now: float) -> None:
        for crash in self._crash_log.tick(now):
            log.warning("worker_crashed pid=%d signal=%d", crash.pid, crash.signal)
            self._watch_due.at_once()

    def _tail(self, now: float) -> bool:
        try:
            return self._tailer.tick(now)
        finally:
            positions = {name: each.positions() for name, each in self._logs.items()}
            self._checkpoint.save(positions)

    def _look_for_the_dead(self, now: float) -> None:
        if self._watch_due(now):
            self._watch.tick()

    def _report(self, now: float, wall: float) -> None:
        if self._report_due(now):
            report = {
                "agent": self._about,
                "tailer": self._tailer.report(wall),
                "memory": self._memory.report,
            }
            streams = self._client.report_node(self._node, report).get("streams")
            self._streams = streams if isinstance(streams, int) else 0


class Every:
    """Tells when a period has passed. A round that came late is not made up for."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._due = -math.inf

    def __call__(self, now: float) -> bool:
        if now < self._due:
            return False
        self._due = now + self._period_s
        return True

    def at_once(self) -> None:
        """It is due."""
        self._due = -math.inf
