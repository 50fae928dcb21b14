"""A service of a few lines on the real worker: what the HTTP front does with any application.

``python -m tests.harness.front PORT SETTINGS`` serves on a TCP port, and prints what becomes of the
application's streams.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gevent
from gunicorn.app.base import BaseApplication

from control.front.listener import Patience, admin_listener
from tests.harness.node import free_port, wait_for


class Front:
    """It, as a process. ``said`` is what it has printed so far."""

    def __init__(self, folder: Path, connections: int = 8, **patience: float) -> None:
        self.port = free_port()
        self._log = folder / f"front-{self.port}.log"
        command = [sys.executable, "-m", "tests.harness.front"]
        settings = json.dumps({"connections": connections, "patience": patience})
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, str(self.port), settings], stdout=log, stderr=log
            )
        wait_for(lambda: any(line.startswith("serving") for line in self.said), 20)

    @property
    def said(self) -> list[str]:
        return self._log.read_text().splitlines()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    headers = [("Content-Type", "text/plain")]
    if path == "/fails":
        raise LookupError("-".join(("a", "prompt")))
    if path == "/large":
        start_response("200 OK", headers)
        return [b"x" * 1_000_000]
    if path == "/sized":
        headers.append(("Content-Length", query))
        start_response("200 OK", headers)
        return iter([b"x" * (int(query) // 2)] * 2)
    if path.startswith("/stream"):
        start_response("200 OK", headers)
        return Told(path, int(query or 3))
    body = environ["wsgi.input"].read()
    start_response("200 OK", [*headers, ("X-Peer", environ["REMOTE_ADDR"])])
    return [body or f"{environ['REQUEST_METHOD']} {path}".encode()]


class Told:
    """A stream that prints its end."""

    def __init__(self, path: str, count: int) -> None:
        self.path, self.count = path, count

    def __iter__(self) -> Iterator[bytes]:
        print(f"begun {self.path}", flush=True)
        for n in range(self.count):
            if self.path == "/stream/fails" and n == 1:
                raise LookupError("-".join(("a", "prompt")))
            yield b"x" * 1_000_000 if self.path == "/stream/big" else f"item {n}\n".encode()
            if self.path == "/stream/waits":
                gevent.sleep(3_600)

    def close(self) -> None:
        print(f"closed {self.path}", flush=True)


class Application(BaseApplication):  # type: ignore[misc]
    def __init__(self, port: str, settings: dict[str, Any]) -> None:
        listener = admin_listener(f"127.0.0.1:{port}", None)
        self.listeners = [
            type(listener)(
                listener.bind, "admin", 64 << 10, 256 << 10, settings["connections"],
                Patience(**settings["patience"]),
            )
        ]  # fmt: skip
        super().__init__()

    def load_config(self) -> None:
        self.cfg.set("bind", [self.listeners[0].bind])
        self.cfg.set("worker_class", "control.gateway_worker.GatewayWorker")
        self.cfg.set("control_socket_disable", True)
        self.cfg.set("loglevel", "warning")
        self.cfg.set("post_worker_init", lambda worker: print("serving", os.getpid(), flush=True))

    def load(self) -> Any:
        return app


if __name__ == "__main__":
    Application(sys.argv[1], json.loads(sys.argv[2])).run()
