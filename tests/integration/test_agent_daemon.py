"""``weir agent`` as a process: killed, stopped, started twice. The service is a stand-in."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from tests.harness.node import WEIR, wait_for
from tests.harness.service import RecordingService


class Daemon:
    """A state folder, what nginx writes there, and agents started on it."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "s"
        self.log = self.state / "log" / "access.log"
        self.log.parent.mkdir(parents=True)
        self.file = folder / "weir.yml"
        backends = [{"name": "gpu-0", "url": "http://127.0.0.1:8000"}]
        config = {"state": str(self.state), "pools": {"default": {"backends": backends}}}
        self.file.write_text(yaml.safe_dump(config))
        self.service = RecordingService(self.state / "run" / "admission.sock")
        self.pid_file = self.state / "run" / "agent.pid"
        self.said = folder / "agent.log"
        self.processes: list[subprocess.Popen[bytes]] = []
        self._writer = -1

    def start(self, ready: bool = True) -> "subprocess.Popen[bytes]":
        self.pid_file.unlink(missing_ok=True)
        with self.said.open("ab") as said:
            process = subprocess.Popen(
                [*WEIR, "agent", "-c", str(self.file)], stdin=subprocess.DEVNULL,
                stdout=said, stderr=said,
            )  # fmt: skip
        self.processes.append(process)
        if ready:
            wait_for(self.pid_file.exists, 15)
            assert int(self.pid_file.read_text()) == process.pid
        return process

    def reopen(self) -> None:
        """nginx's USR1."""
        if self._writer >= 0:
            os.close(self._writer)
        self._writer = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, *ids: str) -> None:
        if self._writer < 0:
            self.reopen()
        for each in ids:
            fields = {
                "ts": round(time.time(), 3), "id": each, "pid": 7, "route": "/v1/chat/completions",
                "grant": "1", "status": "200", "completion": "OK", "verdict": "completed",
            }  # fmt: skip
            os.write(self._writer, json.dumps(fields).encode() + b"\n")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
        self.service.stop()
        if self._writer >= 0:
            os.close(self._writer)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    yield daemon
    daemon.close()


def ends(process: "subprocess.Popen[bytes]", within_s: float = 15.0) -> int:
    return process.wait(within_s)


@pytest.mark.load
def test_every_line_is_delivered_over_five_rotations_and_ten_kills(daemon: Daemon) -> None:
    """Casebook 26 d, at any moment."""
    total, rotations, kills = 100_000, 5, 10
    names = [f"{n:032x}" for n in range(total)]
    part = total // (rotations * kills)
    daemon.write(names[0])
    process = daemon.start()
    killed = rotated = 0
    for begin in range(1, total, part):
        ids = names[begin : begin + part]
        if begin // part % kills == kills - 1 and rotated < rotations:
            rotated += 1
            for n in range(rotated, 0, -1):
                older = daemon.log.with_name(f"access.log.{n}")
                if older.exists():
                    older.rename(daemon.log.with_name(f"access.log.{n + 1}"))
            daemon.log.rename(daemon.log.with_name("access.log.1"))
            daemon.write(*ids[:20])  # before USR1
            daemon.reopen()
            daemon.write(*ids[20:])
        else:
            daemon.write(*ids)
        if begin // part % rotations == rotations - 1 and killed < kills:
            killed += 1
            process.kill()
            process.wait()
            process = daemon.start()
    assert (rotated, killed) == (rotations, kills)
    wait_for(lambda: len(daemon.service.seen) == total, 20)
    assert daemon.service.seen == set(names)
    process.send_signal(signal.SIGTERM)
    assert ends(process) == 0
    repeated = len(daemon.service.ids) - total
    assert repeated < kills * 3_000, "a kill repeats a round, not a file"


def test_sigterm_delivers_what_is_left_and_leaves_nothing_behind(daemon: Daemon) -> None:
    process = daemon.start()
    process.send_signal(signal.SIGSTOP)
    names = [f"n{n}" for n in range(2_000)]
    daemon.write(*names)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGCONT)
    assert ends(process) == 0
    assert daemon.service.ids == names
    assert not daemon.pid_file.exists()
    daemon.start()
    daemon.write("next")
    wait_for(lambda: daemon.service.ids[-1] == "next")
    assert len(daemon.service.ids) == 2_001, "nothing was read twice"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_its_service_it_starts_and_stops_and_loses_nothing(
    daemon: Daemon, number: signal.Signals
) -> None:
    daemon.service.stop()
    process = daemon.start()
    daemon.write("a")
    time.sleep(0.3)
    process.send_signal(number)
    assert ends(process) == 0
    assert daemon.said.read_text().count("service_away") == 1
    daemon.service.start()
    daemon.start()
    wait_for(lambda: daemon.service.ids == ["a"])


def test_a_killed_agent_is_replaced_at_once(daemon: Daemon) -> None:
    daemon.write("a")
    process = daemon.start()
    wait_for(lambda: daemon.service.ids == ["a"])
    process.kill()
    process.wait()
    daemon.write("b")
    daemon.start()
    wait_for(lambda: daemon.service.ids == ["a", "b"])


def test_a_second_agent_on_a_state_folder_is_refused_in_words(daemon: Daemon) -> None:
    first = daemon.start()
    second = subprocess.run(
        [*WEIR, "agent", "-c", str(daemon.file)], capture_output=True, text=True, timeout=15,
        check=False,
    )  # fmt: skip
    assert second.returncode == 1
    assert f"pid {first.pid}" in second.stderr and str(daemon.state) in second.stderr
    assert "Traceback" not in second.stderr
    assert daemon.pid_file.read_text() == f"{first.pid}\n"
    daemon.write("a")
    wait_for(lambda: daemon.service.ids == ["a"])


def test_a_service_that_hangs_stops_neither_its_start_nor_its_end(daemon: Daemon) -> None:
    daemon.service.stop()

    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(daemon.service.path))
        silent.listen(8)
        began = time.monotonic()
        process = daemon.start()
        assert time.monotonic() - began < 10
        process.send_signal(signal.SIGTERM)
        assert ends(process) == 0
    assert "timed out" in daemon.said.read_text()


def test_an_idle_agent_takes_little(daemon: Daemon) -> None:
    process = psutil.Process(daemon.start().pid)
    time.sleep(0.5)
    before = sum(process.cpu_times()[:2])
    time.sleep(3)
    assert sum(process.cpu_times()[:2]) - before < 3 * 0.15
    assert process.memory_full_info().uss < 80 << 20
    assert process.num_fds() < 20


def test_a_wrong_file_is_refused_with_every_fault(daemon: Daemon) -> None:
    daemon.file.write_text(
        "agent: {memory_limit: lots, memory_alarm: 0.95, webhook: nowhere, service_memory: 0}\n"
        "pools: {default: {backends: [{name: a, url: 'http://x:1'}]}}\n"
    )
    done = subprocess.run(
        [*WEIR, "agent", "-c", str(daemon.file)], capture_output=True, text=True, timeout=15,
        check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "Traceback" not in done.stderr
    for path in ("memory_limit", "memory_full", "webhook", "service_memory"):
        assert f"  agent.{path}: " in done.stderr, done.stderr
