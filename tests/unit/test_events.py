"""The event log and those who follow it: ids, the ring, filters, pings, gaps, slow readers."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.chronicle.events import KINDS, Event, EventLog, Wanted
from control.chronicle.subscribers import (
    AT_ONCE,
    PING_S,
    ROUND_S,
    SLOW_S,
    Subscribers,
    Subscription,
    TooMany,
)
from control.core.change import DRAINING, ENDED, GRANTED, MOVED, Change
from control.core.lease import Lease
from control.core.verdict import Verdict, Witness


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Follower:
    """Subscribers on a clock of the test, one tick a call."""

    def __init__(self, size: int = 10, **options: Any) -> None:
        self.clock = Clock()
        self.log = EventLog(self.clock, lambda: 2_000_000.0, size)
        self.all = Subscribers(self.log, self.clock, lambda _: None, **options)

    def happen(self, count: int = 1, kind: str = "node", pool: str | None = None) -> None:
        for n in range(count):
            self.log.extend([Event(kind, self.clock.now, pool, {"n": self.log.newest + n})])

    def round(self, seconds: float = ROUND_S) -> None:
        self.clock.now += seconds
        self.all.tick()


def told(chunk: bytes) -> list[tuple[int, str, dict[str, Any]]]:
    """Events of a chunk: id, kind, data."""
    found = []
    for frame in chunk.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in frame.split("\n") if ": " in line)
        if "data" in fields:
            found.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def ids(chunk: bytes) -> list[int]:
    return [number for number, _, _ in told(chunk)]


def opened(subscription: Subscription) -> bytes:
    return next(subscription)


def test_an_event_has_an_id_a_kind_and_one_line_of_data_with_the_time() -> None:
    log = EventLog(lambda: 7.0, lambda: 1_700_000_000.0)
    log.extend([Event("alarm", 6.5, "p", {"pool": "p", "detail": "two\nlines"})])
    text = log.text(log.began, log.newest, Wanted())
    assert text == (
        b"id: 1700000000000001\nevent: alarm\n"
        b'data: {"at":1699999999.5,"pool":"p","detail":"two\\nlines"}\n\n'
    )


def test_a_leases_life_is_told_as_it_was_at_the_time() -> None:
    log = EventLog(lambda: 20.0, lambda: 120.0)
    lease = Lease("a", 1, "p", "gpu-0", "t", "QA", 7, "n/1/2", granted_at=10.0)
    verdict, witness = Verdict.CLIENT_ABORT, Witness.LUA
    lives = [
        Change(GRANTED, 10.0, lease, "p", "gpu-0", None, None),
        Change(MOVED, 11.0, lease, "p", "gpu-1", None, None),
        Change(DRAINING, 12.0, lease, "p", "gpu-1", verdict, witness),
        Change(ENDED, 12.5, lease, "p", "gpu-1", verdict, witness),
    ]
    log.extend(lives)
    where = {"id": "a", "pool": "p", "backend": "gpu-1"}
    assert [(kind, data) for _, kind, data in told(log.text(log.began, log.newest, Wanted()))] == [
        ("granted", {"at": 110, **where, "backend": "gpu-0", "scene": "QA", "tenant": "t",
                     "tokens": 7, "session": "n/1/2"}),
        ("moved", {"at": 111, **where}),
        ("draining", {"at": 112, **where, "verdict": "client_abort", "witness": "lua"}),
        ("ended", {"at": 112.5, **where, "verdict": "client_abort", "witness": "lua",
                   "age_s": 2.5, "tokens": 7}),
    ]  # fmt: skip


def test_a_later_log_goes_on_with_greater_ids() -> None:
    earlier = EventLog(lambda: 0.0, lambda: 1_000.0)
    earlier.extend([Event("node", 0.0, None, {})] * 50_000)
    assert EventLog(lambda: 0.0, lambda: 1_001.0).began > earlier.newest


HAPPENED = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from("ab")), max_size=9)


@settings(deadline=None)
@given(
    batches=st.lists(st.tuples(HAPPENED, st.booleans()), max_size=6),
    size=st.integers(1, 20),
    kinds=st.none() | st.frozensets(st.sampled_from(KINDS)),
    pool=st.none() | st.sampled_from("ab"),
    share=st.floats(0, 1),
)
def test_the_ring_keeps_the_newest_and_a_filter_leaves_the_others_their_ids(
    batches: list[tuple[list[tuple[str, str]], bool]],
    size: int,
    kinds: frozenset[str] | None,
    pool: str | None,
    share: float,
) -> None:
    log = EventLog(lambda: 0.0, lambda: 1.0, size)
    every: list[tuple[int, str, str]] = []

    def somewhere() -> int:
        return log.oldest - 1 + round(share * (log.newest + 1 - log.oldest))

    for batch, followed in batches:
        log.follow(followed)
        every += [(log.newest + n, kind, of) for n, (kind, of) in enumerate(batch, 1)]
        log.extend([Event(kind, 0.0, of, {}) for kind, of in batch])
        log.text(somewhere(), log.newest, Wanted())
        log.trim()
    kept = every[-size:]
    assert (log.newest, log.oldest) == (log.began + len(every), log.newest + 1 - len(kept))
    assert len(log._frames) <= size
    after = somewhere()
    assert ids(log.text(after, log.newest, Wanted(kinds, pool))) == [
        number
        for number, kind, of in kept
        if number > after and (kinds is None or kind in kinds) and (pool is None or of == pool)
    ]


def test_who_follows_is_told_of_what_comes_and_not_of_what_was() -> None:
    follower = Follower()
    follower.happen(3)
    stream = follower.all.subscribe(Wanted())
    assert opened(stream) == b"retry: 2000\nid: %d\n\n" % follower.log.newest
    follower.happen(2)
    follower.round()
    assert ids(next(stream)) == [follower.log.newest - 1, follower.log.newest]


def test_all_that_is_new_comes_in_one_chunk_a_round() -> None:
    follower = Follower(size=5_000)
    stream = follower.all.subscribe(Wanted())
    opened(stream)
    for _ in range(4):
        follower.happen(10)
        follower.round(ROUND_S / 4)
    assert len(ids(next(stream))) == 40
    follower.happen(AT_ONCE + 1)
    follower.round()
    assert [len(ids(next(stream))) for _ in range(2)] == [AT_ONCE, 1]


def test_those_who_ask_for_the_same_get_the_same_bytes_made_once() -> None:
    follower = Follower()
    streams = [follower.all.subscribe(Wanted()) for _ in range(3)]
    for stream in streams:
        opened(stream)
    follower.happen(4)
    follower.round()
    first, *others = [next(stream) for stream in streams]
    assert all(other is first for other in others)


def test_who_comes_back_goes_on_where_it_was() -> None:
    follower = Follower()
    follower.happen(6)
    follower.round()
    after = follower.log.newest - 4
    stream = follower.all.subscribe(Wanted(), after)
    opened(stream)
    assert ids(next(stream)) == [after + n for n in range(1, 5)]


def test_who_comes_back_too_late_is_told_how_much_is_lost() -> None:
    follower = Follower(size=10)
    follower.happen(25)
    follower.round()
    stream = follower.all.subscribe(Wanted(), follower.log.began + 5)
    oldest = follower.log.oldest
    assert told(opened(stream)) == [(oldest - 1, "gap", {"missed": 10, "oldest": oldest})]
    assert ids(next(stream)) == list(range(oldest, oldest + 10))


@pytest.mark.parametrize(
    "last_id", [lambda log: log.began - 1, lambda log: 5, lambda log: log.newest + 1]
)
def test_of_another_process_nobody_knows_what_is_lost(last_id: Callable[[EventLog], int]) -> None:
    follower = Follower()
    follower.happen(2)
    follower.round()
    stream = follower.all.subscribe(Wanted(), last_id(follower.log))
    [(_, kind, data)] = told(opened(stream))
    assert (kind, data) == ("gap", {"missed": None, "oldest": follower.log.oldest})
    assert len(ids(next(stream))) == 2


def test_a_ping_names_the_place_that_a_filter_has_passed_over() -> None:
    follower = Follower()
    stream = follower.all.subscribe(Wanted(frozenset({"alarm"})))
    opened(stream)
    follower.happen(3)
    follower.round()
    follower.clock.now += PING_S
    assert next(stream) == b": ping\nid: %d\n\n" % follower.log.newest


def test_a_reader_that_does_not_read_is_dropped_and_told_when_it_does() -> None:
    follower = Follower(size=1_000)
    slow, quick = (follower.all.subscribe(Wanted()) for _ in range(2))
    opened(slow), opened(quick)
    follower.happen(5)
    follower.round()
    next(slow)
    while len(follower.all) == 2:
        next(quick)
        follower.happen(2)
        follower.round(1.0)
        assert follower.clock.now < 1_000 + SLOW_S + 3
    follower.happen(3)
    follower.round()
    missed = follower.log.newest - (follower.log.began + 5)
    assert told(next(slow)) == [
        (follower.log.began + 5, "dropped", {"reason": "slow", "missed": missed})
    ]
    assert list(slow) == []
    assert len(ids(next(quick))) == 5


def test_a_reader_that_the_ring_overtakes_is_dropped() -> None:
    follower = Follower(size=10)
    stream = follower.all.subscribe(Wanted())
    opened(stream)
    follower.happen(11)
    follower.round()
    assert len(follower.all) == 0
    assert told(next(stream))[0][1:] == ("dropped", {"reason": "slow", "missed": 11})


def test_a_reader_that_has_all_may_take_its_time() -> None:
    follower = Follower()
    stream = follower.all.subscribe(Wanted())
    opened(stream)
    for _ in range(5):
        follower.round(10 * SLOW_S)
    assert len(follower.all) == 1


def test_places_are_bounded_and_come_back_also_from_streams_that_never_began() -> None:
    follower = Follower(limit=2)
    first, second = (follower.all.subscribe(Wanted()) for _ in range(2))
    with pytest.raises(TooMany):
        follower.all.subscribe(Wanted())
    first.close()
    first.close()
    opened(follower.all.subscribe(Wanted()))
    second.close()
    assert len(follower.all) == 1


def test_nothing_is_made_into_text_while_nobody_follows() -> None:
    follower = Follower()
    data = {"unreadable": object()}
    follower.log.extend([Event("node", 0.0, None, data)])
    follower.round()
    stream = follower.all.subscribe(Wanted())
    opened(stream)
    follower.happen()
    follower.round()
    assert len(ids(next(stream))) == 1


def test_what_is_kept_of_a_long_life_is_bounded() -> None:
    follower = Follower(size=10)
    stream = follower.all.subscribe(Wanted())
    opened(stream)
    for _ in range(50):
        follower.happen(3)
        follower.round()
        next(stream)
    assert len(follower.log._frames) <= 10 + 3
    assert len(follower.all._texts) <= 1


# -- thinned ---------------------------------------------------------------------------------------


def change(kind: str, grant: int) -> Change:
    lease = Lease(f"id-{grant}", grant, "p", "b", "", "QA", 10, "n/1/1", 1.0)
    return Change(kind, 2.0, lease, "p", "b", Verdict.COMPLETED, Witness.LUA)


def live(told_of: list[tuple[int, str, dict[str, Any]]]) -> set[str]:
    """Ids of the leases that are live after these events."""
    ids: set[str] = set()
    for _, kind, data in told_of:
        if kind == ENDED:
            ids.discard(data["id"])
        elif kind in (GRANTED, MOVED):
            ids.add(data["id"])
    return ids


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([GRANTED, MOVED, DRAINING, ENDED]), st.integers(0, 40)),
             min_size=51, max_size=200)
)  # fmt: skip
def test_who_reads_a_thinned_log_knows_the_same_leases(steps: list[tuple[str, int]]) -> None:
    began: set[int] = set()
    changes = []
    for kind, grant in steps:
        first = grant not in began
        began.add(grant)
        changes.append(change(GRANTED if first else MOVED if kind == GRANTED else kind, grant))
    log = EventLog(size=1_000)
    log.extend(changes)
    whole = told(log.text(log.began, log.newest, Wanted()))
    thin = told(log.text(log.began, log.newest, Wanted(thin=True)))
    assert live(thin) == live(whole)
    assert [event for event in whole if event in thin] == thin, "nothing else, in order"
    last = {each.lease.grant: each.kind for each in changes}
    assert len(thin) == sum(last[each.lease.grant] != ENDED for each in changes)


def test_few_events_are_not_thinned() -> None:
    log = EventLog()
    log.extend([change(kind, n) for n in range(25) for kind in (GRANTED, ENDED)])
    assert len(told(log.text(log.began, log.newest, Wanted(thin=True)))) == 50
    log.extend([change(GRANTED, 100)])
    assert [
        data["id"] for _, _, data in told(log.text(log.began, log.newest, Wanted(thin=True)))
    ] == [change(GRANTED, 100).lease.id]
