"""What the use cases tell of: refusals summed, alarms, limits, the last hour by the minute."""

from collections import Counter
from typing import Any

import pytest

from control.admission import Admission, Ask
from control.chronicle.alarms import Alarms, Sight
from control.chronicle.events import Event
from control.chronicle.history import Counts, History
from control.chronicle.refusals import EACH_UP_TO, Refusals
from control.core.decision import Reason, Refused
from control.core.estimate import Estimate
from control.core.ledger import Held
from control.core.node import MemoryState, Node
from control.core.operation import Release, Reroute, Sync
from control.core.pool import Backend, BackendState, Limits, Pool
from control.core.verdict import Verdict, Witness
from control.progress import Report
from control.stores import MemoryStore

ROUTE = "/r"


class Site:
    """The use cases over two backends, on a clock of the test."""

    def __init__(self, streams: int = 2) -> None:
        self.now = 1_000.0
        self.backends = {n: Backend(n, "http://e", streams, 80_000) for n in ("gpu-0", "gpu-1")}
        self.admission = Admission(
            MemoryStore([Pool("p", self.backends)]),
            {ROUTE: "p"},
            Estimate(0.6, {"QA": 1_000}, "QA"),
            clock=lambda: self.now,
            wall=lambda: self.now + 59_000,
        )
        self._seen = self.admission.events.newest

    def acquire(self, *ids: str) -> None:
        self.admission.batch("n/1/2", [Ask(i, ROUTE, "", 0) for i in ids])

    def release(self, *ids: str, verdict: Verdict = Verdict.COMPLETED) -> None:
        self.admission.batch("n/1/2", [Release(i, verdict, Witness.LUA) for i in ids])

    def told(self) -> list[Any]:
        """Events since this was last asked."""
        log = self.admission.events
        found = list(log._ring)[self._seen - log.newest or len(log._ring) :]
        self._seen = log.newest
        return found

    def lives(self) -> list[tuple[str, str, str]]:
        return [(e.kind, e.lease.id, e.backend) for e in self.told() if not isinstance(e, Event)]

    def others(self, kind: str) -> list[dict[str, Any]]:
        return [dict(e.data) for e in self.told() if isinstance(e, Event) and e.kind == kind]

    def pass_time(self, seconds: float, step: float = 0.05) -> None:
        for _ in range(round(seconds / step)):
            self.now += step
            self.admission.batch("n/1/2", [])
            self.admission.tick()


def test_a_life_is_told_in_order() -> None:
    site = Site()
    site.acquire("a")
    site.release("a")
    site.acquire("b")
    site.release("b", verdict=Verdict.CLIENT_ABORT)
    site.pass_time(0.2)
    assert site.lives() == [
        ("granted", "a", "gpu-0"), ("ended", "a", "gpu-0"),
        ("granted", "b", "gpu-0"), ("draining", "b", "gpu-0"), ("ended", "b", "gpu-0"),
    ]  # fmt: skip


def test_what_changes_nothing_is_not_told() -> None:
    site = Site()
    site.acquire("a", "a")
    site.release("a", "a", "never")
    site.acquire("a")
    assert site.lives() == [("granted", "a", "gpu-0"), ("ended", "a", "gpu-0")]


def test_a_reroute_and_a_lease_that_is_taken_up_again_have_moved() -> None:
    site = Site()
    site.acquire("a")
    site.admission.batch("n/1/2", [Reroute("a")])
    site.admission.batch("n/1/2", [Sync("n/1/2", [], [], None)])
    site.admission.batch("n/1/2", [Sync("n/1/2", [], [Held("a", "p", "gpu-1", "QA", 7)], None)])
    assert site.lives() == [
        ("granted", "a", "gpu-0"), ("moved", "a", "gpu-1"), ("draining", "a", "gpu-1"),
        ("moved", "a", "gpu-1"),
    ]  # fmt: skip


def test_changed_limits_are_told_with_who_changed_them() -> None:
    site = Site()
    backend = site.backends["gpu-0"]
    site.admission.adjust(backend, Limits(1, 9, BackendState.DRAINING), "ops")
    site.admission.adjust(backend, Limits(1, 9, BackendState.DRAINING), "ops")
    assert site.others("limits") == [
        {
            "pool": "p", "backend": "gpu-0", "who": "ops",
            "before": {"max_streams": 2, "max_tokens": 80_000, "state": "active"},
            "after": {"max_streams": 1, "max_tokens": 9, "state": "draining"},
        }
    ]  # fmt: skip


def test_how_far_a_stream_has_come_is_known_as_long_as_its_lease_lives() -> None:
    site = Site()
    site.acquire("a", "b")
    reports = [Report(i, 5, 1, 2.0) for i in ("a", "b", "never")]
    site.admission.batch("n/1/2", [], reports)
    site.release("a")
    assert [bool(site.admission.progress(i)) for i in ("a", "b", "never")] == [False, True, False]
    site.admission.batch("another/1/2", [], [Report("b", 0, 0, 0.0)])
    told = site.admission.progress("b")
    assert told and told.report.bytes == 5, "another's word counts for nothing"


