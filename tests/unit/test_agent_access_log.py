"""What a line of the access log says of a lease."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from control.agent.access_log import BrokenLine, Ended, read_line
from control.core.decision import Reason
from control.core.verdict import Verdict

ID = "0123456789abcdef0123456789abcdef"
ROUTE = "/v1/chat/completions"


def line(**fields: Any) -> bytes:
    """A finished stream, but for what is said."""
    whole = {
        "ts": 1_700_000_000.125, "id": ID, "pid": 7, "route": ROUTE, "pool": "default",
        "backend": "gpu-0", "grant": "12", "scene": "QA", "method": "POST",
        "status": "200", "completion": "OK", "verdict": "", "reason": "", "seen": "3 terminated",
        "upstream": "127.0.0.1:8000", "upstream_status": "200",
        **fields,
    }  # fmt: skip
    return json.dumps(whole).encode()


def test_a_final_line_is_a_release_with_its_grant() -> None:
    ended = read_line(line(verdict="completed"))
    assert ended == Ended(ID, Verdict.COMPLETED, 12, 1_700_000_000.125)
    assert ended.release() == {
        "op": "release", "id": ID, "verdict": "completed", "witness": "log", "grant": 12,
    }  # fmt: skip


def test_a_line_without_a_grant_is_a_release_without_one() -> None:
    ended = read_line(line(grant=""))
    assert ended and "grant" not in ended.release()


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        # Lua's word first.
        ({"verdict": "upstream_truncated"}, "upstream_truncated"),
        ({"verdict": "client_abort", "completion": "OK"}, "client_abort"),
        ({"verdict": "timeout", "status": "499"}, "timeout"),
        # Casebook 1: an abort in mid-stream is logged 200, without completion.
        ({"completion": ""}, "client_abort"),
        ({"completion": "", "upstream_status": "502"}, "client_abort"),
        ({"status": "499"}, "client_abort"),
        ({"status": 499}, "client_abort"),
        ({"status": "000"}, "client_abort"),
        ({"upstream_status": "500", "status": "500"}, "upstream_error"),
        ({"upstream_status": "200, 502"}, "upstream_error"),
        ({"upstream_status": "502, 200"}, "completed"),
        ({"upstream_status": "200 : 504"}, "upstream_error"),
        ({"upstream_status": "504 : 200"}, "completed"),
        ({"upstream_status": "502, -"}, "completed"),
        ({"upstream_status": ""}, "completed"),
        ({"upstream_status": 503}, "upstream_error"),
        ({"verdict": "nonsense"}, "completed"),
        ({"verdict": None, "upstream_status": None}, "completed"),
        ({"verdict": ["completed"], "completion": ["OK"]}, "client_abort"),
    ],
)
def test_the_verdict_reads_more_than_the_status(fields: dict[str, Any], verdict: str) -> None:
    ended = read_line(line(**fields))
    assert ended and ended.verdict == verdict


@pytest.mark.parametrize("reason", [each.value for each in Reason])
def test_what_was_surely_refused_is_no_release_and_the_rest_is(reason: str) -> None:
    doubtful = reason in ("admission_down", "no_backend")
    assert bool(read_line(line(grant="", reason=reason, completion="OK"))) == doubtful
    assert read_line(line(grant="9", reason=reason)), "where there was a grant, it has to end"


@pytest.mark.parametrize("reason", [each.value for each in Reason])
def test_what_nginx_refused_after_it_had_asked_is_a_release(reason: str) -> None:
    """The service may have granted it: Lua says so with a verdict."""
    ended = read_line(line(grant="", reason=reason, verdict="killed", status="429"))
    assert ended and ended.verdict == "killed"


@pytest.mark.parametrize("reason", ["", "client_gone", "length_required"])
def test_what_may_have_asked_is_a_release(reason: str) -> None:
    assert read_line(line(grant="", reason=reason, status="499", completion=""))


@pytest.mark.parametrize("fields", [{"route": ""}, {"route": None}])
def test_a_request_of_no_route_never_asked(fields: dict[str, Any]) -> None:
    assert read_line(line(**fields)) is None


@pytest.mark.parametrize(
    ("grant", "sent"),
    [
        ("1", 1), (5, 5), ("9007199254740992", 1 << 53), ("9007199254740993", None), ("0", None),
        ("-1", None), ("1.5", None), ("٣", None), ("9" * 5_000, None), (True, None), (None, None),
        ([1], None), ("", None),
    ],
)  # fmt: skip
def test_only_a_sound_grant_is_sent(grant: Any, sent: int | None) -> None:
    ended = read_line(line(grant=grant))
    assert ended and ended.grant == sent


@pytest.mark.parametrize(
    "broken",
    [
        b"nonsense", b"{", b"[]", b'"text"', b"7", b"null", b"{}", line()[:-1], line() + line(),
        b'{"id":NaN}', b"\xff\xfe", b"[" * 5_000, b"{" * 5_000, b'{"a":' * 5_000,
        line(id=""), line(id=None), line(id=7), line(id="a b"), line(id="x" * 129),
        line(id="../x"), line(id=f"{ID}\n"), line(id="ä"), line(id={"x": 1}),
    ],
)  # fmt: skip
def test_a_broken_line_is_said_to_be_broken(broken: bytes) -> None:
    with pytest.raises(BrokenLine):
        read_line(broken)


def test_bytes_that_are_not_utf8_spoil_only_their_own_field() -> None:
    ended = read_line(line(scene="SCENE").replace(b"SCENE", b"\xff\xfe\x80"))
    assert ended and ended.id == ID and ended.grant == 12


@pytest.mark.parametrize("ts", [None, "soon", True, [], 10**40])
def test_a_time_that_is_none_costs_nothing_but_itself(ts: Any) -> None:
    ended = read_line(line(ts=ts))
    assert ended and ended.ts >= 0


def test_the_fields_that_are_read_are_those_that_nginx_writes() -> None:
    log_format = (Path(__file__).parents[2] / "nginx" / "log.conf.j2").read_text()
    written = set(re.findall(r'"([a-z_]+)":', log_format))
    assert {
        "ts", "id", "route", "grant", "reason", "verdict", "completion", "status",
        "upstream_status",
    } <= written  # fmt: skip
