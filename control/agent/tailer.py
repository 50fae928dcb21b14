"""The second witness: tells the service of each request that the access log says is over."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from control.agent.access_log import BrokenLine, Ended, pieces, read_line
from control.agent.follower import Follower
from control.client import ServiceClient
from control.core.decision import ReleaseOutcome
from control.core.verdict import Verdict

MAX_BATCH = 500
"""Operations of one call."""

log = logging.getLogger("weir.agent")


@dataclass(slots=True)
class Counts:
    """What has come of the lines since the start. ``released``: this witness was the first."""

    lines: int = 0
    released: int = 0
    broken: int = 0


class Tailer:
    """Hands the follower's lines to the service, at least once each.

    What was read is held until the service has it, and nothing more is read meanwhile: the log
    itself is the buffer. Only then does the position move.
    """

    def __init__(self, follower: Follower, client: ServiceClient, session: str) -> None:
        self.counts = Counts()
        self._follower = follower
        self._client = client
        self._session = session
        self._held: list[Ended] = []
        self._last_ts = 0.0

    def tick(self, now: float) -> bool:
        """One round: read where nothing is held, deliver what is. True where there is more to
        do at once. A :class:`ServiceError` leaves the rest held for the next round."""
        if not self._held:
            self._held = self._read(now)
        while self._held:
            self._deliver(self._held[:MAX_BATCH])
            self._held = self._held[MAX_BATCH:]
        self._follower.commit()
        return self._follower.pending

    def report(self, wall: float) -> dict[str, Any]:
        """Where it is, for the service's page of nodes."""
        current = self._follower.current
        unread = self._follower.unread()
        return {
            "file": str(self._follower.path),
            "inode": current.inode if current else 0,
            "offset": current.offset if current else 0,
            "lag_bytes": unread,
            "lag_seconds": round(self._lag_seconds(unread, wall), 3),
            "lines": self.counts.lines,
            "released": self.counts.released,
            "broken": self.counts.broken,
            "oversized": self._follower.oversized,
            "gaps": self._follower.gaps,
        }

    def _read(self, now: float) -> list[Ended]:
        """The next ends; those of clients that left come first, for their room is the one that
        nobody else may have told of."""
        ends: list[Ended] = []
        for line in self._follower.poll(now):
            self.counts.lines += 1
            ends += self._ends(line)
        if ends:
            self._last_ts = ends[-1].ts
        return sorted(ends, key=lambda ended: ended.verdict is not Verdict.CLIENT_ABORT)

    def _ends(self, line: bytes) -> list[Ended]:
        try:
            ended = read_line(line)
            return [ended] if ended else []
        except BrokenLine as exc:
            apart = pieces(line)
            if len(apart) > 1:
                return [ended for piece in apart for ended in self._ends(piece)]
            self._count_broken(str(exc))
            return []

    def _deliver(self, ends: Sequence[Ended]) -> None:
        results = self._client.batch(self._session, [ended.release() for ended in ends])
        for result in results:
            if result.get("outcome") == ReleaseOutcome.RELEASED:
                self.counts.released += 1
            elif "outcome" not in result:
                self._count_broken(str(result.get("message", result)))

    def _lag_seconds(self, unread: int, wall: float) -> float:
        """The age of the oldest line that is not worked off. Where none is held, all that can
        be told is that it came after the last one that was."""
        if not unread:
            return 0.0
        oldest = min((ended.ts for ended in self._held), default=self._last_ts)
        return max(0.0, wall - oldest) if oldest else 0.0

    def _count_broken(self, why: str) -> None:
        self.counts.broken += 1
        if self.counts.broken == 1:
            log.warning("line_broken file=%s error=%s", self._follower.path, why)
