"""The worker watch: whose process is gone, its session ends. Real processes."""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from control.agent.crash_log import Crash, CrashLog
from control.agent.follower import Follower
from control.agent.worker_watch import Worker, WorkerWatch, gone
from control.client import ServiceClient, ServiceError
from tests.harness.node import wait_for
from tests.harness.service import RecordingService

OWN = "vm/1/5"


@pytest.fixture
def start() -> Iterator[Callable[[], "subprocess.Popen[bytes]"]]:
    processes: list[subprocess.Popen[bytes]] = []

    def start() -> "subprocess.Popen[bytes]":
        processes.append(subprocess.Popen(["sleep", "60"]))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RecordingService]:
    service = RecordingService(tmp_path / "a.sock")
    yield service
    service.stop()


@pytest.fixture
def watch(tmp_path: Path, service: RecordingService) -> WorkerWatch:
    return WorkerWatch(ServiceClient(f"unix:{service.path}"), "vm", OWN, tmp_path / "nginx.pid")


def worker(pid: int, started: float | None = None) -> Worker:
    started = time.time() if started is None else started
    return Worker(f"vm/{pid}/{round(started * 1000)}", pid, started)


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


Start = Callable[[], "subprocess.Popen[bytes]"]


def test_a_worker_that_lives_is_not_gone(start: Start) -> None:
    assert gone([worker(start().pid), worker(os.getpid()), worker(1)], None) == []


def test_a_worker_that_was_reaped_is_gone(start: Start) -> None:
    alive, dead = worker(start().pid), worker(dead_pid())
    assert gone([alive, dead], None) == [dead]


def test_a_worker_that_nobody_has_reaped_yet_is_gone(start: Start) -> None:
    process = start()
    process.kill()
    wait_for(lambda: Path(f"/proc/{process.pid}/stat").read_text().split()[2] == "Z")
    zombie = worker(process.pid)
    assert gone([zombie], None) == [zombie]
    assert gone([zombie], os.getpid()) == [zombie], "also as a child of nginx's master"


def test_a_worker_whose_pid_belongs_to_another_now_is_gone(start: Start) -> None:
    old = worker(start().pid, started=time.time() - 60)
    assert gone([old], None) == [old]
    assert gone([old], 1) == [old]


def test_a_clock_that_was_set_makes_no_worker_another(start: Start) -> None:
    """Its start and its process's differ by an hour, but nginx's master is its parent."""
    pid = start().pid
    for step in (-3_600, 3_600):
        assert gone([worker(pid, time.time() + step)], os.getpid()) == []


def test_of_two_sessions_with_one_pid_only_the_later_can_live(start: Start) -> None:
    pid = start().pid
    old, new = worker(pid, time.time() - 60), worker(pid)
    assert gone([old, new], os.getpid()) == [old]


def test_the_sessions_of_the_dead_are_ended_and_no_others(
    watch: WorkerWatch, service: RecordingService, start: Start
) -> None:
    dead = [worker(dead_pid()).session for _ in range(3)]
    service.sessions = [
        {"id": each, "leases": 2, "silent_s": 0.1}
        for each in (
            OWN, worker(start().pid).session, *dead,
            "elsewhere/1/1", "vm/gateway/1", "vm/0/1", "vm/-1/1", "vm/99999999/1", "vm/7", "vm",
            "vm/7/8/9", "vm//1", "vm/\u0663/1",
        )
    ]  # fmt: skip
    watch.tick()
    assert sorted(service.ended) == sorted(dead)


def test_sessions_of_another_node_are_left_alone_whoever_lists_them(
    watch: WorkerWatch, service: RecordingService
) -> None:
    listed = [{"id": f"elsewhere/{dead_pid()}/1", "leases": 1, "silent_s": 0.1}]
    service.answer = (200, json.dumps({"sessions": listed}).encode())
    watch.tick()
    assert service.requests == 1


def test_what_died_while_no_agent_ran_is_found_at_its_start(
    tmp_path: Path, service: RecordingService
) -> None:
    dead = worker(dead_pid()).session
    service.sessions = [{"id": dead, "leases": 9, "silent_s": 3.0}]
    first = WorkerWatch(ServiceClient(f"unix:{service.path}"), "vm", OWN, tmp_path / "none")
    first.tick()
    assert service.ended == [dead]


def test_the_agents_own_session_is_alive(watch: WorkerWatch, service: RecordingService) -> None:
    service.sessions = [{"id": OWN, "leases": 0, "silent_s": 0.0}]
    watch.tick()
    assert service.ended == []


def test_a_session_that_is_gone_meanwhile_is_fine(
    tmp_path: Path, service: RecordingService
) -> None:
    ServiceClient(f"unix:{service.path}").end_session("vm/2/3")
    assert service.ended == ["vm/2/3"]


def test_a_service_that_is_away_is_said(watch: WorkerWatch, service: RecordingService) -> None:
    service.stop()
    with pytest.raises(ServiceError, match=r"a\.sock"):
        watch.tick()


# -- what nginx says of its workers ------------------------------------------------------------


def test_crashes_are_read_from_the_error_log(tmp_path: Path) -> None:
    log = tmp_path / "error.log"
    crash_log = CrashLog(Follower(log, []))
    assert crash_log.tick(0.0) == []
    log.write_text(
        "2026/01/01 00:00:00 [notice] 1#1: signal 17 (SIGCHLD) received\n"
        "2026/01/01 00:00:00 [alert] 1#1: worker process 42 exited on signal 9\n"
        "2026/01/01 00:00:00 [alert] 1#1: worker process 43 exited on signal 11 (core dumped)\n"
        "2026/01/01 00:00:00 [notice] 1#1: worker process 44 exited with code 0\n"
        "2026/01/01 00:00:00 [error] 5#5: *1 client: x, request: 'worker process 45 exited on "
        "signal 9'\n"
        "2026/01/01 00:00:00 [alert] 1#1: worker process 46 exi"
    )
    assert crash_log.tick(0.1) == [Crash(42, 9), Crash(43, 11)]
    with log.open("a") as more:
        more.write("ted on signal 6\n")
    assert crash_log.tick(0.2) == [Crash(46, 6)]
    assert crash_log.tick(0.3) == []


def test_without_a_checkpoint_old_crashes_are_none(tmp_path: Path) -> None:
    log = tmp_path / "error.log"
    log.write_text("2026/01/01 00:00:00 [alert] 1#1: worker process 42 exited on signal 9\n")
    assert CrashLog(Follower(log, None)).tick(0.0) == []
