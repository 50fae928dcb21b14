"""A stand-in for the admission service on a Unix socket: it records what an agent tells it."""

import json
import socket
import socketserver
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class RecordingService:
    """Answers as the service does. Each id is ``released`` once, ``already_released`` after."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ids: list[str] = []
        """Of every release, in the order of arrival, repeated ones too."""
        self.seen: set[str] = set()
        self.ops: list[dict[str, Any]] = []
        self.batches: list[tuple[str, int]] = []
        self.sessions: list[dict[str, Any]] = []
        self.ended: list[str] = []
        self.reports: list[tuple[str, dict[str, Any]]] = []
        self.streams = 0
        self.answer: tuple[int, bytes] | None = None
        """Given to every request instead, where it is set."""
        self.before: Callable[[], object] = lambda: None
        """Done before each answer."""
        self.requests = 0
        self.swallow = 0
        """So many requests are done and not answered: the connection closes."""
        self._server: _Server | None = None
        self.start()

    def start(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.unlink(missing_ok=True)
        self._server = _Server(self)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        """Gone, with all its connections."""
        if self._server:
            self._server.shutdown()
            self._server.cut()
            self._server.server_close()
            self._server = None
            self.path.unlink(missing_ok=True)

    def do(self, method: str, target: str, body: bytes) -> tuple[int, Any]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if method == "POST" and path == "/v1/admission":
            return 200, {"results": self._apply(json.loads(body))}
        if method == "GET" and path == "/v1/sessions":
            node = query["node"][0]
            return 200, {"sessions": [s for s in self.sessions if s["id"].startswith(f"{node}/")]}
        if method == "DELETE" and path.startswith("/v1/sessions/"):
            name = unquote(path.removeprefix("/v1/sessions/"))
            known = [s for s in self.sessions if s["id"] == name]
            self.sessions = [s for s in self.sessions if s["id"] != name]
            self.ended.append(name)
            return (200, {"ended": []}) if known else (404, {"code": "session_not_found"})
        if method == "PUT" and path.startswith("/v1/nodes/"):
            self.reports.append((path.removeprefix("/v1/nodes/"), json.loads(body)))
            return 200, {"streams": self.streams}
        return 404, {"title": "no such path"}

    def _apply(self, batch: dict[str, Any]) -> list[dict[str, Any]]:
        self.batches.append((batch["session"], len(batch["ops"])))
        results = []
        for op in batch["ops"]:
            known = op["id"] in self.seen
            self.ids.append(op["id"])
            self.seen.add(op["id"])
            self.ops.append(op)
            results.append({"outcome": "already_released" if known else "released"})
        return results


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, service: RecordingService) -> None:
        self.service = service
        self._open: set[socket.socket] = set()
        super().__init__(str(service.path), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An agent that was killed in the middle of a request."""

    def cut(self) -> None:
        for connection in list(self._open):
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def _answer(self) -> None:
        service = self.server.service
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        service.requests += 1
        service.before()
        if service.answer:
            status, data = service.answer
        else:
            status, answer = service.do(self.command, self.path, body)
            data = json.dumps(answer).encode()
        if service.swallow:
            service.swallow -= 1
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass
