"""What every store must do, whatever it keeps its state in.

A state machine asks for any order of acquire, release, repeat, late acquire, reroute, sync, limit
change and expiry, beside a model that knows only ids; the invariants of design.md, section 2,
are checked after each step.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from control.core.change import DRAINING, ENDED, GRANTED, LIFE
from control.core.decision import AlreadyEnded, Granted, Reason, Refused, ReleaseOutcome
from control.core.lease import LeaseState
from control.core.ledger import Claim, Held
from control.core.operation import Acquire, Cut, EndSession, Release, Reroute, Sync, Synced
from control.core.pool import Backend, BackendState, Limits, Pool
from control.core.verdict import Verdict, Witness
from control.stores import MemoryStore, Store

TTL, DRAIN = 15.0, 0.1


def journaled(pools: list[Pool]) -> Store:
    folder = tempfile.TemporaryDirectory()
    store = MemoryStore.journaled(pools, Path(folder.name) / "j.db", lambda: 1.0, 0.0)
    store.folder = folder  # type: ignore[attr-defined]  # removed with the store
    return store


STORES: dict[str, Callable[[list[Pool]], Store]] = {"memory": MemoryStore, "journaled": journaled}


@pytest.fixture(params=sorted(STORES))
def make(request: pytest.FixtureRequest) -> Callable[[list[Pool]], Store]:
    return STORES[request.param]


def pool(*limits: tuple[int, int], **settings: Any) -> Pool:
    backends = {
        f"gpu-{n}": Backend(f"gpu-{n}", f"http://e{n}", streams, tokens)
        for n, (streams, tokens) in enumerate(limits)
    }
    return Pool("p", backends, **{"session_ttl": TTL, "drain": DRAIN, **settings})


def claim(lease_id: str, tokens: int = 100, session: str = "s") -> Acquire:
    return Acquire(Claim(lease_id, "p", "QA", tokens, session))


def release(lease_id: str, verdict: Verdict = Verdict.COMPLETED, **more: Any) -> Release:
    return Release(lease_id, verdict, more.pop("witness", Witness.LUA), **more)


def one(store: Store, operation: Any, now: float = 0.0, session: str | None = "s") -> Any:
    [result] = store.apply(session, [operation], now)
    return result


def in_use(store: Store) -> tuple[int, int]:
    backends = [b for p in store.pools() for b in p.backends.values()]
    return sum(b.streams for b in backends), sum(b.tokens for b in backends)


Make = Callable[[list[Pool]], Store]


def test_both_units_are_taken_together_and_given_back_together(make: Make) -> None:
    store = make([pool((2, 1_000))])
    assert isinstance(one(store, claim("a", 600)), Granted)
    refused = one(store, claim("b", 600))
    assert isinstance(refused, Refused)
    assert (refused.reason, refused.limit, refused.in_use, refused.requested) == (
        Reason.TOKENS_EXHAUSTED, 1_000, 600, 600,
    )  # fmt: skip
    assert in_use(store) == (1, 600), "a refusal leaves no trace"
    assert one(store, release("a")) is ReleaseOutcome.RELEASED
    assert in_use(store) == (0, 0)


def test_streams_are_refused_with_their_own_reason(make: Make) -> None:
    store = make([pool((1, 1_000))])
    one(store, claim("a"))
    refused = one(store, claim("b"))
    assert (refused.reason, refused.limit, refused.in_use, refused.requested) == (
        Reason.STREAMS_EXHAUSTED, 1, 1, 1,
    )  # fmt: skip


def test_what_could_never_fit_is_not_told_to_come_back(make: Make) -> None:
    store = make([pool((1, 1_000), (1, 2_000))])
    assert isinstance(one(store, claim("a", 2_000)), Granted)
    assert one(store, claim("b", 2_000)).reason is Reason.TOKENS_EXHAUSTED
    assert one(store, claim("c", 2_001)).reason is Reason.REQUEST_TOO_LARGE


def test_the_backend_with_most_free_tokens_is_chosen_of_those_where_both_fit(make: Make) -> None:
    store = make([pool((9, 1_000), (1, 5_000), (9, 2_000))])
    chosen = [one(store, claim(str(n), 400)).lease.backend for n in range(6)]
    # gpu-1 has room for one stream only, however many tokens it has left.
    assert chosen == ["gpu-1", "gpu-2", "gpu-2", "gpu-2", "gpu-0", "gpu-2"]


def test_acquiring_twice_gives_the_same_lease(make: Make) -> None:
    store = make([pool((2, 1_000))])
    first, again = one(store, claim("a")), one(store, claim("a"))
    assert first.lease is again.lease and again.repeated and not first.repeated
    assert in_use(store) == (1, 100)


@pytest.mark.parametrize("witnesses", [list(Witness), list(Witness)[::-1]])
def test_only_the_first_release_counts(make: Make, witnesses: list[Witness]) -> None:
    store = make([pool((2, 1_000))])
    one(store, claim("a"))
    outcomes = [one(store, release("a", witness=witness)) for witness in witnesses]
    assert outcomes == [ReleaseOutcome.RELEASED] + [ReleaseOutcome.ALREADY] * 4
    assert in_use(store) == (0, 0)
    assert store.totals().ended == {(Verdict.COMPLETED, witnesses[0]): 1}
    assert sum(store.totals().idle_releases.values()) == 4


def test_a_release_that_comes_first_refuses_the_late_acquire_for_a_minute(make: Make) -> None:
    store = make([pool((2, 1_000))])
    assert one(store, release("a"), 0) is ReleaseOutcome.UNKNOWN
    assert one(store, claim("a"), 59) == AlreadyEnded("a")
    assert in_use(store) == (0, 0)
    store.tick(200)
    assert isinstance(one(store, claim("a"), 200), Granted)


def test_a_late_release_of_an_earlier_grant_leaves_the_new_lease_alone(make: Make) -> None:
    """Casebook 15."""
    store = make([pool((2, 1_000))])
    first = one(store, claim("a"), 0).lease.grant
    store.tick(TTL + 1)
    store.tick(TTL + 2)
    assert in_use(store) == (0, 0)
    second = one(store, claim("a"), TTL + 3).lease.grant
    assert second != first
    assert one(store, release("a", grant=first), TTL + 3) is ReleaseOutcome.STALE
    assert in_use(store) == (1, 100)
    assert one(store, release("a", grant=second), TTL + 3) is ReleaseOutcome.RELEASED


@pytest.mark.parametrize("verdict", list(Verdict))
def test_what_was_cut_stays_counted_for_the_drain(make: Make, verdict: Verdict) -> None:
    store = make([pool((1, 1_000))])
    one(store, claim("a"), 0)
    one(store, release("a", verdict), 1.0)
    freed_at_once = verdict in (Verdict.COMPLETED, Verdict.UPSTREAM_ERROR)
    assert in_use(store) == ((0, 0) if freed_at_once else (1, 100))
    store.tick(1.0 + DRAIN - 0.001)
    assert in_use(store) == ((0, 0) if freed_at_once else (1, 100))
    store.tick(1.0 + DRAIN)
    assert in_use(store) == (0, 0)
    assert store.totals().ended == {(verdict, Witness.LUA): 1}


def test_a_stream_lives_as_long_as_its_session_and_no_age_ends_it(make: Make) -> None:
    """Casebook 16."""
    store = make([pool((1, 1_000))])
    one(store, claim("long"), 0)
    for second in range(0, 3_600, 10):
        store.apply("s", [], float(second))
        assert store.tick(float(second)) == []
    assert in_use(store) == (1, 100)
    [lost] = store.tick(3_600 + TTL)
    assert (lost.id, lost.verdict, lost.witness) == ("long", Verdict.LOST, Witness.SESSION)
    store.tick(3_600 + TTL + DRAIN)
    assert in_use(store) == (0, 0) and not store.sessions()


def test_a_silent_session_takes_nobody_elses_leases_with_it(make: Make) -> None:
    store = make([pool((9, 1_000))])
    one(store, claim("mine", session="dead"), 0, "dead")
    one(store, claim("yours", session="live"), 0, "live")
    store.apply("live", [], TTL)
    assert [lease.id for lease in store.tick(TTL + 0.1)] == ["mine"]


def test_a_lease_moves_from_an_unreachable_backend_in_one_step(make: Make) -> None:
    store = make([pool((1, 5_000), (1, 1_000), pass_over=5.0)])
    assert one(store, claim("a"), 0).lease.backend == "gpu-0"
    moved = one(store, Reroute("a"), 0)
    assert moved.lease.backend == "gpu-1" and in_use(store) == (1, 100)
    assert one(store, claim("b"), 4.9).reason is Reason.STREAMS_EXHAUSTED, "gpu-0 is passed over"
    assert one(store, claim("b"), 5.0).lease.backend == "gpu-0"


def test_a_lease_that_can_move_nowhere_ends(make: Make) -> None:
    store = make([pool((1, 5_000))])
    one(store, claim("a"), 0)
    assert one(store, Reroute("a"), 0).reason is Reason.NO_BACKEND
    assert in_use(store) == (0, 0)
    assert store.totals().ended == {(Verdict.UPSTREAM_ERROR, Witness.LUA): 1}
    assert one(store, release("a"), 0) is ReleaseOutcome.ALREADY


def test_sync_ends_what_the_worker_lost_and_adopts_what_it_holds(make: Make) -> None:
    store = make([pool((1, 1_000))])
    one(store, claim("gone"))
    held = Held("kept", "p", "gpu-0", "QA", 300)
    synced = one(store, Sync("s", [], [held, held._replace(backend="x", id="no")]))
    assert isinstance(synced, Synced)
    assert [lease.id for lease in synced.ended] == ["gone"]
    assert [lease.id for lease in synced.adopted] == ["kept"]
    assert in_use(store) == (2, 400), "the lost one drains, the adopted one runs"
    assert one(store, Sync("s", ["kept"], [])) == Synced([], [], {})


def test_a_sync_says_nothing_of_what_was_granted_after_it_was_sent(make: Make) -> None:
    store = make([pool((3, 1_000))])
    first = one(store, claim("a")).lease.grant
    one(store, claim("b"))
    synced = one(store, Sync("s", [], [], up_to=first))
    assert [lease.id for lease in synced.ended] == ["a"], "b was granted later"


def test_a_lease_lives_with_the_session_that_said_last_that_it_holds_it(make: Make) -> None:
    """A gateway that was restarted goes on under a new one."""
    store = make([pool((1, 1_000))])
    one(store, claim("a", session="first"), 0, "first")
    one(store, Cut("a"), 0, None)
    assert one(store, claim("a", session="second"), 1, "second").repeated
    [cuts] = [session.cuts for session in store.sessions() if session.id == "second"]
    assert cuts == {"a"}, "what was asked for is asked of who can do it"
    assert one(store, EndSession("first"), 2, None).ended == []
    one(store, Sync("third", [], [Held("a", "p", "gpu-0", "QA", 100)]), TTL, "third")
    assert store.tick(2 * TTL - 1) == [] and in_use(store) == (1, 100)
    assert [lease.id for lease in store.tick(2 * TTL + 1)] == ["a"]
    one(store, Sync("fourth", [], [Held("a", "p", "gpu-0", "QA", 100)]), 2 * TTL + 1, "fourth")
    assert store.tick(3 * TTL) == [] and in_use(store) == (1, 100)


def test_a_session_that_was_only_silent_has_its_leases_back_under_their_grants(make: Make) -> None:
    store = make([pool((2, 1_000))])
    grant = one(store, claim("a"), 0).lease.grant
    held = [Held("a", "p", "gpu-0", "QA", 100, grant)]
    assert [lease.id for lease in store.tick(TTL + 0.01)] == ["a"]
    [back] = one(store, Sync("s", [], held), TTL + 0.02).adopted
    assert (back.id, back.state, back.verdict) == ("a", LeaseState.ACTIVE, None)
    store.tick(TTL + 1)
    assert in_use(store) == (1, 100), "what it had begun to drain is forgotten"
    store.tick(2 * TTL + 2)
    store.tick(2 * TTL + 3)
    assert in_use(store) == (0, 0)
    [back] = one(store, Sync("s", [], held), 2 * TTL + 4).adopted
    assert back.grant == grant, "its stream's own releases still name it"
    assert one(store, release("a", grant=grant), 2 * TTL + 5) is ReleaseOutcome.RELEASED
    assert store.drift() == 0


def test_what_runs_elsewhere_than_was_thought_is_counted_there(make: Make) -> None:
    store = make([pool((2, 5_000), (2, 1_000))])
    assert one(store, claim("a")).lease.backend == "gpu-0"
    one(store, Sync("s", [], [Held("a", "p", "gpu-1", "QA", 100)]))
    assert [b.streams for b in store.pools()[0].backends.values()] == [0, 1]


def test_a_cut_waits_for_its_gateway_and_no_backend_is_tried_meanwhile(make: Make) -> None:
    store = make([pool((1, 5_000), (1, 1_000))])
    one(store, claim("a"))
    assert one(store, Cut("a"), session=None) is ReleaseOutcome.CUTTING
    session = store.session("s")
    assert session is not None and session.cuts == {"a"} and in_use(store) == (1, 100)
    assert one(store, Reroute("a")) == AlreadyEnded("a")
    assert not session.cuts and store.pools()[0].backends["gpu-1"].streams == 0
    assert one(store, Cut("a"), session=None) is ReleaseOutcome.ALREADY
    assert one(store, Cut("b"), session=None) is ReleaseOutcome.UNKNOWN


def test_a_dead_workers_session_ends_at_once_with_what_it_held(make: Make) -> None:
    store = make([pool((3, 1_000))])
    one(store, claim("mine", session="dead"), 0, "dead")
    one(store, claim("yours", session="live"), 0, "live")
    ended = one(store, EndSession("dead"), 1.0, None).ended
    assert [lease.id for lease in ended] == ["mine"]
    assert in_use(store) == (2, 200), "an engine needs a step to notice"
    store.tick(1.0 + DRAIN)
    assert in_use(store) == (1, 100)
    assert one(store, EndSession("dead"), 2.0, None).ended == []


def test_the_stores_own_silence_is_not_the_sessions(make: Make) -> None:
    store = make([pool((1, 1_000))])
    one(store, claim("a"), 0)
    store.forgive(100.0, 100.0)
    assert store.tick(100.0) == []
    assert [lease.id for lease in store.tick(100.0 + TTL + 0.1)] == ["a"]


def test_lowered_limits_cut_nothing_and_admit_nothing_until_below(make: Make) -> None:
    store = make([pool((3, 1_000))])
    for name in "abc":
        one(store, claim(name))
    [backend] = store.pools()[0].backends.values()
    store.adjust(backend, Limits(2, 1_000))
    assert in_use(store) == (3, 300)
    one(store, release("a"))
    assert one(store, claim("d")).reason is Reason.STREAMS_EXHAUSTED
    one(store, release("b"))
    assert isinstance(one(store, claim("e")), Granted)
    store.adjust(backend, Limits(2, 1_000, BackendState.DRAINING))
    one(store, release("c"))
    assert one(store, claim("f")).reason is Reason.DRAINING


class AnyOrder(RuleBasedStateMachine):
    """Any order of everything. ``make`` is set by the test."""

    make: Make
    ids = st.sampled_from([f"id-{n}" for n in range(12)])
    sessions = st.sampled_from(["s-1", "s-2"])

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool((2, 1_000), (3, 700))
        self.store = type(self).make([self.pool])
        self.now = 0.0
        self.live: dict[str, int] = {}
        self.ended_grants: set[int] = set()
        self.told: dict[str, tuple[LeaseState, str]] = {}

    def fits(self, tokens: int) -> bool:
        return any(
            b.streams < b.max_streams
            and b.tokens + tokens <= b.max_tokens
            and b.passed_over_until <= self.now
            for b in self.pool.backends.values()
        )

    @rule(lease_id=ids, tokens=st.integers(0, 1_100), session=sessions)
    def acquire(self, lease_id: str, tokens: int, session: str) -> None:
        self.store.tick(self.now)
        fits, known = self.fits(tokens), self.store.lease(lease_id)
        result = one(self.store, claim(lease_id, tokens, session), self.now, session)
        match result:
            case Granted(lease, repeated):
                assert repeated == (known is not None)
                assert repeated or fits
                self.live[lease_id] = lease.grant
            case Refused():
                assert known is None and not fits
            case AlreadyEnded():
                assert known is None or known.state is LeaseState.DRAINING

    @rule(
        lease_id=ids,
        verdict=st.sampled_from(Verdict),
        witness=st.sampled_from(Witness),
        stale=st.booleans(),
    )
    def release(self, lease_id: str, verdict: Verdict, witness: Witness, stale: bool) -> None:
        known = self.store.lease(lease_id)
        active = known is not None and known.state is LeaseState.ACTIVE
        grant = (known.grant - 1 if stale else known.grant) if known else None
        outcome = one(self.store, Release(lease_id, verdict, witness, grant), self.now, None)
        assert (outcome is ReleaseOutcome.RELEASED) == (active and not stale)

    @rule(lease_id=ids)
    def reroute(self, lease_id: str) -> None:
        one(self.store, Reroute(lease_id), self.now, None)

    @rule(session=sessions, data=st.data(), up_to=st.none() | st.integers(0, 20))
    def sync(self, session: str, data: st.DataObject, up_to: int | None) -> None:
        known = data.draw(st.lists(self.ids, unique=True))
        grants = st.none() | st.integers(1, 40)
        backends = st.sampled_from(["gpu-0", "gpu-1", "none"])
        held = [
            Held(lease_id, "p", data.draw(backends), "QA", 50, data.draw(grants))
            for lease_id in data.draw(st.lists(self.ids, unique=True, max_size=3))
        ]
        one(self.store, Sync(session, known, held, up_to), self.now, session)

    @rule(lease_id=ids)
    def cut(self, lease_id: str) -> None:
        known = self.store.lease(lease_id)
        active = known is not None and known.state is LeaseState.ACTIVE
        outcome = one(self.store, Cut(lease_id), self.now, None)
        assert (outcome is ReleaseOutcome.CUTTING) == active

    @rule(session=sessions)
    def end_session(self, session: str) -> None:
        one(self.store, EndSession(session), self.now, None)

    @rule(
        backend=st.sampled_from(["gpu-0", "gpu-1"]),
        streams=st.integers(1, 4),
        tokens=st.integers(1, 1_200),
    )
    def change_limits(self, backend: str, streams: int, tokens: int) -> None:
        self.store.adjust(self.pool.backends[backend], Limits(streams, tokens))

    @rule(seconds=st.sampled_from([0.01, 0.05, 0.1, 1.0, 6.0, 16.0, 61.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.store.tick(self.now)

    @invariant()
    def everything_adds_up(self) -> None:
        totals, leases = self.store.totals(), self.store.leases()
        assert self.store.drift() == 0
        assert totals.granted == totals.ended.total() + len(leases)
        for backend in self.pool.backends.values():
            mine = [lease for lease in leases if lease.backend == backend.name]
            assert backend.streams == len(mine) >= 0
            assert backend.tokens == sum(lease.tokens for lease in mine) >= 0
            assert backend.draining == sum(e.state is LeaseState.DRAINING for e in mine)

    @invariant()
    def the_news_say_all_that_lives(self) -> None:
        for change in self.store.take_news():
            lease_id, told = change.lease.id, self.told.get(change.lease.id)
            if change.kind == GRANTED:
                assert told is None
            else:
                assert told is not None and change.kind in LIFE
            if change.kind == DRAINING:
                assert told == (LeaseState.ACTIVE, change.backend) and change.verdict
                self.told[lease_id] = LeaseState.DRAINING, change.backend
            elif change.kind == ENDED:
                assert change.verdict and change.witness
                del self.told[lease_id]
            else:
                self.told[lease_id] = LeaseState.ACTIVE, change.backend
        assert self.told == {e.id: (e.state, e.backend) for e in self.store.leases()}

    def teardown(self) -> None:
        """Whatever happened, when all falls silent all comes back."""
        self.store.tick(self.now + TTL + 1)
        self.store.tick(self.now + TTL + 2)
        assert in_use(self.store) == (0, 0) and not self.store.leases()


@pytest.mark.timeout(300)
def test_no_order_of_anything_breaks_an_invariant(make: Make) -> None:
    machine = type("AnyOrderOf", (AnyOrder,), {"make": staticmethod(make)})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=200, stateful_step_count=60, deadline=None)
    )
