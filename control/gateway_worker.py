"""gunicorn's gevent worker with a short way for the data plane's Unix socket.

gunicorn's own request handling costs 170 us of the 250 us that a call takes here, and every
stream's first token waits for one. On Unix sockets, which only this node's gateways can open, a
C parser and one send replace it; the application, gevent and the process model stay the same,
and TCP listeners go the usual way.
"""

import contextlib
import io
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import gevent
import httptools
import psutil
from gevent.pool import Pool
from gevent.server import StreamServer
from gunicorn.workers.ggevent import GeventWorker

MAX_HEAD = 16 << 10
"""Bytes of a request's line and headers."""
MAX_BODY = 8 << 20
"""Bytes of a body that are read at all; the application says what it takes."""
READ_BYTES = 64 << 10
NOTIFY_S = 1.0
"""How often gunicorn's arbiter is told that the worker lives."""
LOOK_S = 0.05
"""How late the worker notices that it is to end."""
LONGEST_START_S = 10.0
"""A successor that needs longer has failed."""
LAST_ANSWERS_S = 0.25
"""What has been asked is answered within it, before another decides."""

log = logging.getLogger("weir.gateway")

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class GatewayWorker(GeventWorker):  # type: ignore[misc]
    """The worker class of the admission service.

    ``lock`` is set by the application: told to end while a sibling starts, the worker serves until
    that one has announced itself there.
    """

    lock: Any = None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._clients: set[Any] = set()
        self._leaving = False

    def run(self) -> None:
        """Serve until told to end; then answer what has begun, and go."""
        servers = [
            StreamServer(
                listener,
                handle=partial(self.handle, listener),
                spawn=Pool(self.worker_connections),
            )
            for listener in self.sockets
        ]
        for server in servers:
            server.start()
        self._serve_out_the_term()
        self._leaving = True
        for server in servers:
            server.close()
        for client in list(self._clients):
            # Its greenlet finishes what it answers, and reads the end.
            with contextlib.suppress(OSError):  # it has just closed by itself
                client.shutdown(socket.SHUT_RD)
        deadline = time.monotonic() + LAST_ANSWERS_S
        while self._clients and time.monotonic() < deadline:
            gevent.sleep(0.005)

    def _serve_out_the_term(self) -> None:
        notified_at = told_at = 0.0
        while True:
            now = time.monotonic()
            if now - notified_at > NOTIFY_S:
                notified_at = now
                self.notify()
            if not self.alive:
                told_at = told_at or now
                if now - told_at > LONGEST_START_S or not self._awaits_successor():
                    return
            gevent.sleep(LOOK_S)

    def _awaits_successor(self) -> bool:
        """Whether a younger sibling is starting and has not come so far as to decide."""
        if self.lock is None or self.lock.has_successor:
            return False
        try:
            born = psutil.Process().create_time()
            siblings = psutil.Process(self.ppid).children()
            return any(sibling.create_time() > born for sibling in siblings)
        except psutil.NoSuchProcess:
            return False

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        self._clients.add(client)
        try:
            if client.family == socket.AF_UNIX:
                self._handle_gateway(client)
            else:
                super().handle(listener, client, addr)
        finally:
            self._clients.discard(client)

    def _handle_gateway(self, client: Any) -> None:
        # No timeout: both ends are on this machine, and the kernel tells when the other dies.
        client.settimeout(None)
        try:
            serve(client, self.wsgi, lambda: not self._leaving)
        except OSError as exc:
            # The gateway closed or fell silent: it opens a new connection when it needs one.
            log.debug("gateway_closed error=%s", exc)
        finally:
            client.close()


def serve(client: Any, app: WsgiApp, stays: Callable[[], bool]) -> None:
    """Answer the requests of one connection, one after the other, until it ends."""
    gathered = _Gathered()
    parser = gathered.parser = httptools.HttpRequestParser(gathered)
    while data := client.recv(READ_BYTES):
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            client.sendall(_refusal("400 Bad Request"))
            return
        gathered.count(len(data))
        if gathered.too_large:
            client.sendall(_refusal("413 Content Too Large"))
            return
        for request in gathered.take():
            keep = request.keep_alive and stays()
            client.sendall(_answer(app, request.environ(), keep))
            if not keep:
                return


def _refusal(status: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()


def _answer(app: WsgiApp, environ: dict[str, Any], keep: bool) -> bytes:
    """The application's answer as bytes on the wire."""
    head: list[str] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        head.append(f"HTTP/1.1 {status}\r\n")
        head.extend(
            f"{name}: {value}\r\n" for name, value in headers if name.lower() != "content-length"
        )

    body = b"".join(app(environ, start_response))
    head.append(f"Content-Length: {len(body)}\r\n")
    head.append("\r\n" if keep else "Connection: close\r\n\r\n")
    return "".join(head).encode("latin-1") + body


class _Gathered:
    """httptools' callbacks: gathers requests from what arrives."""

    parser: Any

    def __init__(self) -> None:
        self.too_large = False
        self._ready: list[_Request] = []
        self._begin()

    def take(self) -> "list[_Request]":
        """The requests that are complete."""
        ready, self._ready = self._ready, []
        return ready

    def count(self, received: int) -> None:
        """So many bytes came: a line that has no end shows only in them."""
        if self._in_head and not self._ready:
            self._head_bytes += received
            self.too_large = self.too_large or self._head_bytes > MAX_HEAD

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers)
        self.too_large = self.too_large or size > MAX_HEAD

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > MAX_BODY:
            self.too_large = True
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        method, keep_alive = self.parser.get_method(), self.parser.should_keep_alive()
        body = b"".join(self._body)
        self._ready.append(_Request(method, self._url, self._headers, body, keep_alive))
        self._begin()

    def _begin(self) -> None:
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._in_head = True
        self._head_bytes = 0
        self._body_bytes = 0


class _Request(NamedTuple):
    """One request, whole."""

    method: bytes
    url: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    keep_alive: bool

    def environ(self) -> dict[str, Any]:
        """The request's WSGI environment."""
        path, _, query = self.url.decode("latin-1").partition("?")
        if "%" in path:
            path = unquote_to_bytes(path).decode("latin-1")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": self.method.decode("latin-1"),
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "SERVER_NAME": "weir",
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "",
            "CONTENT_LENGTH": str(len(self.body)),
            "weir.plane": "data",
            "weir.local": True,
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(self.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in self.headers:
            key = name.decode("latin-1").upper().replace("-", "_")
            if key == "CONTENT_TYPE":
                environ[key] = value.decode("latin-1")
            elif key != "CONTENT_LENGTH":
                environ[f"HTTP_{key}"] = value.decode("latin-1")
        return environ
