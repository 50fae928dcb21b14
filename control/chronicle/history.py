"""The last hour by the minute: what was granted, refused and ended, and how full the pools were.

Counts are differences of what is counted anyway; only a pool's greatest use is noted as it comes.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from control.core.ledger import Totals
from control.core.pool import BackendState, Pool, in_use

STEP_S = 60
SLOTS = 60
GRANTED = "granted"


class Counts(NamedTuple):
    """What has happened since the service began."""

    granted: int
    refused: Counter[str]
    """By reason."""
    ended: Counter[str]
    """By verdict."""

    @classmethod
    def of(cls, totals: Totals, outcomes: Mapping[tuple[str, str, str], int]) -> "Counts":
        refused: Counter[str] = Counter()
        for (_, _, outcome), count in outcomes.items():
            refused[outcome] += count
        ended: Counter[str] = Counter()
        for (verdict, _), count in totals.ended.items():
            ended[verdict] += count
        for no_refusal in (GRANTED, "already_ended"):
            refused.pop(no_refusal, None)
        return cls(totals.granted, refused, ended)

    def since(self, earlier: "Counts") -> dict[str, Any]:
        """What was added, without what was not."""
        return {
            "granted": self.granted - earlier.granted,
            "refused": dict(self.refused - earlier.refused),
            "ended": dict(self.ended - earlier.ended),
        }


@dataclass(slots=True)
class _Use:
    """The greatest use of one pool, and its limits as they were last."""

    streams_max: int = 0
    tokens_max: int = 0
    streams_limit: int = 0
    tokens_limit: int = 0

    def note(self, pool: Pool) -> None:
        streams, tokens = in_use(pool.backends.values())
        self.streams_max = max(self.streams_max, streams)
        self.tokens_max = max(self.tokens_max, tokens)

    def shown(self) -> dict[str, int]:
        return {
            "streams_max": self.streams_max,
            "tokens_max": self.tokens_max,
            "streams_limit": self.streams_limit,
            "tokens_limit": self.tokens_limit,
        }


@dataclass(slots=True)
class _Slot:
    began: float
    base: Counts
    uses: dict[str, _Use] = field(default_factory=dict)

    def note(self, pool: Pool) -> None:
        use = self.uses.get(pool.name)
        if use is None:
            use = self.uses[pool.name] = _Use()
        use.note(pool)

    def look(self, pools: Iterable[Pool]) -> None:
        """Note every pool as it is, and the limits in force of its active backends."""
        for pool in pools:
            self.note(pool)
            active = [b for b in pool.backends.values() if b.state is BackendState.ACTIVE]
            use = self.uses[pool.name]
            use.streams_limit = sum(backend.max_streams for backend in active)
            use.tokens_limit = sum(backend.max_tokens for backend in active)

    def point(self, counts: Counts) -> dict[str, Any]:
        pools = {name: use.shown() for name, use in self.uses.items()}
        return {**counts.since(self.base), "pools": pools}


class History:
    """Minutes of the wall clock as it stood when the history began; ``now`` in monotonic seconds,
    ``wall`` in those since 1970."""

    def __init__(self, now: float, wall: float, counts: Counts, pools: Iterable[Pool]) -> None:
        self._began = now
        self._past: deque[tuple[float, dict[str, Any]]] = deque(maxlen=SLOTS)
        self._slot = _Slot(now, counts)
        self._slot.look(pools)
        self._ends_at = now + STEP_S - wall % STEP_S

    def note_use(self, pool: Pool) -> None:
        """Something was granted in the pool: it may never have been so full."""
        self._slot.note(pool)

    def is_due(self, now: float) -> bool:
        """Whether a minute is over, and :meth:`turn` is to be called."""
        return now >= self._ends_at

    def turn(self, now: float, counts: Counts, pools: Iterable[Pool]) -> None:
        """Close the minutes that are over."""
        pools = list(pools)
        late = max(0, int((now - self._ends_at) // STEP_S) - SLOTS)
        self._ends_at += late * STEP_S  # more were missed than are kept
        while now >= self._ends_at:
            self._slot.look(pools)
            self._past.append((self._slot.began, self._slot.point(counts)))
            self._slot = _Slot(self._ends_at, counts)
            self._slot.look(pools)
            self._ends_at += STEP_S

    def shown(
        self, now: float, wall: float, counts: Counts, pools: Iterable[Pool], minutes: int
    ) -> dict[str, Any]:
        """At most so many whole minutes, and the one that goes on; oldest first."""
        pools = list(pools)
        self.turn(now, counts, pools)
        self._slot.look(pools)
        offset = wall - now
        past = list(self._past)[-minutes:]
        slots = [*past, (self._slot.began, self._slot.point(counts))]
        return {
            "step_s": STEP_S,
            "since": round(self._began + offset, 3),
            "points": [{"at": round(began + offset), **point} for began, point in slots],
        }
