"""Four sites that one Prometheus looks at, and a fault for each alert."""

import json
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml

from control.client import ServiceClient, ServiceError
from tests.harness.client import CHAT, Client, chat_body
from tests.harness.node import WEIR, Engine, Node, free_port, wait_for

QA = {"X-Medical-Scene": "QA"}
WIDE = {"max_streams": 500, "max_tokens": 10_000_000}
OLD_LINES = 30_000
"""A backlog that the tailer needs some seconds for."""
ELSEWHERE = "elsewhere/1/1"
"""The session of a gateway that has no agent."""


class Repeated:
    """Something that goes on in the background until it is stopped."""

    def __init__(self, what: Callable[[], object], every_s: float = 0.0) -> None:
        self._what = what
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with suppress(OSError, ServiceError):
                self._what()
            self._stop.wait(self._every_s)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def backend(engine: Engine, **limits: Any) -> dict[str, Any]:
    return {"backends": [{"name": "gpu-0", "url": engine.url, **limits}]}


def serve(engine: Engine, path: str, node: Node, **sim: Any) -> None:
    """One request, whatever becomes of it."""
    with Client(node.port) as client:
        client.post(chat_body(**sim), path=path, headers=QA).head()
        client.rest()


class Sites:
    """``busy``: streams and their log. ``short``: of memory, disk and CPU. ``lonely``: no agent, no
    engine. ``down``: nothing but the service, and then not even that."""

    def __init__(self, folder: Path) -> None:
        self.engine = Engine("--kv-tokens", "10000000")
        engine = self.engine
        self._repeated: list[Repeated] = []
        self._clients: list[Client] = []
        busy = {
            "default": {**backend(engine, **WIDE), "silence": "1s"},
            "full": backend(engine, max_streams=1),
        }
        lonely = {
            "default": backend(engine),
            "gone": {
                "backends": [{"name": "gpu-9", "url": f"http://127.0.0.1:{free_port()}"}],
                "pass_over": "100ms",
            },
        }

        def start(name: str, pools: dict[str, Any]) -> Node:
            routes = [{"path": CHAT, "pool": "default"}]
            routes += [{"path": f"/{pool}", "pool": pool} for pool in pools if pool != "default"]
            return Node(folder / name, [], pools=pools, routes=routes)

        with ThreadPoolExecutor() as together:
            starts = [
                together.submit(start, "busy", busy),
                together.submit(
                    start, "short", {"default": {**backend(engine), "session_ttl": "2s"}}
                ),
                together.submit(start, "lonely", lonely),
            ]
            self.busy, self.short, self.lonely = (each.result() for each in starts)
        self.busy.tolerated = ("exited on signal 9",)
        self.down = Service(folder / "down", self.lonely)
        self.leaks = False
        self._begin(self._report, 1.0)

    @property
    def targets(self) -> dict[str, str]:
        ports = {
            name: getattr(self, name).admin_port for name in ("busy", "short", "lonely", "down")
        }
        return {name: f"127.0.0.1:{port}" for name, port in ports.items()}

    def stop(self) -> None:
        for repeated in self._repeated:
            repeated.stop()
        self.down.stop()
        for node in (self.busy, self.short, self.lonely):
            node.stop()
        self.engine.stop()

    # -- faults ----------------------------------------------------------------------------

    def stage(self) -> None:
        """Everything at once."""
        self._hold(self.busy, "/full")
        self._reload_nonsense()
        set_memory(self.short, memory_limit="1m")
        set_memory(self.busy, memory_limit="1g", memory_alarm=0.002, memory_resume=0.001)
        wait_for(lambda: self.busy.get("/v1/nodes")["nodes"][0]["memory"]["state"] == "alarm", 20)
        self._storm()
        self._spoil_the_log()
        self._starve()
        os.kill(self.lonely.pid("agent"), signal.SIGSTOP)
        for _ in range(2):
            self._hold(self.lonely, CHAT)
        assert change(self.lonely, max_streams=1).ok
        self._block_the_audit()
        self._begin(lambda: serve(self.engine, "/gone", self.lonely), 0.05)
        self.leaks = True
        self.down.signal(signal.SIGSTOP)

    def mend(self) -> None:
        """Everything as it was."""
        self.leaks = False
        for repeated in self._repeated[1:]:
            repeated.stop()
        self._feed()
        for client in self._clients:
            client.fin()
        set_memory(self.busy)
        set_memory(self.short)
        os.kill(self.lonely.pid("agent"), signal.SIGCONT)
        self.audit.rmdir()
        assert change(self.lonely, max_streams=25).ok
        os.kill(self.short.pid("admission"), signal.SIGHUP)
        self.down.signal(signal.SIGCONT)

    def _begin(self, what: Callable[[], object], every_s: float = 0.0) -> None:
        self._repeated.append(Repeated(what, every_s))

    def _hold(self, node: Node, path: str) -> None:
        client = Client(node.port).post(chat_body(10_000, gap_ms=100), path=path, headers=QA)
        assert client.head().status == 200
        self._clients.append(client)

    def _storm(self) -> None:
        """Clients that leave, engines that break off, err and fall silent; a worker that dies."""
        node, engine = self.busy, self.engine

        def leave() -> None:
            for _ in range(6):
                client = Client(node.port).post(chat_body(100), headers=QA)
                client.head()
                client.events(1)
                client.rst()

        self._begin(leave, 0.1)
        self._begin(lambda: serve(engine, CHAT, node, frames=9, gap_ms=5, fail_after=2), 0.2)
        self._begin(lambda: serve(engine, CHAT, node, frames=9, gap_ms=5, error_after=2), 0.1)
        for _ in range(3):
            self._begin(lambda: serve(engine, CHAT, node, frames=9, gap_ms=5_000))
        self._begin(lambda: serve(engine, "/full", node, frames=1), 0.3)
        before = set(node.workers("nginx"))
        client = Client(node.port).post(chat_body(10_000, gap_ms=100), headers=QA)
        assert client.head().status == 200
        [pid] = [int(lease["session"].split("/")[1]) for lease in node.leases()
                 if lease["id"] == client.response.headers["x-request-id"]]  # fmt: skip
        assert pid in before
        os.kill(pid, signal.SIGKILL)

    def _reload_nonsense(self) -> None:
        """A file with a fault, which is refused."""
        node = self.short
        node.file.write_text(yaml.safe_dump({**node.config, "pools": {}}))
        os.kill(node.pid("admission"), signal.SIGHUP)
        wait_for(lambda: node.metric("weir_config_refused") == 1, 20)
        wait_for(lambda: len(node.workers("admission")) == 1, 20)

    def _block_the_audit(self) -> None:
        """No line can be written; so no change is made."""
        self.audit = self.lonely.state / "log/audit.log"
        self.audit.unlink()
        self.audit.mkdir()
        self._begin(lambda: change(self.lonely, max_streams=2), 0.5)

    def _spoil_the_log(self) -> None:
        """Truncated, as copytruncate does; a line of somebody else's; and for an agent that gets
        little of the CPU more than it can read at once."""
        log = self.busy.state / "log/access.log"
        line = next(entry for entry in self.busy.access_log() if entry["verdict"])
        wait_for(lambda: tailer(self.busy)["lag_bytes"] == 0)
        os.truncate(log, 0)
        wait_for(lambda: tailer(self.busy)["gaps"] > 0)
        line["ts"] -= 3_600
        agent = self.busy.pid("agent")
        self._begin(lambda: pause(agent, 0.3), 0.1)
        lines = [json.dumps({**line, "id": f"old-{n}"}) for n in range(OLD_LINES)]
        with log.open("a") as out:
            out.write("somebody else was here\n" + "\n".join(lines) + "\n")

    def _starve(self) -> None:
        """A disk that is full; a CPU that is taken away; a gateway without an agent that drops
        releases."""
        [worker] = self.short.workers("admission")
        place = f"unix:{self.short.state}/run/admission.sock"
        gateway, full = ServiceClient(place, timeout_s=5), ServiceClient(place, timeout_s=5)

        def batch(count: int) -> None:
            asks = [
                {"op": "acquire", "id": f"{time.monotonic()}-{n}", "route": CHAT, "bytes": 1}
                for n in range(count)
            ]
            gateway.batch(ELSEWHERE, asks)

        for _ in range(5):
            batch(1)
        _, hard = psutil.Process(worker).rlimit(resource.RLIMIT_FSIZE)
        psutil.Process(worker).rlimit(resource.RLIMIT_FSIZE, (8_192, hard))

        def drop() -> None:
            told = {"session": ELSEWHERE, "ops": [], "dropped": 3}
            full._call("POST", "/v1/admission", told)

        self._begin(lambda: pause(worker, 0.12), 0.06)
        self._begin(lambda: batch(500))
        self._begin(drop, 0.5)

    def _feed(self) -> None:
        [worker] = self.short.workers("admission")
        _, hard = psutil.Process(worker).rlimit(resource.RLIMIT_FSIZE)
        psutil.Process(worker).rlimit(resource.RLIMIT_FSIZE, (hard, hard))
        assert requests.get(f"{self.short.admin}/readyz", timeout=5) is not None

    def _report(self) -> None:
        """An agent that has seen memory grow for ten minutes; how it finds that out is a test of
        its own (tests/unit/test_agent_memory.py)."""
        memory = {
            "source": "machine", "limit_bytes": 1 << 30, "used_bytes": 1 << 20, "state": "ok",
            "leak_suspected": self.leaks,
        }  # fmt: skip
        client = ServiceClient(f"unix:{self.lonely.state}/run/admission.sock", timeout_s=10)
        client.report_node("leaky", {"agent": {"pid": 1, "started": 1}, "memory": memory})


