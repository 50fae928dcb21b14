"""Who follows the event log, and how far each has come.

No subscriber has a queue of its own: each has a place in the log, and the log's ring is the bound.
Delivery is in rounds: what is new since the last one is joined once for all who ask for the same,
and taken by each at its own pace. One that does not take is dropped.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from control.chronicle.events import EventLog, Wanted, frame

ROUND_S = 0.25
PING_S = 10.0
SLOW_S = 5.0
"""A subscriber that has not taken what it was given for so long is dropped."""
MAX_SUBSCRIBERS = 100
AT_ONCE = 1_000
"""Events in one write, about 250 kB: what a subscriber that does not read holds on to."""
RETRY_MS = 2_000
BREATH_S = 0.001
"""Between two writes of one that catches up: others get their turn."""


class TooMany(Exception):
    """There are as many subscribers as there may be."""


class Missed(NamedTuple):
    """What lies between where a subscriber wants to go on and where it can: so many ``events``,
    or None where nobody knows."""

    events: int | None
    oldest: int


class Subscribers:
    """All of one log. :meth:`tick` is to be called some times a second."""

    def __init__(
        self,
        log: EventLog,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        limit: int = MAX_SUBSCRIBERS,
    ) -> None:
        self.log, self.clock, self.sleep = log, clock, sleep
        self.mark = log.newest
        """Events up to here may be taken."""
        self.news = threading.Condition()
        self.dropped = 0
        """Those that were too slow."""
        self._limit = limit
        self._all: set[Subscription] = set()
        self._round_at = clock()
        self._texts: dict[tuple[int, int, Wanted], bytes] = {}

    def __len__(self) -> int:
        return len(self._all)

    def subscribe(self, wanted: Wanted, after: int | None = None) -> "Subscription":
        """Follow the log from now on, or from ``after`` an event that was read before.
        :class:`TooMany` where there is no place."""
        if len(self._all) >= self._limit:
            raise TooMany
        subscription = Subscription(self, wanted, after)
        self._all.add(subscription)
        self._follow()
        return subscription

    def leave(self, subscription: "Subscription") -> None:
        """It takes no more."""
        self._all.discard(subscription)
        self._follow()

    def _follow(self) -> None:
        # What a thin follower is told of is made into text when it is known.
        self.log.follow(any(not subscription.wanted.thin for subscription in self._all))

    def tick(self) -> None:
        """In each round: let what is new be taken, and drop who does not take."""
        now = self.clock()
        if now - self._round_at < ROUND_S:
            return
        self._round_at = now
        self.log.trim()
        self._texts.clear()
        for subscription in list(self._all):
            if subscription.is_slow(now):
                self.dropped += 1
                subscription.drop()
        if self.mark != self.log.newest:
            self.mark = self.log.newest
            with self.news:
                self.news.notify_all()

    def text(self, after: int, until: int, wanted: Wanted) -> bytes:
        """What one of them is to be sent; joined once for all that stand at the same place."""
        key = (after, until, wanted)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self.log.text(after, until, wanted)
        return text


class Subscription:
    """The chunks of one event stream; iterating waits for the next one.

    Closing it, or coming to its end, gives its place back; so does being dropped, although what it
    was given last is still under way.
    """

    def __init__(self, all_: Subscribers, wanted: Wanted, after: int | None) -> None:
        self._all = all_
        self.wanted = wanted
        log = all_.log
        self._missed = None if after is None else _missed(log, after)
        if after is None or self._missed:
            self._at = log.newest if after is None else log.oldest - 1
        else:
            self._at = after
        self._opened = False
        self._dropped = self._ended = False
        self._given_at: float | None = None

    def __iter__(self) -> "Subscription":
        return self

    def __next__(self) -> bytes:
        if self._ended:
            raise StopIteration
        was_given_at, self._given_at = self._given_at, None
        chunk = self._await(was_given_at) if self._opened else self._opening()
        self._given_at = self._all.clock()
        return chunk

    def close(self) -> None:
        """Take no more."""
        self._ended = True
        self._all.leave(self)

    def is_slow(self, now: float) -> bool:
        """Whether what comes next is lost to it already, or it has not taken what it was given."""
        log = self._all.log
        stuck = self._given_at is not None and now - self._given_at > SLOW_S
        return self._at + 1 < log.oldest or (stuck and self._at < log.newest)

    def drop(self) -> None:
        """It is told so if it ever comes back for more."""
        self._dropped = True
        self._all.leave(self)

    def _opening(self) -> bytes:
        self._opened = True
        first = b"retry: %d\nid: %d\n\n" % (RETRY_MS, self._at)
        if self._missed is None:
            return first
        count, oldest = self._missed
        return first + frame(self._at, "gap", {"missed": count, "oldest": oldest})

    def _await(self, since: float | None) -> bytes:
        """What comes next; a ping where nothing has come since ``since`` in its time."""
        all_ = self._all
        ping_at = (all_.clock() if since is None else since) + PING_S
        while True:
            if self._dropped or self._at + 1 < all_.log.oldest:
                self._ended = True
                return self._farewell()
            if self._at < all_.mark:
                if text := self._take():
                    return text
                continue
            left = ping_at - all_.clock()
            if left <= 0:
                # With the place it has come to: what it does not want is not missed later.
                return b": ping\nid: %d\n\n" % self._at
            with all_.news:
                all_.news.wait_for(self._has_news, left)

    def _has_news(self) -> bool:
        return self._at < self._all.mark or self._dropped

    def _take(self) -> bytes:
        until = min(self._all.mark, self._at + AT_ONCE)
        text = self._all.text(self._at, until, self.wanted)
        self._at = until
        if until < self._all.mark:
            self._all.sleep(BREATH_S)
        return text

    def _farewell(self) -> bytes:
        self._all.leave(self)
        missed = self._all.log.newest - self._at
        return frame(self._at, "dropped", {"reason": "slow", "missed": missed})


def _missed(log: EventLog, after: int) -> Missed | None:
    if after < log.began or after > log.newest:
        return Missed(None, log.oldest)  # an earlier process's, or nobody's
    if after + 1 < log.oldest:
        return Missed(log.oldest - 1 - after, log.oldest)
    return None
