"""What judges the chaos runs: that it sees what is wrong, and that a seed is always the same."""

import json
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos import plan
from tests.chaos.answers import Frames as Parts
from tests.chaos.answers import Unsound, frames_of, judge
from tests.chaos.bed import MAX_STREAMS, MAX_TOKENS
from tests.chaos.causes import UNANSWERED, Causes
from tests.chaos.faults import AFTERMATH_S, Scene
from tests.chaos.frames import GOAWAY, Frames
from tests.chaos.injector import Injector
from tests.chaos.limits import LimitsInForce, Lowered
from tests.chaos.logs import AccessLog
from tests.chaos.old_workers import OldWorkers
from tests.chaos.outcome import Kind, Outcome
from tests.chaos.watch import ADOPTED_S, SETTLED_S, Seen, Watch

PLAIN = replace(
    plan.request(1, 1, 1, 20.0),
    streams=True, frames=2, fail_after=None, nonsense=False, beats=False,
)  # fmt: skip
BEATS = replace(PLAIN, beats=True)


def outcome(kind: Kind, request: Any = PLAIN, **known: Any) -> Outcome:
    return Outcome(request, kind, 10.0, 12.0, **known)


# -- the plan ----------------------------------------------------------------------------------


def test_a_seed_is_always_the_same_and_a_longer_run_begins_with_the_shorter() -> None:
    short, long = list(plan.schedule(7, 60)), list(plan.schedule(7, 300))
    assert long[: len(short)] == short == list(plan.schedule(7, 60))
    assert short != list(plan.schedule(8, 60))[: len(short)]
    requests = [plan.request(7, client, n, 20) for client in range(9) for n in range(99)]
    assert requests == [plan.request(7, client, n, 20) for client in range(9) for n in range(99)]
    assert len({request.tag for request in requests}) == len(requests)


def test_every_fault_and_every_behaviour_is_drawn() -> None:
    drawn = {event.fault for event in plan.schedule(1, 3_000)}
    bed: Any = SimpleNamespace(node=None)
    log: Any = AccessLog(Path("access.log"), lambda: None)
    scene = Scene(bed, Causes(), LimitsInForce(), log)
    assert drawn == set(plan.WEIGHTS) == set(Injector(scene).faults)
    requests = [plan.request(1, client, n, 20) for client in range(20) for n in range(100)]
    assert {request.leaves for request in requests} == {None, "fin", "rst", "cancel"}
    assert {request.protocol for request in requests} == {"h1", "h2"}
    for behaviour in (
        "nonsense", "hesitates", "uploads", "reads_every", "fail_after", "late", "beats",
    ):  # fmt: skip
        assert any(getattr(request, behaviour) for request in requests), behaviour
    assert len({plan.shutdown_timeout_s(seed) for seed in (1, 2, 3)}) == 2


def test_a_stream_takes_at_most_what_is_reserved_for_it_and_nearly_as_much() -> None:
    for n in range(200):
        request = plan.request(1, 1, n, 20)
        taken = request.prompt_chars * 0.6 + request.frames
        reserved = len(request.body()) * 0.6 + plan.SCENES[request.scene]
        assert taken <= reserved < taken + 250


# -- causes ------------------------------------------------------------------------------------


def test_a_broken_stream_without_a_fault_is_not_explained() -> None:
    causes = Causes()
    for kind in (Kind.CUT, Kind.UNREACHABLE, Kind.SILENT, Kind.BROKEN, Kind.CRASHED):
        assert causes.of(outcome(kind)) is None
    assert causes.of(outcome(Kind.REFUSED, reason="admission_down")) is None
    assert causes.of(outcome(Kind.REFUSED, reason="streams_exhausted")) == "plan"
    assert causes.of(outcome(Kind.COMPLETE)) == "plan"


