"""What happens in an admission service: told as events, summed by the minute.

The use cases hand over what has happened once it is certain; nothing is decided by it.
"""

from collections.abc import Callable, Iterable, Sequence

from control.chronicle.alarms import Alarms, Sight
from control.chronicle.events import LIMITS, Event, EventLog
from control.chronicle.history import Counts, History
from control.chronicle.refusals import Refusals
from control.core.change import GRANTED, Change
from control.core.decision import Refused
from control.core.pool import Limits, Pool

LOOK_S = 0.25
"""How often alarms are looked for."""


class Chronicle:
    """``now`` is that of the log's clock, everywhere."""

    def __init__(self, events: EventLog, history: History, alarms: Alarms) -> None:
        self.events = events
        self.history = history
        self._alarms = alarms
        self._refusals = Refusals()
        self._looked_at = float("-inf")

    def changed(self, changes: Sequence[Change], pools: Iterable[Pool]) -> None:
        """Leases were granted, moved or ended, for good."""
        self.events.extend(changes)
        granted = {change.pool for change in changes if change.kind is GRANTED}
        if granted:
            for pool in pools:
                if pool.name in granted:
                    self.history.note_use(pool)

    def refused(self, scene: str, refused: Refused, now: float) -> None:
        """A request was refused."""
        self.events.extend(self._refusals.add(scene, refused, now))

    def adjusted(
        self,
        pool: str,
        backend: str,
        *,
        before: Limits,
        after: Limits,
        who: str,
        now: float,
    ) -> None:
        """An operator changed a backend's limits."""
        data = {
            "pool": pool,
            "backend": backend,
            "before": before._asdict(),
            "after": after._asdict(),
            "who": who,
        }
        self.events.extend([Event(LIMITS, now, pool, data)])

    def tick(self, now: float, sight: Sight, counts: Callable[[], Counts]) -> None:
        """Look at what is to be looked at by now; to be called some times a second."""
        if now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self.events.extend(self._refusals.tick(now))
            self.events.extend(self._alarms.look(now, sight))
        if self.history.is_due(now):
            self.history.turn(now, counts(), sight.pools)
