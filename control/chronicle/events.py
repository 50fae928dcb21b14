"""The event log: what happened lately, numbered, in a ring; made into text when it is read.

To tell of something costs the teller an appended tuple. Ids grow for ever, also over restarts: they
count from the microseconds since 1970 when the log began, and no log tells an event each of them.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from control.core.change import DRAINING, ENDED, GRANTED, LIFE, Change
from control.core.verdict import Verdict, Witness

REFUSED, LIMITS, NODE, ALARM = "refused", "limits", "node", "alarm"
KINDS = (*LIFE, REFUSED, LIMITS, NODE, ALARM)
FEW = 50
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
    """Which events a reader asks for; None: of every kind, of every pool and of none.

    ``thin``: where more than :data:`FEW` come at once, without leases that have begun and ended
    among them. Who shows what is live now misses nothing by it, and is spared most of it.
    """

    kinds: frozenset[str] | None = None
    pool: str | None = None
    thin: bool = False

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
        self._followed = False
        self._made_after = self.began
        """All later events are text already, while somebody follows."""
        self._frames: dict[int, bytes] = {}
        self._trimmed = self.began

    @property
    def oldest(self) -> int:
        """The id of the oldest event that is kept; of the next one where there is none."""
        return self.newest - len(self._ring) + 1

    def extend(self, events: Collection[Change | Event]) -> None:
        """Number what happened, and keep it."""
        before = self.newest
        self._ring.extend(events)
        self.newest += len(events)
        if self._followed:
            # At once: what has just been used is read three times as fast as a moment later.
            self._make(events, before + 1)

    def follow(self, followed: bool) -> None:
        """Whether anybody reads what comes, so that it is made into text."""
        if followed and not self._followed:
            self._made_after = self.newest
        self._followed = followed

    def text(self, after: int, until: int, wanted: Wanted) -> bytes:
        """The frames of the wanted events from ``after`` (itself not) to ``until``; all of them
        must still be kept. What was made once is not made again."""
        if wanted.thin:
            return self._thin_text(after + 1, until, wanted)
        first, last = after + 1, until if not self._followed else min(until, self._made_after)
        if first <= last:
            self._make(self._between(first, last), first)
        frames = self._frames
        numbers = range(first, until + 1)
        if wanted.is_everything:
            return b"".join([frames[number] for number in numbers])
        pairs = zip(numbers, self._between(first, until), strict=True)
        takes = wanted.takes
        return b"".join([frames[number] for number, event in pairs if takes(event)])

    def _thin_text(self, first: int, until: int, wanted: Wanted) -> bytes:
        events = list(self._between(first, until))
        brief = _brief(events) if len(events) > FEW else frozenset()
        frames, takes = self._frames, wanted.takes
        offset = self._wall() - self._clock()
        texts = []
        for number, event in enumerate(events, first):
            if (isinstance(event, Change) and event.lease.grant in brief) or not takes(event):
                continue
            text = frames.get(number)
            if text is None:
                text = frames[number] = frame(number, event.kind, _data(event, offset))
            texts.append(text)
        return b"".join(texts)

    def trim(self) -> None:
        """Forget the text of events that are no longer kept; to be called some times a second."""
        oldest = self.oldest
        if self._frames:
            for number in range(self._trimmed, oldest):
                self._frames.pop(number, None)
        self._trimmed = oldest

    def _between(self, first: int, last: int) -> Iterator[Change | Event]:
        oldest = self.oldest
        return islice(self._ring, first - oldest, last + 1 - oldest)

    def _make(self, events: Iterable[Change | Event], first: int) -> None:
        frames = self._frames
        offset = self._wall() - self._clock()
        for number, event in enumerate(events, first):
            if number not in frames:
                frames[number] = frame(number, event.kind, _data(event, offset))


def _brief(events: Iterable[Change | Event]) -> Collection[int]:
    """Grants that are among the events, and over after the last of them."""
    granted: set[int] = set()
    lately: dict[int, str] = {}
    for event in events:
        if isinstance(event, Change):
            grant = event.lease.grant
            lately[grant] = event.kind
            if event.kind == GRANTED:
                granted.add(grant)
    return {grant for grant in granted if lately[grant] == ENDED}


def frame(number: int, kind: str, data: object) -> bytes:
    """One event of an event stream."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (number, kind.encode(), _encode(data))


class Granted(Struct):
    """A lease's beginning."""

    at: float
    id: str
    pool: str
    backend: str
    scene: str
    tenant: str
    tokens: int
    session: str


class Moved(Struct):
    """A lease, and where it is from now on."""

    at: float
    id: str
    pool: str
    backend: str


class Draining(Struct):
    """A lease whose stream is over, and whose room is still counted."""

    at: float
    id: str
    pool: str
    backend: str
    verdict: Verdict | None
    witness: Witness | None


class Ended(Struct):
    """A lease's end."""

    at: float
    id: str
    pool: str
    backend: str
    verdict: Verdict | None
    witness: Witness | None
    age_s: float
    tokens: int


def _data(event: Change | Event, offset: float) -> object:
    """What is told. ``offset``: from the events' clock to the seconds since 1970."""
    at = _milliseconds(event.at + offset)
    if isinstance(event, Event):
        return {"at": at, **event.data}
    kind, then, lease, pool, backend, verdict, witness = event
    if kind == GRANTED:
        scene, tenant, session = lease.scene, lease.tenant, lease.session
        return Granted(at, lease.id, pool, backend, scene, tenant, lease.tokens, session)
    if kind == ENDED:
        age_s = _milliseconds(then - lease.granted_at)
        return Ended(at, lease.id, pool, backend, verdict, witness, age_s, lease.tokens)
    if kind == DRAINING:
        return Draining(at, lease.id, pool, backend, verdict, witness)
    return Moved(at, lease.id, pool, backend)


def _milliseconds(seconds: float) -> float:
    # A third of what round() costs.
    return int(seconds * 1_000 + 0.5) / 1_000
