"""Pages of leases: in order, each lease once, whatever comes and goes between two pages."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.api.lease_page import Choice, page, read_cursor
from control.core.lease import Lease


def lease(n: int, granted_at: float, scene: str = "QA") -> Lease:
    return Lease(f"id-{n}", n, "default", "gpu-0", "", scene, 10, "n/1/1", granted_at)


@settings(deadline=None)
@given(
    ages=st.lists(st.sampled_from([1.0, 2.5, 2.5, 1e-3, 123456.789]), max_size=40),
    limit=st.integers(1, 7),
    youngest_first=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_every_lease_that_lives_throughout_is_shown_once(
    ages: list[float], limit: int, youngest_first: bool, seed: int
) -> None:
    chance = random.Random(seed)
    live = {n: lease(n, age) for n, age in enumerate(ages)}
    at_first, gone = set(live), set()
    seen: list[Lease] = []
    after = None
    while True:
        some = list(live.values())
        chance.shuffle(some)
        shown, cursor = page(some, Choice(), limit, after, youngest_first)
        assert len(shown) <= limit
        seen += shown
        if cursor is None:
            break
        assert len(shown) == limit
        after = read_cursor(cursor)
        assert after is not None
        if live and chance.random() < 0.5:
            gone.add(victim := chance.choice(list(live)))
            del live[victim]
        fresh = 1_000 + len(seen) * 10
        live[fresh] = lease(fresh, chance.choice(ages))
    told = [each.grant for each in seen]
    assert len(told) == len(set(told))
    assert at_first - gone <= set(told)
    keys = [(each.granted_at, each.grant) for each in seen]
    assert keys == sorted(keys, reverse=youngest_first)


def test_a_page_that_is_just_full_has_none_after_it() -> None:
    some = [lease(n, float(n)) for n in range(4)]
    assert page(some, Choice(), 4)[1] is None
    shown, cursor = page(some, Choice(), 3)
    assert [each.grant for each in shown] == [0, 1, 2] and cursor
    assert page(some, Choice(scene="Record_Gen"), 3) == ([], None)


@pytest.mark.parametrize(
    "text",
    ["", "0", "x", "1.0_1", "1_1_a", "nan_1_a", "-1.0_1_a", "1.0_1_", "1.0_1_a b", "1.0_1_a\n",
     "1e9_1_a", "1.0_" + "9" * 20 + "_a", "1.0_1_" + "a" * 129],
)  # fmt: skip
def test_what_is_no_cursor_is_none(text: str) -> None:
    assert read_cursor(text) is None
