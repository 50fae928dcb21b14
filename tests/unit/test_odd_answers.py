"""A command whose service answers what Weir's does not: one line, and never a stack trace."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from control.cli import main

BACKEND = {
    "name": "g", "url": "http://e", "state": "active", "max_streams": 25, "streams": 3,
    "max_tokens": 80_000, "tokens": 9_000, "draining": 0,
}  # fmt: skip
LISTS = ("pools", "leases", "nodes", "sessions", "entries", "points", "backends")
BODIES: dict[str, Any] = {
    "an empty object": {},
    "a list": [],
    "nothing": None,
    "a number": 7,
    "members of other kinds": {name: [{}] for name in LISTS},
    "members that are null": dict.fromkeys([*LISTS, "name", "state"]),
    "numbers that are text": {
        **BACKEND, "streams": "many", "backends": [{**BACKEND, "streams": "x"}],
    },
    "a time that is none": {
        "entries": [{"at": 1e300}], "points": [{"at": -1e300}], "loaded_at": 1e300,
        "effective": {}, "version": "", "file": "", "started_at": 0, "step_s": 60,
    },
}  # fmt: skip
RAW = {
    "a page": b"<html>", "no UTF-8": b"\xff", "half an answer": b'{"pools": [',
    "deep nesting": b"[" * 100_000, "a long number": b"1" * 10_000, "an event of nonsense":
    b"id: " + b"9" * 5_000 + b"\nretry: " + b"9" * 5_000 + b"\ndata: " + b"[" * 100_000 + b"\n\n",
}  # fmt: skip
COMMANDS = [
    ("pools",), ("pools", "p"), ("leases",), ("leases", "--all"), ("nodes",), ("nodes", "n"),
    ("sessions",), ("kill", "x"), ("drain", "p/g"), ("drain", "p/g", "--wait"), ("activate", "p/g"),
    ("limit", "p/g", "--streams", "2"), ("limit", "p/g", "--reset", "--dry-run"), ("top",),
    ("history",), ("config",), ("audit",), ("whoami",), ("events",),
]  # fmt: skip


class Odd(ThreadingHTTPServer):
    """Says the same to everything."""

    daemon_threads = True
    body = b""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Odd

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_PATCH(self) -> None:
        self.do_GET()

    def do_DELETE(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def odd() -> Iterator[Odd]:
    server = Odd(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def weir(
    odd: Odd, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str]]:
    """Runs a command against it: exit code and stderr."""
    monkeypatch.delenv("WEIR_ADMIN_TOKEN", raising=False)

    def run(*arguments: str) -> tuple[int, str]:
        code = main([*arguments, "--admin", odd.url])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("name", [*BODIES, *RAW])
def test_an_answer_that_is_none_of_weirs_is_one_line(
    odd: Odd, weir: Callable[..., tuple[int, str]], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # `weir events` goes on after a lost connection, so it is stopped where it would wait.
    def stop(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("control.client.events.time.sleep", stop)
    odd.body = RAW.get(name) or json.dumps(BODIES[name]).encode()
    for command in COMMANDS:
        code, err = weir(*command)
        assert code in (0, 1), command
        assert command == ("events",) or err.count("\n") == code, (command, err)
        assert not code or odd.url in err, (command, err)


@pytest.mark.parametrize("name", [*BODIES, *RAW])
def test_doctor_writes_its_file_whatever_answers(
    odd: Odd, weir: Callable[..., tuple[int, str]], name: str, tmp_path: Path
) -> None:
    odd.body = RAW.get(name) or json.dumps(BODIES[name]).encode()
    archive = tmp_path / "a.tar.gz"
    code, _ = weir("doctor", "-o", str(archive))
    assert code == 0 and archive.exists()
