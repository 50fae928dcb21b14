"""The agent's rounds, ticked by hand against a service on a real socket."""

import json
import logging
import os
import subprocess
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from control.agent.agent import Agent
from control.agent.checkpoint import Checkpoint
from control.agent.daemon import build
from control.client import ServiceError
from control.config.load import parse
from control.core.node import MemoryState
from tests.harness.service import RecordingService

STARTED = 1_700_000_000.0


class Bench:
    """A state folder with its logs, and an agent that ticks by hand."""

    def __init__(self, folder: Path) -> None:
        backends = [{"name": "gpu-0", "url": "http://127.0.0.1:8000"}]
        self.config = parse(
            {
                "state": str(folder / "s"),
                "node": "vm",
                "pools": {"default": {"backends": backends}},
            },
            "weir.yml",
        )
        for name in ("log", "run", "agent"):
            (self.config.state / name).mkdir(parents=True)
        self.log = self.config.state / "log" / "access.log"
        self.errors = self.config.state / "log" / "error.log"
        self.checkpoint = self.config.state / "agent" / "checkpoint.json"
        self.service = RecordingService(self.config.admission_socket)
        self.now = 0.0
        self.agent = self.new_agent()

    def new_agent(self) -> Agent:
        return build(self.config, Checkpoint(self.checkpoint), None, STARTED)

    def tick(self, after_s: float = 0.1) -> bool:
        self.now += after_s
        return self.agent.tick(self.now, STARTED + self.now)

    def write(self, *ids: str) -> None:
        with self.log.open("a") as log:
            for each in ids:
                fields = {"ts": STARTED, "id": each, "route": "/x", "completion": "OK"}
                log.write(json.dumps(fields) + "\n")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.service.stop()


def dead_session() -> str:
    process = subprocess.Popen(["true"])
    process.wait()
    return f"vm/{process.pid}/1700000000000"


def test_a_round_delivers_watches_and_reports(bench: Bench) -> None:
    bench.write("a")
    dead = dead_session()
    bench.service.sessions = [{"id": dead, "leases": 1, "silent_s": 0.0}]
    assert bench.tick() is False
    assert bench.service.ids == ["a"]
    assert bench.service.ended == [dead]
    [(name, report)] = bench.service.reports
    assert name == "vm"
    assert report["agent"] == {"pid": os.getpid(), "started": STARTED}
    assert report["tailer"]["lines"] == 1 and report["tailer"]["offset"] > 0
    assert report["memory"]["state"] in set(MemoryState)
    assert report["memory"]["processes"][-1]["role"] == "agent"
    assert bench.service.batches == [(f"vm/{os.getpid()}/1700000000000", 1)]


def test_it_reports_each_second_and_delivers_at_once(bench: Bench) -> None:
    for n in range(30):
        bench.write(f"n{n}")
        bench.tick()
        assert bench.service.ids[-1] == f"n{n}"
    assert len(bench.service.reports) == 3


def test_a_dead_worker_is_found_in_a_quarter_of_a_second(bench: Bench) -> None:
    bench.tick()
    bench.service.sessions = [{"id": dead_session(), "leases": 1, "silent_s": 0.0}]
    bench.tick()
    assert bench.service.ended == []
    bench.tick(after_s=0.15)
    assert len(bench.service.ended) == 1


def test_a_crash_in_the_error_log_is_looked_after_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.tick()
    dead = dead_session()
    pid = dead.split("/")[1]
    bench.service.sessions = [{"id": dead, "leases": 1, "silent_s": 0.0}]
    with bench.errors.open("a") as errors:
        errors.write(f"2026/01/01 00:00:00 [alert] 1#1: worker process {pid} exited on signal 9\n")
    bench.tick(after_s=0.01)
    assert bench.service.ended == [dead]
    assert f"worker_crashed pid={pid} signal=9" in caplog.text


def test_a_crash_line_ends_no_session_of_a_worker_that_lives(bench: Bench) -> None:
    """An old line that is read again: its pid may be a new worker's."""
    bench.tick()
    mine = f"vm/{os.getpid()}/9999999999999"
    bench.service.sessions = [{"id": mine, "leases": 1, "silent_s": 0.0}]
    with bench.errors.open("a") as errors:
        errors.write(f"[alert] 1#1: worker process {os.getpid()} exited on signal 9\n")
    bench.tick()
    assert bench.service.ended == []


def test_a_service_that_is_away_is_said_once_and_so_is_its_return(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.write("a")
    bench.tick()
    bench.service.stop()
    bench.write("b", "c")
    for _ in range(50):
        bench.tick()
    bench.service.start()
    bench.write("d")
    bench.tick(after_s=1.0)
    bench.tick()
    assert bench.service.ids == ["a", "b", "c", "d"]
    assert caplog.text.count("service_away") == 1
    assert caplog.text.count("service_back") == 1


def test_it_asks_less_and_less_often_but_once_a_second(bench: Bench) -> None:
    bench.service.answer = (503, b"{}")
    bench.write("a")
    asked = []
    for n in range(100):
        before = bench.service.requests
        bench.tick()
        if bench.service.requests > before:
            asked.append(n)
    waits = [after - before for before, after in pairwise(asked)]
    for wait, expected in zip(waits, (1, 2, 4, 8, 10, 10, 10), strict=False):
        assert expected <= wait <= expected + 1, waits  # tenths of a second, as floats are
    assert len(waits) >= 9


def test_the_checkpoint_follows_what_the_service_has_taken(bench: Bench) -> None:
    bench.write("a")
    bench.tick()
    bench.service.stop()
    bench.write("b")
    bench.tick()
    bench.agent = bench.new_agent()
    bench.service.start()
    bench.tick()
    assert bench.service.ids == ["a", "b"]


def test_a_damaged_checkpoint_means_the_end_of_the_log(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write("a")
    bench.errors.write_text("[alert] 1#1: worker process 7 exited on signal 9\n")
    bench.checkpoint.write_bytes(b'{"logs": {"access.l')
    bench.agent = bench.new_agent()
    bench.tick()
    assert bench.service.ids == ["a"], "16 MB before it"
    assert caplog.text.count("checkpoint_damaged") == 1
    assert "worker_crashed" not in caplog.text
    assert Checkpoint(bench.checkpoint).load()["access.log"][0].offset > 0


def test_a_defect_in_one_part_stops_no_other(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Defective:
        report = None

        def tick(self, *_: float) -> None:
            raise ZeroDivisionError

    bench.service.sessions = [{"id": dead_session(), "leases": 1, "silent_s": 0.0}]
    bench.write("a")
    for part in ("_memory", "_crash_log"):
        monkeypatch.setattr(bench.agent, part, Defective())
    for _ in range(20):
        bench.tick()
    assert bench.service.ids == ["a"] and len(bench.service.ended) == 1
    assert len(bench.service.reports) == 2
    assert caplog.text.count("round_failed part=_look_for_crashes") == 5, "told 5 times of 20"


def test_what_is_left_is_delivered_at_the_end(bench: Bench) -> None:
    bench.tick()
    bench.write(*(f"n{n}" for n in range(3_000)))
    while bench.agent.finish(bench.now):
        pass
    assert len(bench.service.ids) == 3_000
    bench.service.stop()
    bench.write("last")
    with pytest.raises(ServiceError):
        bench.agent.finish(bench.now)
    bench.service.start()
    assert bench.agent.finish(bench.now) is False
    assert bench.service.ids[-1] == "last"
