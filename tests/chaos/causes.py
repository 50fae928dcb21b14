"""Which injected fault explains what became of a client."""

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from tests.chaos.outcome import PLANNED, Kind, Outcome

CONTENDED = ("refused: streams_exhausted", "refused: tokens_exhausted")
"""Demand is above the limits: no fault is needed for them."""
UNANSWERED = frozenset([""])
"""As ids: those that have no answer yet."""


@dataclass(slots=True)
class Cause:
    """A fault's reach: which outcomes, between when and when (monotonic seconds; ``until`` is
    infinite while it lasts), and of whom: clients by port, requests by id; None is everybody.
    ``relayed``: only of whom another worker relays for, which is any on a route with heartbeats,
    and only where it ends while this lasts."""

    fault: str
    explains: frozenset[str]
    at: float
    until: float = math.inf
    ports: frozenset[int] | None = None
    ids: frozenset[str] | None = None
    relayed: bool = False

    def reaches(self, outcome: Outcome) -> bool:
        """Whether the outcome was under way while this lasted, and is of its kind."""
        return (
            outcome.what in self.explains
            and outcome.began <= self.until
            and outcome.ended >= self.at
            and (self.ports is None or outcome.port in self.ports)
            and (self.ids is None or outcome.request_id in self.ids)
            and (not self.relayed or (outcome.request.beats and outcome.ended <= self.until))
        )


class Causes:
    """All that was injected so far. For threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Cause] = []

    def add(self, fault: str, explains: Iterable[str], at: float, **reach: object) -> Cause:
        """A fault begins to have its effect."""
        cause = Cause(fault, frozenset(explains), at, **reach)  # type: ignore[arg-type]
        with self._lock:
            self._all.append(cause)
        return cause

    def of(self, outcome: Outcome) -> str | None:
        """What explains an outcome: the latest fault that can, or ``plan``; None where nothing
        does."""
        if outcome.kind in PLANNED or outcome.what in CONTENDED:
            return "plan"
        if outcome.kind is Kind.BROKEN:
            return None
        with self._lock:
            reaching = [cause for cause in self._all if cause.reaches(outcome)]
        return max(reaching, key=lambda cause: cause.at).fault if reaching else None

    def withdraw(self, fault: str, now: float) -> None:
        """The fault found nothing to hit: what lasts of it ends, but for what was asked of the
        admin plane by id, which may have been done."""
        with self._lock:
            for cause in self._all:
                if cause.fault == fault and cause.ids in (None, UNANSWERED):
                    cause.until = min(cause.until, now)

    def near(self, at: float, seconds: float = 3.0) -> list[str]:
        """The faults that lasted at a moment, or shortly before."""
        with self._lock:
            return [c.fault for c in self._all if c.at <= at and c.until >= at - seconds]
