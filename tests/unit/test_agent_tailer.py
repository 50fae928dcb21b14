"""The tailer: at least once, disconnects first, nothing lost while the service is away."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from control.agent.follower import Follower
from control.agent.tailer import MAX_BATCH, Tailer
from control.client import ServiceClient, ServiceError
from tests.harness.service import RecordingService

SESSION = "vm/7/1700000000000"


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RecordingService]:
    service = RecordingService(tmp_path / "a.sock")
    yield service
    service.stop()


class Bench:
    """A log, and a tailer that ticks by hand."""

    def __init__(self, folder: Path, service: RecordingService) -> None:
        self.log = folder / "access.log"
        self.client = ServiceClient(f"unix:{service.path}")
        self.follower = Follower(self.log, [])
        self.tailer = Tailer(self.follower, self.client, SESSION)
        self.now = 0.0

    def write(self, *lines: bytes) -> None:
        with self.log.open("ab") as log:
            log.write(b"".join(line + b"\n" for line in lines))

    def tick(self) -> bool:
        self.now += 0.1
        return self.tailer.tick(self.now)

    def offset(self) -> int:
        return self.follower.positions()[0].offset


@pytest.fixture
def bench(tmp_path: Path, service: RecordingService) -> Iterator[Bench]:
    bench = Bench(tmp_path, service)
    yield bench
    bench.follower.close()
    bench.client.close()


def line(name: str, **fields: Any) -> bytes:
    whole = {
        "ts": 1_700_000_000.0, "id": name, "route": "/v1/chat/completions", "grant": "1",
        "status": "200", "completion": "OK", "verdict": "completed", "reason": "",
        **fields,
    }  # fmt: skip
    return json.dumps(whole).encode()


def test_each_final_line_is_a_release_by_the_log(bench: Bench, service: RecordingService) -> None:
    bench.write(line("a"), line("b", verdict="", completion="", grant=""))
    assert bench.tick() is False
    assert sorted(service.ops, key=lambda op: str(op["id"])) == [
        {"op": "release", "id": "a", "verdict": "completed", "witness": "log", "grant": 1},
        {"op": "release", "id": "b", "verdict": "client_abort", "witness": "log"},
    ]
    assert service.batches == [(SESSION, 2)]


def test_those_who_left_come_first_and_the_rest_in_order(
    bench: Bench, service: RecordingService
) -> None:
    left = {"verdict": "client_abort"}
    bench.write(line("a"), line("b", **left), line("c"), line("d", **left), line("e"))
    bench.tick()
    assert service.ids == ["b", "d", "a", "c", "e"]


def test_refused_and_broken_lines_are_counted_and_cost_no_other(
    bench: Bench, service: RecordingService, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(
        line("a"), b"nonsense", line("b", route=""), b"[]", line("../x"), b"\xff",
        line("c", grant="", verdict="", reason="streams_exhausted"), line("d"),
    )  # fmt: skip
    bench.tick()
    assert service.ids == ["a", "d"]
    assert (bench.tailer.counts.lines, bench.tailer.counts.broken) == (8, 4)
    assert caplog.text.count("line_broken") == 1, "told once, not for each"
    assert bench.offset() == bench.log.stat().st_size


def test_a_line_that_follows_half_a_one_without_a_newline_is_read(
    bench: Bench, service: RecordingService
) -> None:
    """nginx wrote what the disk had room for, and went on when there was more."""
    bench.write(line("a")[:40] + line("b"), line("c") + line("d")[:-5], b"{" + line("e"))
    bench.tick()
    assert [op["id"] for op in service.ops] == ["b", "c", "e"]
    assert (bench.tailer.counts.lines, bench.tailer.counts.broken) == (3, 3)


def test_nothing_is_sent_where_nothing_was_written(bench: Bench, service: RecordingService) -> None:
    bench.tick()
    bench.write(line("a", route=""))
    bench.tick()
    assert service.batches == []
    assert bench.offset() == bench.log.stat().st_size


def test_a_batch_has_at_most_five_hundred(bench: Bench, service: RecordingService) -> None:
    names = [f"n{n}" for n in range(2 * MAX_BATCH + 1)]
    bench.write(*map(line, names))
    while bench.tick():
        pass
    assert service.ids == names
    assert max(size for _, size in service.batches) == MAX_BATCH


def test_only_the_first_witness_counts_as_a_release(bench: Bench) -> None:
    bench.write(line("a"), line("b"))
    bench.tick()
    bench.write(line("b"), line("c"))
    bench.tick()
    assert (bench.tailer.counts.lines, bench.tailer.counts.released) == (4, 3)


def test_the_position_waits_for_a_service_that_is_away(
    bench: Bench, service: RecordingService
) -> None:
    bench.write(line("a"))
    bench.tick()
    before = bench.offset()
    service.stop()
    bench.write(line("b"), line("c"))
    for _ in range(3):
        with pytest.raises(ServiceError):
            bench.tick()
        bench.write(line("later"))
    assert bench.offset() == before
    assert bench.tailer.counts.lines == 3, "nothing is read on meanwhile"
    service.start()
    bench.tick()
    assert service.ids == ["a", "b", "c"]
    bench.tick()
    assert service.ids == ["a", "b", "c", "later", "later", "later"]
    assert bench.offset() == bench.log.stat().st_size


def test_an_answer_that_is_lost_is_asked_for_again(bench: Bench, service: RecordingService) -> None:
    bench.write(line("a"))
    service.swallow = 2
    with pytest.raises(ServiceError):
        bench.tick()
    assert bench.offset() == 0
    bench.tick()
    assert service.ids == ["a", "a", "a"], "more than once, which is harmless"
    assert bench.offset() > 0


@pytest.mark.parametrize(
    "answer",
    [
        (500, b""), (503, b'{"detail": "the journal cannot be written"}'), (401, b"{}"),
        (200, b""), (200, b"nonsense"), (200, b"null"), (200, b'{"results": []}'),
        (200, b'{"results": [7]}'), (200, b'{"results": null}'), (302, b""),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_loses_nothing(
    bench: Bench, service: RecordingService, answer: tuple[int, bytes]
) -> None:
    bench.write(line("a"))
    service.answer = answer
    with pytest.raises(ServiceError):
        bench.tick()
    assert bench.offset() == 0
    service.answer = None
    bench.tick()
    assert service.ids == ["a"] and bench.offset() > 0


def test_a_part_of_a_round_that_was_delivered_is_not_sent_again(
    bench: Bench, service: RecordingService
) -> None:
    names = [f"n{n}" for n in range(MAX_BATCH + 5)]
    bench.write(*map(line, names))

    real = service.do
    calls = iter([True, False])

    def once(method: str, target: str, body: bytes) -> tuple[int, Any]:
        return real(method, target, body) if next(calls) else (503, {})

    service.do = once  # type: ignore[method-assign]
    with pytest.raises(ServiceError):
        bench.tick()
    assert bench.offset() == 0, "the round as a whole is not done"
    service.do = real  # type: ignore[method-assign]
    bench.tick()
    assert service.ids == names


def test_an_operation_that_the_service_cannot_read_is_counted_and_passed(
    bench: Bench, service: RecordingService, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(line("a"))
    service.answer = (200, b'{"results": [{"decision": "invalid", "message": "grant: no"}]}')
    bench.tick()
    assert bench.tailer.counts.broken == 1 and bench.offset() > 0
    assert "grant: no" in caplog.text


def test_the_report_says_where_it_is(bench: Bench, service: RecordingService) -> None:
    assert bench.tailer.report(0)["inode"] == 0
    bench.write(line("a", ts=1_000.0), b"nonsense", b"x" * (65 << 10))
    bench.tick()
    size = bench.log.stat().st_size
    assert bench.tailer.report(wall=1_500.0) == {
        "file": str(bench.log), "inode": bench.log.stat().st_ino, "offset": size,
        "lag_bytes": 0, "lag_seconds": 0.0, "lines": 2, "released": 1, "broken": 1,
        "oversized": 1, "gaps": 0,
    }  # fmt: skip


def test_the_lag_is_the_age_of_the_oldest_line_that_is_held(
    bench: Bench, service: RecordingService
) -> None:
    service.stop()
    bench.write(line("a", ts=1_002.0), line("b", ts=1_001.5, verdict="client_abort"))
    with pytest.raises(ServiceError):
        bench.tick()
    report = bench.tailer.report(wall=1_010.0)
    assert (report["lag_seconds"], report["lag_bytes"]) == (8.5, bench.log.stat().st_size)
    assert bench.tailer.report(wall=900.0)["lag_seconds"] == 0.0, "a clock that was set back"


def test_of_lines_that_were_not_read_the_lag_is_that_of_the_newest_before(bench: Bench) -> None:
    bench.write(line("a", ts=1_000.0))
    bench.tick()
    bench.write(line("b", ts=1_001.0))
    assert bench.tailer.report(wall=1_003.0)["lag_seconds"] == 3.0


def test_no_log_line_of_the_agent_quotes_the_access_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    bench.write(b'{"id": "a b", "prompt": "SECRET"}', b"SECRET", line("a", scene="SECRET"))
    bench.tick()
    assert "SECRET" not in caplog.text
