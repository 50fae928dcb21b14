"""The admission service alone, as ``weir up`` starts it, with gateways that tests play."""

import http.client
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.harness.node import free_port, wait_for
from tests.harness.openapi import check_answer

START_TIMEOUT_S = 30
ROUTE = "/v1/chat/completions"
BACKENDS = [{"name": f"gpu-{n}", "url": f"http://127.0.0.1:{9 + n}"} for n in range(2)]
_numbers = itertools.count(1)


class Service:
    """One service with two backends that nobody asks for anything."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = folder / "s"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        admin = {"listen": f"127.0.0.1:{self.port}", **settings.pop("admin", {})}
        backends = [{**backend, "max_streams": 20_000, "max_tokens": 1_000_000_000}
                    for backend in BACKENDS]  # fmt: skip
        self.config = {
            "state": str(self.state),
            "admin": admin,
            # Leases stay while their gateway is silent, and are gone at once when they end.
            "pools": {"default": {"backends": backends, "session_ttl": "1h", "drain": "0ms"}},
            **settings,
        }
        self.file = folder / "weir.yml"
        self.log = folder / "service.log"
        self.write_config()
        self.start()

    def write_config(self) -> None:
        self.file.write_text(yaml.safe_dump(self.config))

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "control.service", str(self.file)], stderr=log
            )
        wait_for(self.is_ready, START_TIMEOUT_S, 0.05)

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return requests.get(f"{self.url}/readyz", timeout=5).ok
        except requests.RequestException:
            return False

    def reload(self) -> None:
        """Read the file again, and return when a new worker answers."""
        before = self.worker()
        os.kill(self.process.pid, signal.SIGHUP)
        wait_for(lambda: self.worker() not in (0, before) and self.is_ready(), START_TIMEOUT_S)

    def worker(self) -> int:
        """The pid of the process that decides."""
        text = (self.state / "run" / "decision.lock").read_text()
        return int(text) if text else 0

    def ask(self, method: str, path: str, token: str | None = None, **options: Any) -> Any:
        """One request to the admin plane; its answer is one that the document has."""
        headers = dict(options.pop("headers", {}))
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        response = requests.request(
            method, f"{self.url}{path}", headers=headers, timeout=20, **options
        )
        check_answer(method, path, response)
        return response

    def get(self, path: str, token: str | None = None, **options: Any) -> Any:
        response = self.ask("GET", path, token, **options)
        assert response.status_code == 200, response.text
        return response.json()

    def batch(self, session: str, *ops: dict[str, Any]) -> list[dict[str, Any]]:
        """What a gateway sends over the Unix socket."""
        return list(
            self.gateway("POST", "/v1/admission", {"session": session, "ops": ops})["results"]
        )

    def gateway(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("weir", timeout=20)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(20)
        connection.sock.connect(str(self.state / "run" / "admission.sock"))
        connection.request(method, path, None if body is None else json.dumps(body))
        response = connection.getresponse()
        answer = json.loads(response.read())
        connection.close()
        assert response.status < 400, answer
        return answer

    def grant(
        self, count: int = 1, scene: str = "", session: str = "", tokens: int = 10
    ) -> list[str]:
        """So many leases of a session; their ids."""
        session = session or f"node-1/{next(_numbers)}/{time.time_ns()}"
        ids = [f"lease-{next(_numbers)}" for _ in range(count)]
        for n in range(0, count, 500):
            ops = [
                {"op": "acquire", "id": i, "route": ROUTE, "scene": scene, "tokens": tokens}
                for i in ids[n : n + 500]
            ]
            assert {each["decision"] for each in self.batch(session, *ops)} == {"granted"}
        return ids

    def audit(self) -> list[dict[str, Any]]:
        """The audit log's lines, oldest first."""
        file = self.state / "log" / "audit.log"
        return [json.loads(line) for line in file.open()] if file.exists() else []

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(20)
        assert "request_failed" not in self.log.read_text(), self.log.read_text()[-3_000:]
