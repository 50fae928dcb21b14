"""Who guesses tokens is slowed down, and nobody else is."""

from collections.abc import Callable

import pytest

from control.api import throttle
from control.api.throttle import BURST, MAX_ADDRESSES, Throttle


class Clock:
    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def spend(guard: Throttle, address: str, count: int = BURST) -> None:
    for _ in range(count):
        guard.failed(address)


def test_after_a_hundred_failures_one_a_second_is_looked_at() -> None:
    clock = Clock()
    guard = Throttle(clock)
    spend(guard, "10.0.0.1", BURST - 1)
    assert guard.wait("10.0.0.1") == 0
    guard.failed("10.0.0.1")
    assert guard.wait("10.0.0.1") == 1.0
    clock.now += 0.75
    assert guard.wait("10.0.0.1") == 0.25
    clock.now += 0.25
    assert guard.wait("10.0.0.1") == 0
    guard.failed("10.0.0.1")
    assert guard.wait("10.0.0.1") == 1.0
    assert guard.wait("10.0.0.2") == 0, "others are not slowed down"


def test_a_success_forgets_and_so_does_time() -> None:
    clock = Clock()
    guard = Throttle(clock)
    spend(guard, "a")
    guard.succeeded("a")
    spend(guard, "a", BURST - 1)
    assert guard.wait("a") == 0
    clock.now += 1e6
    spend(guard, "a", BURST - 1)
    assert guard.wait("a") == 0
    guard.failed("a")
    assert guard.wait("a") > 0, "and never is there more than a whole bucket"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True), ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True), ("fe80::1%eth0", "fe80::2", True),
        ("10.0.0.1", "10.0.0.2", False), ("::x", "::x", True), ("", "", True),
    ],
)  # fmt: skip
def test_addresses_of_one_customer_share_a_bucket(one: str, other: str, same: bool) -> None:
    guard = Throttle(Clock())
    spend(guard, one)
    assert (guard.wait(other) > 0) is same


def test_the_table_is_bounded_and_forgets_who_failed_longest_ago(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(throttle, "MAX_ADDRESSES", 10)
    guard = Throttle(Clock())
    for n in range(10):
        spend(guard, f"10.0.0.{n}")
    guard.failed("10.0.0.0")
    guard.failed("10.0.1.1")
    waits: Callable[[str], float] = guard.wait
    assert waits("10.0.0.1") == 0 and waits("10.0.0.0") > 0 and waits("10.0.0.2") > 0
    assert len(guard._buckets) == 10 and MAX_ADDRESSES == 10_000
