"""The memory monitor: limits, marks, leaks, and what one stream costs."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import pytest

from control.agent.memory_limit import Level, find_level
from control.agent.memory_monitor import MemoryMonitor
from control.agent.processes import Footprint, ProcessTable
from control.agent.recycler import Recycler
from control.agent.stream_memory import StreamMemory
from control.agent.trend import WINDOW_S, Sample, Trend, leaks
from control.agent.watermark import Watermark
from control.agent.webhook import MAX_WAITING, Webhook
from control.core.node import MemoryState
from control.pid_file import read_pid
from tests.harness.node import wait_for

MB = 1 << 20
GB = 1 << 30
UNLIMITED = 0x7FFFFFFFFFFFF000
V1_MEMORY = Path("/sys/fs/cgroup/memory")

# -- the limit ---------------------------------------------------------------------------------


class Kernel:
    """``/proc`` and ``/sys/fs/cgroup`` as a test wants them; process 7 is nginx's master."""

    def __init__(self, folder: Path, membership: str, total_kb: int = 16 << 20) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        (self.proc / "7").mkdir(parents=True)
        (self.proc / "7" / "cgroup").write_text(membership)
        self.meminfo(total_kb, total_kb // 2)

    def meminfo(self, total_kb: int, available_kb: int) -> None:
        (self.proc / "meminfo").write_text(
            f"MemTotal:       {total_kb} kB\nMemFree:  1 kB\nMemAvailable:   {available_kb} kB\n"
        )

    def v2(self, path: str, limit: int | str, used: int, inactive: int = 0) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 5\ninactive_file {inactive}\nslab 3\n")

    def v1(self, path: str, limit: int, used: int, inactive: int = 0) -> None:
        folder = self.cgroups / "memory" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
        (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive}\n")

    def level(self) -> Level | None:
        return find_level(7, self.proc, self.cgroups)


V2 = "0::/weir.slice/nginx.service\n"
V1 = "9:name=systemd:/x\n4:cpu,memory:/weir/nginx\n3:cpuset:/\n0::/\n"


def test_cgroup2_working_set_is_what_cannot_be_dropped(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    kernel.v2("weir.slice/nginx.service", 4 * GB, used=3 * GB, inactive=GB)
    assert kernel.level() == Level("cgroup2", 4 * GB, 2 * GB)


def test_cgroup2_the_smallest_limit_above_counts_with_what_is_used_there(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    kernel.v2("weir.slice/nginx.service", "max", used=GB)
    kernel.v2("weir.slice", 2 * GB, used=GB + 512 * MB)
    kernel.v2("", 8 * GB, used=3 * GB)
    assert kernel.level() == Level("cgroup2", 2 * GB, GB + 512 * MB)


def test_a_machine_that_others_have_nearly_filled_counts_more(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    own = Level("cgroup2", 2 * GB, GB)
    kernel.v2("weir.slice/nginx.service", *own[1:])
    kernel.v2("weir.slice", 8 * GB, used=8 * GB)

    def level() -> Level | None:
        return find_level(7, kernel.proc, kernel.cgroups, nearly_full=0.8)

    kernel.meminfo(16 << 20, 4 << 20)
    assert level() == own, "three quarters are no reason"
    kernel.meminfo(16 << 20, 1 << 20)
    assert level() == Level("machine", 16 * GB, 15 * GB)
    kernel.v2("weir.slice/nginx.service", 2 * GB, used=2 * GB)
    assert level() == Level("cgroup2", 2 * GB, 2 * GB)


def test_cgroup2_in_a_container_has_its_limit_at_the_root(tmp_path: Path) -> None:
    for n, path in enumerate(("/", "/docker/0123456789ab", "/../system.slice")):
        kernel = Kernel(tmp_path / str(n), f"0::{path}\n")
        kernel.v2("", GB, used=100 * MB)
        kernel.v2("../system.slice", 10 * MB, used=MB)  # not the one that is meant
        assert kernel.level() == Level("cgroup2", GB, 100 * MB)


def test_cgroup1_with_its_own_names(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V1)
    kernel.v1("weir/nginx", GB, used=800 * MB, inactive=300 * MB)
    kernel.v1("weir", UNLIMITED, used=5 * GB)
    kernel.v1("", UNLIMITED, used=9 * GB)
    assert kernel.level() == Level("cgroup1", GB, 500 * MB)


def test_no_finite_limit_leaves_the_machine(tmp_path: Path) -> None:
    v2, v1 = Kernel(tmp_path / "2", V2), Kernel(tmp_path / "1", V1)
    v2.v2("weir.slice/nginx.service", "max", used=GB)
    v1.v1("weir/nginx", UNLIMITED, used=GB)
    for kernel in (v2, v1, Kernel(tmp_path / "0", ""), Kernel(tmp_path / "x", "nonsense\n\n::::")):
        assert kernel.level() == Level("machine", 16 * GB, 8 * GB)


def test_a_limit_that_is_larger_than_the_machine_is_none(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, V2)
    kernel.v2("weir.slice/nginx.service", 64 * GB, used=GB)
    assert kernel.level() == Level("machine", 16 * GB, 8 * GB)


@pytest.mark.parametrize("content", ["", "nonsense", "-5", "1.5", "0"])
def test_what_cannot_be_read_is_no_limit(tmp_path: Path, content: str) -> None:
    kernel = Kernel(tmp_path, V2)
    kernel.v2("weir.slice/nginx.service", content, used=GB)
    assert (level := kernel.level()) and level.source == "machine"
    kernel.v2("weir.slice", GB, used=5)
    (kernel.cgroups / "weir.slice" / "memory.current").write_text(content)
    level = kernel.level()
    assert level and level.source == ("cgroup2" if content == "0" else "machine")


def test_where_nothing_can_be_read_nothing_is_said(tmp_path: Path) -> None:
    assert find_level(7, tmp_path / "proc", tmp_path / "cgroup") is None


def test_this_machine_has_a_level() -> None:
    level = find_level(os.getpid())
    assert level and 0 < level.used_bytes < level.limit_bytes


@pytest.mark.skipif(not os.access(V1_MEMORY, os.W_OK), reason="no cgroup v1 that may be written")
def test_the_limit_of_a_real_cgroup_is_found_with_what_its_processes_hold() -> None:
    group = V1_MEMORY / f"weir-test-{os.getpid()}"
    group.mkdir()
    hold = "import sys; held = bytearray(40 << 20); print(flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdin.readline(); {hold}"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin and process.stdout
    try:
        (group / "memory.limit_in_bytes").write_text(str(100 * MB))
        (group / "cgroup.procs").write_text(str(process.pid))
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        level = find_level(process.pid)
        assert level and (level.source, level.limit_bytes) == ("cgroup1", 100 * MB)
        assert 40 * MB <= level.used_bytes < 70 * MB
    finally:
        process.communicate("")
        wait_for(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


# -- the marks ---------------------------------------------------------------------------------

OK, ALARM, FULL = MemoryState.OK, MemoryState.ALARM, MemoryState.FULL


@pytest.mark.parametrize(
    ("state", "ratio", "then"),
    [
        (OK, 0.0, OK), (OK, 0.8499, OK), (OK, 0.85, ALARM), (OK, 0.9199, ALARM), (OK, 0.92, FULL),
        (OK, 1.3, FULL),
        (ALARM, 0.9199, ALARM), (ALARM, 0.92, FULL), (ALARM, 0.84, ALARM), (ALARM, 0.80, ALARM),
        (ALARM, 0.7999, OK),
        (FULL, 0.92, FULL), (FULL, 0.91, FULL), (FULL, 0.85, FULL), (FULL, 0.80, FULL),
        (FULL, 0.7999, OK), (FULL, 0.0, OK),
    ],
)  # fmt: skip
def test_a_state_is_left_only_below_where_it_was_entered(
    state: MemoryState, ratio: float, then: MemoryState
) -> None:
    assert Watermark().after(state, ratio) is then


# -- leaks -------------------------------------------------------------------------------------

Shape = Callable[[float], float]


def window(used: Shape, streams: Shape = lambda share: 100.0, count: int = 300) -> list[Sample]:
    shares = [n / (count - 1) for n in range(count)]
    return [Sample(1_000 + s * WINDOW_S, int(used(s)), int(streams(s))) for s in shares]


def sawtooth(share: float) -> float:
    return (share * 40) % 1


@pytest.mark.parametrize(
    ("name", "samples", "leaking"),
    [
        ("flat", window(lambda s: 100 * MB), False),
        ("grows with as many streams", window(lambda s: 100 * MB + s * 60 * MB), True),
        ("grows while they get fewer",
         window(lambda s: 100 * MB + s * 60 * MB, lambda s: 100 - 90 * s), True),
        ("grows without any", window(lambda s: 100 * MB + s * 60 * MB, lambda s: 0), True),
        ("grows as they do",
         window(lambda s: 100 * MB + s * 60 * MB, lambda s: 100 + 100 * s), False),
        ("falls", window(lambda s: 200 * MB - s * 60 * MB), False),
        ("too little", window(lambda s: 100 * MB + s * 12 * MB), False),
        ("little beside what there is", window(lambda s: 2 * GB + s * 60 * MB), False),
        ("one step, as after a reload",
         window(lambda s: 100 * MB + (80 * MB if s > 0.5 else 0)), False),
        ("warms up and stays",
         window(lambda s: 100 * MB + min(s, 0.3) * 300 * MB), False),
        ("peaks that grow over a floor that does not",
         window(lambda s: 100 * MB + sawtooth(s) * s * 200 * MB), False),
        ("a floor that grows below peaks",
         window(lambda s: 100 * MB + s * 60 * MB + sawtooth(s) * 50 * MB), True),
        ("a collector that runs once a minute",
         window(lambda s: 100 * MB + ((s * 10) % 1) * 80 * MB), False),
        ("too few samples", window(lambda s: 100 * MB + s * 60 * MB, count=30), False),
        ("none", [], False),
        ("one", window(lambda s: 1, count=300)[:1], False),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_leak_is_memory_that_grows_while_streams_do_not(
    name: str, samples: list[Sample], leaking: bool
) -> None:
    assert leaks(samples) is leaking


def test_a_trend_says_nothing_before_a_window_has_passed_and_forgets() -> None:
    trend = Trend()
    said = [trend.add(Sample(n * 2.0, 100 * MB + n * MB, 5)) for n in range(600)]
    first = said.index(True)
    assert 0.9 * WINDOW_S <= first * 2 <= WINDOW_S and all(said[first:])
    after = [trend.add(Sample(1_200 + n * 2.0, 700 * MB, 5)) for n in range(310)]
    assert not after[-1], "it stopped growing a window ago"


# -- what a stream costs -----------------------------------------------------------------------


def test_a_stream_costs_what_workers_hold_above_their_floor() -> None:
    memory = StreamMemory()
    assert memory.per_stream({}, 0) is None
    assert memory.per_stream({1: 10 * MB, 2: 11 * MB}, 0) is None
    assert memory.per_stream({1: 15 * MB, 2: 15 * MB}, 100) == 10 * MB / 100
    # A reload: old workers with streams, new ones without.
    assert memory.per_stream({1: 15 * MB, 2: 15 * MB, 3: 10 * MB}, 100) == 10 * MB / 100
    # The old ones are gone, and their floor with them.
    assert memory.per_stream({3: 12 * MB}, 20) == 2 * MB / 20


# -- the processes -----------------------------------------------------------------------------


@pytest.fixture
def family() -> Iterator["subprocess.Popen[str]"]:
    """A master with two workers, one of which holds 30 MB for itself."""
    code = """
import os, sys
for size in (1, 30):
    if not os.fork():
        held = bytearray(size << 20)
        print(flush=True)
        sys.stdin.read()
        os._exit(0)
sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, "control.service"], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    process.stdout.readline(), process.stdout.readline()
    yield process
    process.communicate("")


def table(folder: Path, nginx: int | None = None, admission: int | None = None) -> ProcessTable:
    for name, pid in (("nginx", nginx), ("admission", admission)):
        if pid:
            (folder / f"{name}.pid").write_text(f"{pid}\n")
    return ProcessTable(folder, os.getpid())


def test_processes_are_found_by_pid_files_with_their_roles(
    tmp_path: Path, family: "subprocess.Popen[str]"
) -> None:
    found = table(tmp_path, nginx=family.pid).footprints()
    assert [each.role for each in found] == ["nginx-master", "nginx", "nginx", "agent"]
    small, large = sorted(each.uss_bytes for each in found if each.role == "nginx")
    assert large > 30 * MB > small > MB, "private memory, not what is shared with the master"
    assert found[0].pid == family.pid and found[-1].pid == os.getpid()


def test_processes_that_are_gone_are_left_out(
    tmp_path: Path, family: "subprocess.Popen[str]"
) -> None:
    subject = table(tmp_path, nginx=family.pid)
    family.communicate("")
    assert [each.role for each in subject.footprints()] == ["agent"]


def test_processes_that_vanish_in_the_middle_cost_no_round(tmp_path: Path) -> None:
    code = "while :; do (sleep 0.001) & wait; done"
    master = subprocess.Popen(["sh", "-c", code])
    try:
        subject = table(tmp_path, nginx=master.pid)
        end = monotonic() + 0.5
        while monotonic() < end:
            assert subject.footprints()[-1].role == "agent"
    finally:
        master.kill()
        master.wait()


@pytest.mark.parametrize(
    "content", [b"", b"x", b"-1", b"0", b"1 2", b"99999999999999999999", b"4194305", b"\xff"]
)
def test_a_pid_file_that_is_none_names_nobody(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "nginx.pid"
    assert read_pid(file) is None
    file.write_bytes(content)
    assert read_pid(file) is None


# -- the service's worker is replaced ----------------------------------------------------------


def test_a_service_that_grew_too_large_is_replaced_once_a_minute(
    family: "subprocess.Popen[str]", caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[tuple[int, signal.Signals]] = []
    recycler = Recycler(100 * MB, lambda pid, number: sent.append((pid, number)))
    small, large = Footprint(2, "admission", 100 * MB), Footprint(3, "admission", 100 * MB + 1)
    other = Footprint(4, "nginx", GB)
    recycler.look([small, other], family.pid, 0)
    assert sent == []
    recycler.look([small, large], family.pid, 1)
    recycler.look([large], family.pid, 60)
    assert sent == [(family.pid, signal.SIGHUP)]
    recycler.look([large], family.pid, 61)
    assert len(sent) == 2
    assert caplog.text.count("service_recycled") == 2


def test_a_pid_that_is_not_the_services_any_more_gets_no_signal() -> None:
    sent: list[object] = []
    recycler = Recycler(MB, lambda pid, number: sent.append(pid))
    recycler.look([Footprint(3, "admission", GB)], os.getpid(), 0)
    recycler.look([Footprint(3, "admission", GB)], None, 0)
    assert sent == []


# -- alarms ------------------------------------------------------------------------------------


class Receiver:
    """A real HTTP server that takes webhooks; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.status = 204
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status = receiver.status  # a test that has seen it may change it
                receiver.events.append(json.loads(body))
                self.send_response(status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks/SECRET"
        Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.server.shutdown()
    receiver.server.server_close()


def monitor(
    kernel: Kernel, tmp_path: Path, webhook: Webhook | None = None, **options: Any
) -> MemoryMonitor:
    run = tmp_path / "run"
    run.mkdir(exist_ok=True)
    return MemoryMonitor(
        "vm", table(run), Watermark(), recycler=Recycler(GB), webhook=webhook, proc=kernel.proc,
        cgroups=kernel.cgroups, **options,
    )  # fmt: skip


def test_an_alarm_is_logged_and_sent_when_it_comes_and_when_it_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel = Kernel(tmp_path, "", total_kb=1_000)
    with receiving() as receiver:
        webhook = Webhook(receiver.url)
        webhook.start()
        subject = monitor(kernel, tmp_path, webhook)
        states = []
        for n, used in enumerate((500, 850, 860, 930, 900, 810, 799, 700)):
            kernel.meminfo(1_000, 1_000 - used)
            subject.tick(n * 2.0, wall=1_000.0 + n, streams=0)
            report = subject.report
            assert report and report["used_bytes"] == used * 1024
            states.append(report["state"])
        webhook.stop(5)
    assert states == ["ok", "alarm", "alarm", "full", "full", "full", "ok", "ok"]
    assert receiver.events == [
        {"event": "node_memory", "node": "vm", "state": state, "used_bytes": used * 1024,
         "limit_bytes": 1_000 * 1024, "ratio": used / 1_000, "at": at}
        for state, used, at in (
            ("alarm", 850, 1_001.0), ("full", 930, 1_003.0), ("ok", 799, 1_006.0),
        )
    ]  # fmt: skip
    told = [record for record in caplog.records if "node_memory" in record.message]
    assert [record.levelname for record in told] == ["WARNING", "WARNING", "INFO"]


def test_a_configured_limit_is_held_against_what_the_processes_hold(
    tmp_path: Path, family: "subprocess.Popen[str]"
) -> None:
    kernel = Kernel(tmp_path, "")
    subject = monitor(kernel, tmp_path, limit_bytes=32 * MB)
    (tmp_path / "run" / "nginx.pid").write_text(str(family.pid))
    subject.tick(0, 0, streams=4)
    report = subject.report
    assert report and (report["source"], report["limit_bytes"]) == ("configured", 32 * MB)
    assert report["used_bytes"] == sum(each["uss_bytes"] for each in report["processes"])
    assert report["state"] == "full"
    assert report["per_stream_bytes"] > 28 * MB / 4
    json.dumps(report)


def test_where_nothing_can_be_measured_the_report_is_none(tmp_path: Path) -> None:
    kernel = Kernel(tmp_path, "")
    subject = monitor(kernel, tmp_path)
    assert subject.report is None
    (kernel.proc / "meminfo").unlink()
    subject.tick(0, 0, 0)
    assert subject.report is None


def test_a_leak_is_told_once_until_it_clears(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kernel = Kernel(tmp_path, "")
    subject = monitor(kernel, tmp_path)
    worker = """
import sys
held = []
for line in sys.stdin:
    held.append(bytearray(1 << 20) if "more" in line else None)
    print(flush=True)
"""
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {worker!r}])"
    master = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert master.stdin and master.stdout
    (tmp_path / "run" / "nginx.pid").write_text(str(master.pid))
    suspected = []
    for n in range(85):
        master.stdin.write("more\n" if n < 60 else "enough\n")
        master.stdin.flush()
        master.stdout.readline()
        subject.tick(n * WINDOW_S / 55, 0, streams=3)
        assert subject.report
        suspected.append(subject.report["leak_suspected"])
    master.communicate("")
    assert suspected.count(True) and not suspected[-1]
    assert caplog.text.count("leak_suspected role=nginx") == 1
    assert caplog.text.count("leak_cleared role=nginx") == 1


@pytest.mark.parametrize("status", [500, 404, 302])
def test_a_webhook_that_fails_is_tried_again_and_given_up(
    status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving() as receiver:
        receiver.status = status
        webhook = Webhook(receiver.url, retry_s=0.01)
        webhook.start()
        webhook.send({"event": "first"})
        wait_for(lambda: len(receiver.events) == 3)
        receiver.status = 200
        webhook.send({"event": "second"})
        webhook.stop(5)
    assert [each["event"] for each in receiver.events] == ["first"] * 3 + ["second"]
    assert "webhook_failed" in caplog.text and f"status={status}" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_webhook_that_nobody_takes_holds_up_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with receiving() as receiver:
        url = receiver.url
    webhook = Webhook(url, timeout_s=0.2, retry_s=30)
    webhook.start()
    began = monotonic()
    for n in range(MAX_WAITING + 5):
        webhook.send({"event": str(n)})
    webhook.stop(0.1)
    assert monotonic() - began < 5  # retry_s is 30
    wait_for(lambda: "webhook_failed" in caplog.text)
    assert "webhook_overflow" in caplog.text
    assert "SECRET" not in caplog.text
