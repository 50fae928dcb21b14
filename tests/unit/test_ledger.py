"""The ledger's own parts: tombstones, the audit, what a refusal advises."""

from control.core.decision import Granted, Reason, Refused
from control.core.estimate import Estimate
from control.core.ledger import Claim, Ledger
from control.core.pool import Backend, BackendState, Pool
from control.core.tombstones import LIFETIME_S, MAX_EACH, Tombstones
from control.core.verdict import Verdict, Witness


def ledger(**backend: object) -> Ledger:
    gpu = Backend("gpu-0", "http://e", 25, 80_000)
    for name, value in backend.items():
        setattr(gpu, name, value)
    return Ledger([Pool("p", {"gpu-0": gpu})])


def test_a_tombstone_lives_one_to_two_lifetimes() -> None:
    stones = Tombstones()
    stones.add("a", 1.0)
    stones.fade(1.0 + LIFETIME_S - 0.1)
    assert "a" in stones
    stones.fade(1.0 + LIFETIME_S)
    assert "a" in stones
    stones.fade(1.0 + 2 * LIFETIME_S)
    assert "a" not in stones


def test_tombstones_are_bounded() -> None:
    stones = Tombstones()
    for n in range(3 * MAX_EACH):
        stones.add(str(n), 0.0)
    kept = sum(str(n) in stones for n in range(3 * MAX_EACH))
    assert MAX_EACH <= kept <= 2 * MAX_EACH
    assert str(3 * MAX_EACH - 1) in stones


def test_the_audit_finds_a_counter_that_was_adjusted_by_hand() -> None:
    book = ledger()
    book.acquire(Claim("a", "p", "QA", 100, "s"), 0.0)
    assert book.audit() == []
    book.pools["p"].backends["gpu-0"].streams -= 1
    assert book.audit() == ["p/gpu-0 holds (1, 100, 0), counts (0, 100, 0)"]


def test_a_dead_worker_ends_at_once() -> None:
    book = ledger()
    book.acquire(Claim("a", "p", "QA", 100, "dead"), 0.0)
    book.acquire(Claim("b", "p", "QA", 100, "live"), 0.0)
    [lost] = book.end_session("dead", 1.0)
    assert (lost.id, lost.verdict, lost.witness) == ("a", Verdict.LOST, Witness.SESSION)
    assert book.end_session("dead", 1.0) == []
    book.tick(1.2)
    assert list(book.leases) == ["b"] and book.audit() == []


def test_closed_backends_are_told_apart() -> None:
    def refusal(**backend: object) -> Refused:
        decision = ledger(**backend).acquire(Claim("a", "p", "QA", 100, "s"), 0.0)
        assert isinstance(decision, Refused)
        return decision

    assert refusal(state=BackendState.DRAINING).reason is Reason.DRAINING
    assert refusal(state=BackendState.DISABLED).reason is Reason.NO_BACKEND
    unreachable = refusal(passed_over_until=4.0)
    assert (unreachable.reason, unreachable.retry_after_s) == (Reason.NO_BACKEND, 4.0)


def test_the_advice_to_come_back_follows_how_long_streams_last() -> None:
    book = ledger(max_streams=1)
    for n in range(200):
        book.acquire(Claim(str(n), "p", "QA", 100, "s"), n * 3.0)
        book.release(str(n), Verdict.COMPLETED, Witness.LUA, n * 3.0 + 2.0)
    book.acquire(Claim("holder", "p", "QA", 100, "s"), 1_000.0)
    refused = book.acquire(Claim("late", "p", "QA", 100, "s"), 1_000.0)
    assert isinstance(refused, Refused)
    assert 1.9 < refused.retry_after_s < 2.1


def test_the_estimate_is_mission_000s() -> None:
    estimate = Estimate(0.6, {"Record_Gen": 6_000, "QA": 1_000}, "Record_Gen")
    assert estimate.tokens(0, "QA") == 1_000
    assert estimate.tokens(101, "Record_Gen") == 6_061
    assert estimate.scene("QA") == "QA"
    assert estimate.scene("made up") == estimate.scene("") == "Record_Gen"


def test_a_grant_says_whether_room_is_scarce() -> None:
    book = ledger(max_streams=4)

    def tight(lease_id: str) -> bool:
        decision = book.acquire(Claim(lease_id, "p", "QA", 100, "s"), 0.0)
        assert isinstance(decision, Granted)
        return decision.tight

    assert [tight(i) for i in "abc"] == [False, False, True]
    assert tight("a"), "asked again, it says what is true now"
