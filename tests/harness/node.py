"""A whole node with simulated engines, in a folder and on ports of its own."""

import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml

START_TIMEOUT_S = 40
AT_ONCE_S = 1.0
"""What is told and not found out by looking takes milliseconds, looking takes seconds. `make bench`
measures it; a machine that runs other tests besides holds anything up."""
WEIR = [sys.executable, "-m", "control"]


def _ports() -> Iterator[int]:
    """Below what the kernel gives to clients, which would take one before its server binds it; each
    of the test runner's processes has a part of its own."""
    share = 20_000 // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    first = 12_000 + share * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    start = random.Random(os.getpid()).randrange(share)
    return itertools.cycle([first + (start + n) % share for n in range(share)])


_PORTS = _ports()


def free_port() -> int:
    """A port that nobody listens on."""
    return next(port for port in _PORTS if _is_free(port))


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def wait_for(condition: Callable[[], Any], timeout_s: float = 10.0, every_s: float = 0.01) -> Any:
    """The first true value of a condition; an AssertionError with its last value in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not true within {timeout_s} s: {value!r}"
        time.sleep(every_s)
    return value


class Engine:
    """One ``weir simulate``."""

    def __init__(self, *options: str, host: str = "127.0.0.1") -> None:
        self.process = subprocess.Popen(
            [*WEIR, "simulate", "--listen", f"{host}:0", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[-1]

    def stats(self) -> dict[str, int]:
        return dict(requests.get(f"{self.url}/stats", timeout=10).json())

    def ended(self, tag: str = "") -> list[dict[str, Any]]:
        ended = requests.get(f"{self.url}/ended", timeout=30).json()
        return [stream for stream in ended if not tag or stream["tag"] == tag]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


PATIENT = {"budget": "3s"}
"""Less than the 5 s that Lua reads for an answer: a busy machine is no service that is away."""
IMPATIENT = {"budget": "250ms"}
"""The default of the product, for tests of what its end brings."""


class Node:
    """``weir up`` with a configuration; stopped, it must leave nothing and have complained of
    nothing."""

    def __init__(
        self, folder: Path, engines: Sequence[str], options: Sequence[str] = (), **settings: Any
    ) -> None:
        self.state = folder / "s"
        self.tolerated: tuple[str, ...] = ()
        """Parts of nginx's [alert] lines that the test itself provokes."""
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.h2_port, self.admin_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        pool = settings.pop("pool", {})
        limits = settings.pop("limits", {})
        admission = {**PATIENT, **settings.pop("admission", {})}
        # By default nginx tells nothing of a request to an engine, no [alert] either.
        nginx = {"error_level": "error", **settings.pop("nginx", {})}
        self.config = {
            "state": str(self.state),
            "listen": f"127.0.0.1:{self.port}",
            "listen_h2c": f"127.0.0.1:{self.h2_port}",
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
            "admission": admission,
            "nginx": nginx,
            "pools": {
                "default": {
                    "backends": [
                        {"name": f"gpu-{n}", "url": url, **limits} for n, url in enumerate(engines)
                    ],
                    **pool,
                }
            },
            **settings,
        }
        self.options = options
        self.file = folder / "weir.yml"
        self.file.write_text(yaml.safe_dump(self.config))
        self.log = folder / "up.log"
        self.process = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        with self.log.open("w") as log:
            process = subprocess.Popen(
                [*WEIR, "up", "-c", str(self.file), *self.options],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"weir: ready {self.url}\n", (line, self.log.read_text())
        return process

    # -- what the admin plane says ---------------------------------------------------------

    def get(self, path: str, **options: Any) -> Any:
        response = requests.get(f"{self.admin}{path}", timeout=10, **options)
        response.raise_for_status()
        return response.json()

    def pool(self) -> dict[str, Any]:
        return dict(self.get("/v1/pools/default"))

    def in_use(self) -> tuple[int, int]:
        pool = self.pool()
        return pool["streams"], pool["tokens"]

    def leases(self) -> list[dict[str, Any]]:
        return list(self.get("/v1/leases?limit=1000")["leases"])

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry the labels."""
        return _sum(self._metrics(), name, **labels)

    def _metrics(self) -> str:
        return requests.get(f"{self.admin}/metrics", timeout=10).text

    def access_log(self) -> list[dict[str, Any]]:
        """The whole lines: the last may be half there, where it crosses a page."""
        lines = (self.state / "log/access.log").read_text().split("\n")
        return [json.loads(line) for line in lines[:-1]]

    def settled(self, timeout_s: float = 10.0) -> None:
        """Wait until nothing is in use, and check that everything adds up."""

        def adds_up() -> bool:
            # From one look: a request whose asking was held up may be granted between two.
            metrics = self._metrics()
            assert _sum(metrics, "weir_lease_drift") == 0
            granted = _sum(metrics, "weir_leases_granted_total")
            return granted == _sum(metrics, "weir_leases_ended_total")

        wait_for(lambda: self.in_use() == (0, 0) and adds_up(), timeout_s)

    def serves(self) -> bool:
        """Whether nginx answers."""
        try:
            return requests.get(f"{self.url}/healthz", timeout=1).ok
        except requests.RequestException:
            return False

    # -- its processes -----------------------------------------------------------------------

    def pid(self, name: str) -> int:
        """The pid of ``nginx`` (its master) or ``admission`` (gunicorn's arbiter)."""
        return int((self.state / "run" / f"{name}.pid").read_text())

    def workers(self, name: str) -> list[int]:
        return [child.pid for child in psutil.Process(self.pid(name)).children()]

    def errors(self) -> str:
        """What nginx complained of."""
        return (self.state / "log/error.log").read_text()

    def stop(self, patience_s: float = 15.0) -> None:
        """After ``patience_s`` what still runs is ended at once."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(patience_s)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(15)
        if self.process.stdout is not None:
            self.process.stdout.close()
        complaints = [
            line
            for line in self.errors().splitlines()
            if ("[alert]" in line or "_failed error=" in line)
            and not any(known in line for known in self.tolerated)
        ]
        assert not complaints, complaints
        left = [p for p in psutil.process_iter(["cmdline"]) if str(self.state) in _words(p)]
        assert not left, left


def reload(node: Node) -> None:
    """Have nginx read its configuration again; new workers serve when this returns."""
    before = set(node.workers("nginx"))
    os.kill(node.pid("nginx"), signal.SIGHUP)
    wait_for(lambda: set(node.workers("nginx")) - before)


def _sum(metrics: str, name: str, **labels: str) -> float:
    total = 0.0
    for line in metrics.splitlines():
        match = re.match(rf"{name}(?:\{{(.*)\}})? (\S+)$", line)
        if match and all(f'{k}="{v}"' in (match[1] or "") for k, v in labels.items()):
            total += float(match[2])
    return total


def _words(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or [])


def open_descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208