# -- refusals ------------------------------------------------------------------------------------


def refused(reason: Reason = Reason.STREAMS_EXHAUSTED) -> Refused:
    return Refused(reason, "p", 2, 2, 1)


def test_few_refusals_are_told_each() -> None:
    site = Site(streams=1)
    site.acquire("a", "b", "c", "d")
    assert site.others("refused") == [
        {"pool": "p", "scene": "QA", "reason": "streams_exhausted", "requested": 1, "limit": 1,
         "in_use": 1}
    ] * 2  # fmt: skip


def test_of_an_overload_the_rest_of_each_second_is_one_event_and_none_is_lost() -> None:
    refusals = Refusals()
    events: list[Event] = []
    for n in range(12_000):  # 5,000 a second, and then nothing
        events += refusals.add("QA", refused(), n / 5_000)
        if n % 250 == 0:
            events += refusals.tick(n / 5_000)
    events += refusals.tick(4.0)
    assert sum(event.data.get("count", 1) for event in events) == 12_000
    assert len(events) == 3 * (EACH_UP_TO + 1)
    assert refusals.tick(5.0) == []


def test_reasons_are_summed_apart_and_scenes_that_differ_are_none() -> None:
    refusals = Refusals()
    for n in range(30):
        refusals.add("QA", refused(), 0.0)
        refusals.add("QA" if n % 2 else "Record_Gen", refused(Reason.TOKENS_EXHAUSTED), 0.0)
    sums = {event.data["reason"]: dict(event.data) for event in refusals.tick(1.0)}
    assert sums["streams_exhausted"]["count"] == sums["tokens_exhausted"]["count"] == 10
    assert sums["streams_exhausted"]["scene"] == "QA"
    assert sums["tokens_exhausted"]["scene"] is None


def test_an_overload_leaves_the_lives_of_leases_in_the_ring() -> None:
    site = Site(streams=1)
    site.acquire("a", "b")
    for n in range(300):
        site.acquire(*(f"{n}.{m}" for m in range(50)))
        site.pass_time(0.01, step=0.01)
    assert ("granted", "a", "gpu-0") in site.lives()


# -- alarms --------------------------------------------------------------------------------------


def look(alarms: Alarms, now: float, **seen: Any) -> list[tuple[str, str, str]]:
    sight = Sight(**{"pools": [], "nodes": [], "fault": None, "drift": 0, **seen})
    return [
        (event.kind, event.data.get("alarm", event.data.get("node")), event.data["state"])
        for event in alarms.look(now, sight)
    ]


def node(memory: MemoryState = MemoryState.OK, last_seen: float = 0.0, **report: Any) -> Node:
    told = {"used_bytes": 9 << 20, "limit_bytes": 10 << 20, "leak_suspected": False, **report}
    return Node("n", last_seen, memory, {"memory": told})


def test_nodes_come_and_fall_silent() -> None:
    alarms = Alarms(1_000)
    assert look(alarms, 0.0, nodes=[node()]) == [("node", "n", "up")]
    assert look(alarms, 5.0, nodes=[node()]) == []
    assert look(alarms, 5.1, nodes=[node()]) == [("node", "n", "silent")]
    assert look(alarms, 9.0, nodes=[node(last_seen=9.0)]) == [("node", "n", "up")]


def test_memory_and_leaks_are_raised_and_cleared_once() -> None:
    alarms = Alarms(1_000)
    look(alarms, 0.0, nodes=[node()])
    states = [MemoryState.ALARM, MemoryState.ALARM, MemoryState.FULL, MemoryState.OK]
    told = [look(alarms, 1.0, nodes=[node(state)]) for state in states]
    raised, cleared = [("alarm", "node_memory", "raised")], [("alarm", "node_memory", "cleared")]
    assert told == [raised, [], raised, cleared]
    leaks = [look(alarms, 1.0, nodes=[node(leak_suspected=leak)]) for leak in (True, True, False)]
    assert leaks == [
        [("alarm", "leak_suspected", "raised")], [], [("alarm", "leak_suspected", "cleared")],
    ]  # fmt: skip


def test_what_a_silent_node_said_last_stands() -> None:
    alarms = Alarms(1_000)
    look(alarms, 0.0, nodes=[node(MemoryState.FULL)])
    assert look(alarms, 60.0, nodes=[node(MemoryState.OK)]) == [("node", "n", "silent")]


def test_the_alarms_of_a_node_that_is_forgotten_are_over() -> None:
    alarms = Alarms(1_000)
    look(alarms, 0.0, nodes=[node(MemoryState.FULL)])
    assert look(alarms, 1.0) == [("alarm", "node_memory", "cleared")]
    assert look(alarms, 2.0) == []


