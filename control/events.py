"""The event log: what happened lately, numbered, in a ring; made into text when it is read.

To tell of something costs the teller an appended tuple. Ids grow for ever, also over restarts: they
count from the microseconds since 1970 when the log began, and no log tells an event each of them.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec

from control.core.change import DRAINING, ENDED, GRANTED, LIFE, Change

REFUSED, LIMITS, NODE, ALARM = "refused", "limits", "node", "alarm"
KINDS = (*LIFE, REFUSED, LIMITS, NODE, ALARM)
RING = 10_000
"""Events that are kept for those who come back."""

_encode = msgspec.json.Encoder().encode


class Event(NamedTuple):
    """What happened beside the lives of leases. ``data`` is what is told of it, ``at`` in
    monotonic seconds; ``pool`` where it concerns one."""

    kind: str
    at: float
    pool: str | None
    data: Mapping[str, Any]


class Wanted(NamedTuple):
    """Which events a reader asks for; None: of every kind, of every pool and of none."""

    kinds: frozenset[str] | None = None
    pool: str | None = None

    @property
    def is_everything(self) -> bool:
        return self.kinds is None and self.pool is None

    def takes(self, event: Change | Event) -> bool:
        return (self.kinds is None or event.kind in self.kinds) and (
            self.pool is None or event.pool == self.pool
        )


class EventLog:
    """The last ``size`` events. ``clock`` is that of the events' ``at``, ``wall`` says the time."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        size: int = RING,
    ) -> None:
        self._clock, self._wall = clock, wall
        self._ring: deque[Change | Event] = deque(maxlen=size)
        self.began = int(wall() * 1_000_000)
        """Less than the id of any event here, and more than any of an earlier log."""
        self.newest = self.began
        """The last event's id."""
        self._frames: dict[int, bytes] = {}

    @property
    def oldest(self) -> int:
        """The id of the oldest event that is kept; of the next one where there is none."""
        return self.newest - len(self._ring) + 1

    def extend(self, events: Collection[Change | Event]) -> None:
        """Number what happened, and keep it."""
        self._ring.extend(events)
        self.newest += len(events)

    def encode(self, after: int, until: int) -> None:
        """Make text of the events from ``after`` (itself not) to ``until``. Each is made once."""
        frames = self._frames
        missing = [n for n in range(max(after + 1, self.oldest), until + 1) if n not in frames]
        if not missing:
            return
        offset = self._wall() - self._clock()
        first = missing[0]
        events = islice(self._ring, first - self.oldest, until + 1 - self.oldest)
        for number, event in enumerate(events, first):
            if number not in frames:
                frames[number] = frame(number, event.kind, _data(event, offset))

    def text(self, after: int, until: int, wanted: Wanted) -> bytes:
        """The frames of the wanted events from ``after`` (itself not) to ``until``; all of them
        must still be kept."""
        self.encode(after, until)
        frames = self._frames
        numbers = range(after + 1, until + 1)
        if wanted.is_everything:
            return b"".join([frames[number] for number in numbers])
        events = islice(self._ring, after + 1 - self.oldest, until + 1 - self.oldest)
        takes = wanted.takes
        return b"".join(
            [frames[number] for number, event in zip(numbers, events, strict=True) if takes(event)]
        )

    def trim(self) -> None:
        """Forget the text of events that are no longer kept."""
        oldest = self.oldest
        for number in [number for number in self._frames if number < oldest]:
            del self._frames[number]


def frame(number: int, kind: str, data: object) -> bytes:
    """One event of an event stream."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, kind.encode(), _encode(data))


def _data(event: Change | Event, offset: float) -> dict[str, Any]:
    """What is told. ``offset``: from the events' clock to the seconds since 1970."""
    at = round(event.at + offset, 3)
    if isinstance(event, Event):
        return {"at": at, **event.data}
    lease = event.lease
    told: dict[str, Any] = {"at": at, "id": lease.id, "pool": event.pool, "backend": event.backend}
    if event.kind == GRANTED:
        told["scene"] = lease.scene
        told["tenant"] = lease.tenant
        told["tokens"] = lease.tokens
        told["session"] = lease.session
    elif event.kind in (DRAINING, ENDED):
        told["verdict"] = event.verdict
        told["witness"] = event.witness
        if event.kind == ENDED:
            told["age_s"] = round(event.at - lease.granted_at, 3)
            told["tokens"] = lease.tokens
    return told
