"""How far streams have come: what nginx's workers tell, and what the service makes of it."""

import importlib
import json
from itertools import pairwise
from typing import Any

import pytest

from control.api import wire
from control.core.change import DRAINING, ENDED, Change
from control.core.lease import Lease
from control.core.verdict import Verdict, Witness
from control.places import LUA
from control.progress import ProgressBoard, Report


def _lua_jit() -> Any:
    for name in ("luajit21", "luajit20"):
        try:
            return importlib.import_module(f"lupa.{name}")
        except ImportError:
            continue
    pytest.skip("lupa has no LuaJIT here", allow_module_level=True)


class Worker:
    """``weir.leases`` and ``weir.progress`` as one nginx worker has them, on a clock of ours."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self._lua = _lua_jit().LuaRuntime()
        self._lua.globals().now = lambda: self.now
        self._lua.execute(f'ngx = {{ now = now }} package.path = "{LUA}/?.lua;" .. package.path')
        self._leases = self._lua.eval('(require("weir.leases"))')
        self._progress = self._lua.eval('(require("weir.progress"))')

    def open(self, lease_id: str) -> Any:
        entry = self._leases.open(lease_id)
        self._leases.claim(entry, "p", "gpu-0", "QA", 7, 1)
        return entry

    def close(self, lease_id: str) -> None:
        self._leases.close(lease_id)

    def told(self) -> list[Any]:
        members = self._progress.take()
        return json.loads(f"[{','.join(members.values())}]") if members else []


def test_only_streams_of_more_than_five_seconds_are_told_of() -> None:
    worker = Worker()
    worker.open("old")
    worker.now += 5.1
    worker.open("young")
    assert worker.told() == [["old", 0, 0, 5100]]


def test_a_stream_is_told_of_at_most_every_five_seconds() -> None:
    worker = Worker()
    worker.open("a")
    told_at = []
    for _ in range(300):
        worker.now += 0.1
        told_at += [worker.now for _ in worker.told()]
    assert 5 <= len(told_at) <= 6
    assert all(b - a >= 5 for a, b in pairwise(told_at))


def test_bytes_events_and_the_silence_since_the_last_are_told() -> None:
    worker = Worker()
    entry = worker.open("a")
    entry.seen = worker._lua.table(events=12)
    entry.bytes, entry.heard = 3_456, 1_002.5
    plain = worker.open("json")
    plain.bytes, plain.heard = 10, 1_001.0
    worker.now += 6
    assert sorted(worker.told()) == [["a", 3_456, 12, 3_500], ["json", 10, None, 5_000]]


def test_many_are_told_of_by_and_by_and_those_that_have_ended_are_not() -> None:
    worker = Worker()
    for n in range(450):
        worker.open(f"s{n}")
    worker.now += 6
    first = worker.told()
    known = {entry[0] for entry in first}
    gone = [f"s{n}" for n in range(450) if f"s{n}" not in known][:50]
    for lease_id in gone:
        worker.close(lease_id)
    worker.open(gone[0])  # another stream under the same id is not that one
    second, third = worker.told(), worker.told()
    assert [len(part) for part in (first, second, third)] == [200, 200, 0]
    names = {entry[0] for entry in first + second}
    assert len(names) == 400 and not names & set(gone)


def test_a_clock_that_is_set_back_silences_nobody() -> None:
    worker = Worker()
    worker.open("a")
    worker.now += 6
    assert worker.told()
    worker.now -= 100_000
    worker.told()
    worker.open("b")
    worker.now += 6
    assert "b" in [entry[0] for entry in worker.told()]


# -- the service ---------------------------------------------------------------------------------


def read(progress: str, ops: str = "[]") -> wire.Told:
    return wire.read_batch(f'{{"session":"n/1/2","ops":{ops},"progress":{progress}}}'.encode())


def test_progress_is_read() -> None:
    told = read('[["a",10,2,1500],["b",7,null,0]]')
    assert told.progress == [Report("a", 10, 2, 1.5), Report("b", 7, None, 0.0)]


@pytest.mark.parametrize(
    "nonsense",
    ["7", "null", '"x"', "{}", "[]", '["a"]', '["a",1,2]', '["a",-1,2,3]', '["a",1.5,2,3]',
     '["a",1,-2,3]', '["a",1,2,-3]', '["a",1,2,null]', '["../x",1,2,3]', '["",1,2,3]',
     '[7,1,2,3]', '["a",1,2,3,4]', '["a",1e400,2,3]', '["a",true,2,3]'],
)  # fmt: skip
def test_an_entry_that_makes_no_sense_spoils_nothing_else(nonsense: str) -> None:
    release = '[{"op":"release","id":"r","verdict":"completed"}]'
    told = read(f'[["a",1,2,3],{nonsense},["b",4,5,6]]', release)
    assert [report.id for report in told.progress] == ["a", "b"]
    [op] = told.ops
    assert isinstance(op, wire.ReleaseOp)


@pytest.mark.parametrize("nonsense", ["7", "null", '"x"', "{}", "true"])
def test_progress_that_is_no_list_spoils_nothing_else(nonsense: str) -> None:
    told = read(nonsense, '[{"op":"release","id":"r","verdict":"completed"}]')
    assert list(told.progress) == []
    assert isinstance(told.ops[0], wire.ReleaseOp)


def test_a_session_speaks_for_its_own_streams_only() -> None:
    board = ProgressBoard()
    board.note([Report("mine", 1, 1, 0.0), Report("other", 1, 1, 0.0)], {"mine"}, 5.0)
    assert board.of("mine") and not board.of("other")


@pytest.mark.parametrize(
    ("passed", "events", "phase"),
    [(0, 0, "prefill"), (0, None, "prefill"), (90, 0, "prefill"), (90, 3, "stream"),
     (90, None, "stream")],
)  # fmt: skip
def test_comments_before_the_first_event_are_no_answer(
    passed: int, events: int | None, phase: str
) -> None:
    board = ProgressBoard()
    board.note([Report("a", passed, events, 12.5)], {"a"}, 100.0)
    progress = board.of("a")
    assert progress and progress.phase == phase


def test_progress_is_forgotten_with_the_lease() -> None:
    board = ProgressBoard()
    lease = Lease("a", 1, "p", "gpu-0", "", "QA", 7, "n/1/2", 0.0)
    board.note([Report("a", 1, 1, 0.0)], {"a"}, 5.0)
    ends = (Verdict.KILLED, Witness.ADMIN)
    board.forget([Change(DRAINING, 6.0, lease, "p", "gpu-0", *ends)])
    assert board.of("a")
    board.forget([Change(ENDED, 6.1, lease, "p", "gpu-0", *ends)])
    assert board.of("a") is None
