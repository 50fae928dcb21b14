"""What the commands say, without a service."""

from typing import Any

import pytest

from control.client import Event
from control.terminal.events import line
from control.terminal.limits import limits_told, state_told
from control.terminal.pools import state_of
from control.terminal.top import View
from control.terminal.words import age, plain, size


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "-"), (-1, "0.0s"), (0.44, "0.4s"), (12.9, "12s"), (192, "3m12s"),
        (7_500, "2h05m"), (273_600, "3d04h"),
    ],
)  # fmt: skip
def test_ages_are_short(seconds: float | None, told: str) -> None:
    assert age(seconds) == told


def test_sizes_have_a_unit() -> None:
    told = [size(number) for number in (None, 812, 3_900_000, 500 << 20, 20 << 30, 5 << 40)]
    assert told == ["-", "812 B", "3.7 MB", "500 MB", "20.0 GB", "5120 GB"]


def test_nothing_from_elsewhere_steers_the_terminal() -> None:
    assert plain("发热 \x1b[2J\r\n\x07\x9b") == "发热 \\x1b[2J\\r\\n\\x07\\x9b"
    told = line(Event("ended", 1, {"at": 0, "pool": "p\x1b]0;x\x07", "detail": "a\nb"}))
    assert told.isprintable()


def test_an_event_is_a_line_with_its_lease_first() -> None:
    data = {
        "at": 1.5, "tokens": 1_741, "id": "3f2a", "pool": "qwen", "backend": "gpu-0",
        "scene": "QA", "tenant": None,
    }  # fmt: skip
    assert line(Event("granted", 1, data)).split()[1:] == [
        "granted", "qwen/gpu-0", "3f2a", "scene=QA", "tokens=1,741",
    ]  # fmt: skip
    gap = line(Event("gap", None, {"missed": 12_000, "oldest": 7}))
    assert gap.split() == ["gap", "missed=12,000", "oldest=7"]


def backend(**changed: Any) -> Any:
    return {
        "name": "g", "url": "http://e", "state": "active", "max_streams": 25, "streams": 3,
        "max_tokens": 80_000, "tokens": 9_000, "draining": 0, **changed,
    }  # fmt: skip


def test_a_backend_that_should_take_streams_and_cannot_be_reached_is_shown_so() -> None:
    assert state_of(backend()) == "active"
    assert state_of(backend(unreachable=True)) == "unreachable"
    assert state_of(backend(unreachable=True, state="draining")) == "draining"


def test_a_changed_limit_says_what_it_does_not_do() -> None:
    assert limits_told(backend(), backend()) == ["nothing to change: the limits are these already"]
    assert limits_told(backend(), backend(max_streams=30)) == ["streams 25 -> 30"]
    closed = backend(state="disabled", configured=backend())
    assert len(limits_told(closed, closed)) == 1, "--reset does not open it"
    changed, over = limits_told(backend(), backend(max_streams=2, max_tokens=8_000))
    assert changed == "streams 25 -> 2, tokens 80,000 -> 8,000"
    assert over.startswith("3 streams are in use of 2, 9,000 tokens are in use of 8,000: nothing")


def test_a_state_says_what_becomes_of_what_runs() -> None:
    assert "3 streams may finish, none is admitted" in state_told(backend(state="draining"))
    assert "1 stream left alone" in state_told(backend(state="disabled", streams=1))
    assert "up to 25 streams and 80,000 tokens" in state_told(backend())


def test_keys_choose_what_top_shows() -> None:
    view = View()
    assert view.pressed("n", []).sort == "age"
    assert view.pressed("n", []).pressed("o", []) == view.pressed("x", []) == view
    pools = ["a", "b"]
    seen = [view.pool]
    for _ in range(3):
        view = view.pressed("p", pools)
        seen.append(view.pool)
    assert seen == [None, "a", "b", None]
    gone = View(pool="removed").pressed("p", pools)
    assert gone.pool == "a"