def test_a_journal_that_fails_and_a_ledger_that_drifts_are_alarms() -> None:
    alarms = Alarms(1_000)
    assert look(alarms, 0.0, fault="disk full") == [("alarm", "journal", "raised")]
    assert look(alarms, 0.1, fault="disk still full") == []
    assert look(alarms, 0.2, drift=-1) == [
        ("alarm", "journal", "cleared"), ("alarm", "drift", "raised"),
    ]  # fmt: skip
    assert look(alarms, 0.3) == [("alarm", "drift", "cleared")]


def test_a_pool_that_stays_full_is_saturated_until_it_has_had_room_for_a_while() -> None:
    site = Site(streams=1)
    site.acquire("a", "b")
    site.pass_time(2.0)
    assert site.others("alarm") == []
    site.pass_time(3.0)
    [alarm] = site.others("alarm")
    assert (alarm["pool"], alarm["alarm"], alarm["state"]) == ("p", "saturated", "raised")
    site.release("a")
    site.pass_time(1.0)
    site.acquire("c")
    site.pass_time(5.0)
    assert site.others("alarm") == [], "a moment of room relieves nobody"
    site.release("b", "c")
    site.pass_time(5.0)
    assert [alarm["state"] for alarm in site.others("alarm")] == ["cleared"]


def test_a_pool_that_is_full_now_and_then_is_not_saturated() -> None:
    site = Site(streams=1)
    for n in range(40):
        site.acquire(f"{n}.a", f"{n}.b")
        site.pass_time(0.25)
        site.release(f"{n}.a", f"{n}.b")
        site.pass_time(0.25)
    assert site.others("alarm") == []


@pytest.mark.parametrize("state", [BackendState.DRAINING, BackendState.DISABLED])
def test_backends_that_are_closed_are_not_full(state: BackendState) -> None:
    site = Site()
    for backend in site.backends.values():
        site.admission.adjust(backend, Limits(2, 80_000, state), "ops")
    site.pass_time(10.0)
    assert site.others("alarm") == []


# -- history -------------------------------------------------------------------------------------


def test_minutes_are_those_of_the_clock_and_add_up() -> None:
    site = Site(streams=1)  # 60,000 s since 1970: a minute begins
    site.pass_time(50.0)
    site.acquire("a", "b", "c")
    site.release("a")
    site.pass_time(30.0)
    site.release("b", verdict=Verdict.CLIENT_ABORT)
    site.pass_time(45.0)
    shown = site.admission.history(60)
    assert (shown["step_s"], shown["since"]) == (60, 60_000.0)
    limits = {"streams_limit": 2, "tokens_limit": 160_000}
    assert shown["points"] == [
        {"at": 60_000, "granted": 2, "refused": {"streams_exhausted": 1}, "ended": {"completed": 1},
         "pools": {"p": {"streams_max": 2, "tokens_max": 2_000, **limits}}},
        {"at": 60_060, "granted": 0, "refused": {}, "ended": {"client_abort": 1},
         "pools": {"p": {"streams_max": 1, "tokens_max": 1_000, **limits}}},
        {"at": 60_120, "granted": 0, "refused": {}, "ended": {},
         "pools": {"p": {"streams_max": 0, "tokens_max": 0, **limits}}},
    ]  # fmt: skip
    assert [point["at"] for point in site.admission.history(1)["points"]] == [60_060, 60_120]


def test_a_peak_between_two_looks_is_seen() -> None:
    site = Site(streams=5)
    site.acquire(*"abcdefg")
    site.release(*"abcdefg")
    [point] = site.admission.history(60)["points"]
    assert point["pools"]["p"]["streams_max"] == 7


def test_limits_are_those_of_active_backends() -> None:
    site = Site()
    site.admission.adjust(site.backends["gpu-0"], Limits(2, 80_000, BackendState.DRAINING), "ops")
    [point] = site.admission.history(60)["points"]
    assert point["pools"]["p"]["streams_limit"] == 2


def test_an_hour_is_kept_and_minutes_that_nobody_saw_are_empty_ones() -> None:
    pool = Pool("p", {"gpu-0": Backend("gpu-0", "", 1, 1)})
    none = Counts(0, Counter(), Counter())
    some = Counts(7, Counter(), Counter())
    history = History(0.0, 30.0, none, [pool])
    history.turn(10_000_020.0, some, [pool])
    points = history.shown(10_000_020.0, 10_000_050.0, some, [pool], 60)["points"]
    assert len(points) == 61
    ats = [point["at"] for point in points]
    assert ats == sorted(ats) and all(at % 60 == 0 for at in ats[1:])
    assert 0 <= 10_000_050 - ats[-1] < 60
    assert sum(point["granted"] for point in points) in (0, 7)