@pytest.mark.parametrize(
    ("reach", "explained"),
    [
        ({"at": 11.0}, True),
        ({"at": 9.0, "until": 10.5}, True),
        ({"at": 9.0, "until": 9.9}, False),
        ({"at": 12.1}, False),
        ({"at": 11.0, "ports": frozenset([7])}, True),
        ({"at": 11.0, "ports": frozenset([8])}, False),
        ({"at": 11.0, "ids": frozenset(["other"])}, False),
    ],
)
def test_a_fault_explains_whom_it_reached_and_while_it_lasted(
    reach: dict[str, Any], explained: bool
) -> None:
    causes = Causes()
    causes.add("#1 worker-kill", ("cut",), **reach)
    cut = outcome(Kind.CUT, port=7, request_id="mine")
    assert (causes.of(cut) is not None) is explained
    assert causes.of(outcome(Kind.SILENT, port=7, request_id="mine")) is None


def test_a_fault_that_found_nothing_explains_nothing_that_comes_later() -> None:
    causes = Causes()
    causes.add("#1 nginx-kill", ("cut",), at=5.0)
    causes.add("#2 nginx-kill", ("cut",), at=8.0, until=11.0)
    causes.withdraw("#1 nginx-kill", 6.0)
    assert causes.of(outcome(Kind.CUT)) == "#2 nginx-kill"
    causes.withdraw("#2 nginx-kill", 9.0)
    assert causes.of(outcome(Kind.CUT)) is None


def test_who_was_answered_is_not_cut_by_a_graceful_stop() -> None:
    causes = Causes()
    causes.add("#1 nginx-stop", ("cut", "unreachable"), at=11.0, ids=UNANSWERED)
    assert causes.of(outcome(Kind.CUT, request_id="mine")) is None
    assert causes.of(outcome(Kind.CUT)) == causes.of(outcome(Kind.UNREACHABLE)) == "#1 nginx-stop"
    causes.withdraw("#1 nginx-stop", 9.0)
    assert causes.of(outcome(Kind.CUT)) is None


def test_a_workers_death_takes_what_it_relays_for_others_and_that_at_once() -> None:
    causes = Causes()
    causes.add("#1 worker-kill", ("cut",), at=11.0, until=12.5, relayed=True)
    assert causes.of(outcome(Kind.CUT, BEATS, port=7)) == "#1 worker-kill"
    assert causes.of(outcome(Kind.CUT, port=7)) is None
    late = replace(outcome(Kind.CUT, BEATS, port=7), ended=13.0)
    assert causes.of(late) is None


def test_an_old_worker_cuts_its_own_clients_and_none_before_its_time() -> None:
    def cut(port: int, at: float) -> str | None:
        return causes.of(replace(outcome(Kind.CUT, port=port), began=1.0, ended=at))

    causes = Causes()
    old = OldWorkers(causes, cut_after_s=4.0)
    old.look({}, 10.0)
    old.look({77: frozenset([1, 2]), 78: frozenset([3])}, 10.2)
    old.look({77: frozenset([1])}, 12.0)
    old.look({77: frozenset([1])}, 14.1)
    assert (cut(1, 13.6), cut(4, 14.5)) == (None, None)
    assert cut(1, 14.1) == cut(2, 14.1) == "# shutdown_timeout of worker 77"
    assert cut(3, 14.5) is None, "its worker ended before its time"
    old.look({}, 14.3)
    [cause] = [c for c in causes._all if c.ports == {1, 2}]
    assert cause.until == 14.3 + AFTERMATH_S


# -- answers -----------------------------------------------------------------------------------


def chunk(text: str | None, request_id: str = "r") -> bytes:
    finish = None if text else "stop"
    choice = {"index": 0, "delta": {"content": text} if text else {}, "finish_reason": finish}
    return (
        b"data: %b\n\n" % json.dumps({"id": f"chatcmpl-{request_id}", "choices": [choice]}).encode()
    )


WHOLE = chunk("a") + chunk("b") + chunk(None) + b"data: [DONE]\n\n"
HEADERS = {"x-request-id": "r", "content-type": "text/event-stream"}


def test_a_whole_stream_is_complete() -> None:
    assert judge(PLAIN, 200, HEADERS, WHOLE)[0] is Kind.COMPLETE
    assert frames_of(WHOLE[:-10], "r") == Parts(2, stopped=True)