class Service:
    """``weir admission`` alone."""

    def __init__(self, folder: Path, like: Node) -> None:
        folder.mkdir()
        self.admin_port = free_port()
        config = {
            **like.config, "state": str(folder / "s"),
            "admin": {"listen": f"127.0.0.1:{self.admin_port}"},
        }  # fmt: skip
        file = folder / "weir.yml"
        file.write_text(yaml.safe_dump(config))
        (folder / "s/run").mkdir(parents=True)
        with (folder / "log").open("w") as log:
            command = [*WEIR, "admission", "-c", str(file)]
            self.process = subprocess.Popen(command, stderr=log)
        wait_for(self._is_ready, 20)

    def signal(self, number: int) -> None:
        for process in [self.process.pid, *self._workers()]:
            os.kill(process, number)

    def stop(self) -> None:
        self.signal(signal.SIGCONT)
        self.process.terminate()
        self.process.wait(10)

    def _workers(self) -> list[int]:
        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def _is_ready(self) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=1).ok
        return False


def pause(pid: int, seconds: float) -> None:
    """The process gets no CPU for so long."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(pid, signal.SIGCONT)


def tailer(node: Node) -> dict[str, Any]:
    """What the node's own agent says of its log."""
    [own] = [each for each in node.get("/v1/nodes")["nodes"] if each["agent"]]
    return dict(own["tailer"])


def set_memory(node: Node, **agent: Any) -> None:
    """Have the agent start anew with other limits; with none, as it was."""
    node.file.write_text(yaml.safe_dump({**node.config, "agent": agent}))
    os.kill(node.pid("agent"), signal.SIGTERM)


def change(node: Node, **limits: Any) -> requests.Response:
    """Change the backend of the pool ``default`` live."""
    url = f"{node.admin}/v1/pools/default/backends/gpu-0"
    return requests.patch(url, json=limits, timeout=5)