@pytest.mark.parametrize(
    "body",
    [
        WHOLE[:-1],
        chunk("a") + chunk(None) + b"data: [DONE]\n\n",
        chunk("a") + chunk("b") + b"data: [DONE]\n\n",
        chunk("a") + chunk("b") + chunk(None),
        chunk("a") + chunk("b", "other") + chunk(None) + b"data: [DONE]\n\n",
        WHOLE + chunk("c"),
        b"<html>" + WHOLE,
        b"",
    ],
)
def test_an_answer_that_is_not_whole_is_unsound(body: bytes) -> None:
    with pytest.raises(Unsound):
        judge(PLAIN, 200, HEADERS, body)


def refusal(**changes: Any) -> bytes:
    told = {"reason": "streams_exhausted", "limit": 12, "in_use": 12, "requested": 1, **changes}
    error = {"message": "m", "type": "overloaded", "code": told["reason"], "weir": told}
    return b"event: error\ndata: " + json.dumps({"error": error}).encode() + b"\n\n"


def test_a_refusal_is_well_formed_or_unsound() -> None:
    headers = {"x-request-id": "r", "retry-after": "1", "x-weir-reason": "streams_exhausted"}
    assert judge(PLAIN, 429, headers, refusal())[:2] == (Kind.REFUSED, "streams_exhausted")
    for status, fields, body in (
        (503, headers, refusal()),
        (429, {**headers, "retry-after": "61"}, refusal()),
        (429, {**headers, "x-weir-reason": "other"}, refusal()),
        (429, {**headers, "x-request-id": ""}, refusal()),
        (429, headers, refusal(in_use=11)),
        (429, headers, b"<html>429</html>"),
        (502, headers, b"<html>502</html>"),
        (400, headers, b"{}"),
    ):
        with pytest.raises(Unsound):
            judge(PLAIN, status, fields, body)


def test_an_answer_of_an_engine_that_died_may_not_look_whole() -> None:
    with pytest.raises(Unsound):
        judge(replace(PLAIN, fail_after=2), 200, HEADERS, WHOLE)


# -- the watch ---------------------------------------------------------------------------------


def watched() -> tuple[Watch, list[str], LimitsInForce]:
    problems: list[str] = []
    limits = LimitsInForce()
    bed: Any = SimpleNamespace(local=False, engines={})
    watch = Watch(bed, Causes(), limits, set, problems.append, {"gpu-0": Seen()})
    return watch, problems, limits


def stats(**changes: int) -> dict[str, int]:
    full = {"active": MAX_STREAMS, "peak": MAX_STREAMS, "total": 100, "crashed": 0}
    tokens = {"kv_tokens_used": MAX_TOKENS, "kv_tokens_peak": MAX_TOKENS}
    return {**full, **tokens, **changes}


@pytest.mark.parametrize(
    "over", [{"peak": MAX_STREAMS + 1}, {"kv_tokens_peak": MAX_TOKENS + 4_000}, {"crashed": 1}]
)
def test_one_stream_too_many_is_seen_and_told_once(over: dict[str, int]) -> None:
    watch, problems, _ = watched()
    watch.check_engine("gpu-0", stats(), 1.0)
    assert problems == []
    watch.check_engine("gpu-0", stats(**over), 2.0)
    watch.check_engine("gpu-0", stats(**over), 3.0)
    assert len(problems) == 1


def test_what_begins_under_lowered_limits_must_fit_them() -> None:
    watch, problems, limits = watched()
    limits.lower("gpu-0", Lowered(5, MAX_TOKENS, is_open=True, since=100.0))
    later = 100.0 + SETTLED_S + 0.1
    watch.check_engine("gpu-0", stats(active=9), later)
    watch.check_engine("gpu-0", stats(active=8), later)
    assert problems == [], "what ran before runs on"
    watch.check_engine("gpu-0", stats(active=5, total=101), later)
    assert problems == []
    watch.check_engine("gpu-0", stats(active=6, total=102), later)
    assert len(problems) == 1


def test_drift_and_counts_below_zero_are_seen() -> None:
    watch, problems, _ = watched()
    backend = {"name": "gpu-0", "streams": 1, "tokens": 5, "draining": 0}
    watch.check_service(0, [backend], 1.0)
    assert problems == []
    watch.check_service(1, [backend], 1.0)
    watch.check_service(0, [{**backend, "tokens": -5}], 1.0)
    watch.check_service(0, [{**backend, "draining": 2}], 1.0)
    assert len(problems) == 3


def test_a_stream_that_stays_unknown_to_the_service_is_told_once() -> None:
    watch, problems, _ = watched()
    watch.check_known({"a", "b"}, {"a"}, 1.0)
    watch.check_known({"a", "b"}, {"a", "b"}, 1.5)
    watch.check_known({"a", "b"}, {"a"}, 2.0)
    watch.check_known({"a", "b"}, {"a"}, 2.0 + ADOPTED_S)
    assert problems == [], "it was adopted in between"
    for n in range(3):
        watch.check_known({"a", "b"}, {"a"}, 2.1 + ADOPTED_S + n)
    assert len(problems) == 1
    watch.check_known({"a"}, {"a"}, 20.0)
    assert watch.unknown_since == {}


# -- HTTP/2 ------------------------------------------------------------------------------------


def frame(kind: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, 0]) + bytes(4) + payload


def test_goaway_is_taken_out_of_the_frames_wherever_it_is_split() -> None:
    wire = frame(0, b"one") + frame(GOAWAY, bytes([0, 0, 0, 1, 0, 0, 0, 0])) + frame(0, b"two")
    for at in range(1, len(wire)):
        here, there = socket.socketpair()
        with here, there:
            frames = Frames(here)
            there.sendall(wire[:at])
            got = frames.recv(65_536) if at >= 12 else b""
            there.sendall(wire[at:])
            there.shutdown(socket.SHUT_WR)
            while piece := frames.recv(65_536):
                got += piece
            assert got == frame(0, b"one") + frame(0, b"two")
            assert frames.last_taken == 1


def test_a_frame_that_tells_of_a_break_is_sound_and_nothing_may_follow_it() -> None:
    told = b'data: {"error":{"code":"upstream_truncated","message":"x"}}\n\n'
    assert frames_of(told, "r") == Parts(0, told="upstream_truncated")
    for after in (b"data: [DONE]\n\n", told):
        with pytest.raises(Unsound):
            frames_of(told + after, "r")
    with pytest.raises(Unsound):
        frames_of(told.replace(b"upstream_truncated", b"other"), "r")


def test_comments_and_a_clean_end_after_a_break_are_for_routes_with_heartbeats_alone() -> None:
    ping, told = b": ping\n\n", b'data: {"error":{"code":"upstream_truncated"}}\n\n'
    beaten = ping + chunk("a") + ping + chunk("b") + chunk(None) + b"data: [DONE]\n\n"
    assert judge(BEATS, 200, HEADERS, beaten)[0] is Kind.COMPLETE
    assert judge(BEATS, 200, HEADERS, chunk("a") + ping + told)[0] is Kind.CUT
    dies = replace(BEATS, fail_after=1)
    assert judge(dies, 200, HEADERS, chunk("a") + told)[0] is Kind.ENGINE_FAILED
    refused = ping + b'data: {"error":{"code":400}}\n\n'
    nonsense = replace(BEATS, nonsense=True)
    assert judge(nonsense, 200, HEADERS, refused)[0] is Kind.ENGINE_FAILED
    assert frames_of(chunk("a") + b": pi", "r", beats=True) == Parts(1)
    for request, body in (
        (PLAIN, beaten), (PLAIN, chunk("a") + told), (BEATS, beaten + ping), (BEATS, refused),
        (BEATS, chunk("a") + refused), (nonsense, ping + told), (BEATS, chunk("a") + ping),
    ):  # fmt: skip
        with pytest.raises(Unsound):
            judge(request, 200, HEADERS, body)
