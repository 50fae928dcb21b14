"""The application's answer, as it goes over the wire."""

import contextlib
import logging
import traceback
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, NamedTuple

from control.front.refusal import FAILED
from control.front.request import Request
from control.front.stream import Stream

log = logging.getLogger("weir.front")

Headers = list[tuple[str, str]]
Started = list[tuple[str, Headers]]
WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Answered(NamedTuple):
    """What came of a request. ``keep``: the connection may carry another; ``rest``: what the
    client has sent of it already."""

    keep: bool
    rest: bytes = b""


KEPT, CLOSED = Answered(True), Answered(False)


def answer(
    client: Any,
    app: WsgiApp,
    request: Request,
    environ: dict[str, Any],
    keep: bool,
    *,
    is_made: Callable[[], None] = lambda: None,
) -> Answered:
    """Have the application answer. A list is sent as a whole, with its length, when ``is_made``
    has been told: from then on it is the client that is waited for. What else it returns is sent
    item by item. An error of its own is logged, and told where nothing has been sent."""
    started: Started = []

    def start_response(status: str, headers: Headers, exc_info: Any = None) -> None:
        started[:] = [(status, headers)]

    try:
        said = app(environ, start_response)
        if isinstance(said, list):
            wire = _whole(started[0], b"".join(said), request.method, keep)
    except Exception as exc:  # noqa: BLE001 (whatever it is, the client gets an answer)
        _log_failure(request, exc)
        wire, keep = FAILED.wire, False
    else:
        if not isinstance(said, list):
            return _streamed(client, said, started, request, keep)
    is_made()
    client.sendall(wire)
    return KEPT if keep else CLOSED


def _whole(start: tuple[str, Headers], body: bytes, method: bytes, keep: bool) -> bytes:
    status, headers = start
    head = [f"HTTP/1.1 {status}\r\n"]
    if method == b"HEAD" or status.startswith(("1", "204", "304")):
        head.extend(f"{name}: {value}\r\n" for name, value in headers)
        body = b""
    else:
        head.extend(
            f"{name}: {value}\r\n" for name, value in headers if name.lower() != "content-length"
        )
        head.append(f"Content-Length: {len(body)}\r\n")
    head.append("\r\n" if keep else "Connection: close\r\n\r\n")
    return "".join(head).encode("latin-1") + body


def _streamed(
    client: Any, said: Iterable[bytes], started: Started, request: Request, keep: bool
) -> Answered:
    stream = Stream(client, said)
    try:
        if request.method == b"HEAD":
            client.sendall(_whole(started[0], b"", b"HEAD", keep))
            return KEPT if keep else CLOSED
        # The application may begin its answer as late as with the first item.
        first = next(stream, b"")
        if stream.failure is None:
            return _send_items(client, stream, first, _Framing(started, request), keep)
        _log_failure(request, stream.failure)
        client.sendall(FAILED.wire)
        return CLOSED
    finally:
        stream.close()


class _Framing:
    """How the client is told the end of an answer of unknown length: by chunks, by the length
    that the application knows, or for HTTP/1.0 by the connection's end."""

    def __init__(self, started: Started, request: Request) -> None:
        self.request = request
        self.status, self._headers = started[0]
        lengths = [int(value) for name, value in self._headers if name.lower() == "content-length"]
        self.length = lengths[0] if lengths else None
        self.chunked = self.length is None and request.version != "1.0"
        self.by_closing = self.length is None and not self.chunked

    def head(self, keep: bool) -> bytes:
        lines = [f"HTTP/1.1 {self.status}\r\n"]
        lines += (f"{name}: {value}\r\n" for name, value in self._headers)
        if self.chunked:
            lines.append("Transfer-Encoding: chunked\r\n")
        lines.append("\r\n" if keep else "Connection: close\r\n\r\n")
        return "".join(lines).encode("latin-1")

    def item(self, item: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(item), item) if self.chunked else item

    @property
    def end(self) -> bytes:
        return b"0\r\n\r\n" if self.chunked else b""


def _send_items(
    client: Any, stream: Stream, first: bytes, framing: _Framing, keep: bool
) -> Answered:
    keep = keep and not framing.by_closing
    begun, sent = framing.head(keep), 0
    for item in chain([first] if first else [], stream):
        client.sendall(begun + framing.item(item))
        begun, sent = b"", sent + len(item)
    if stream.failure is not None:
        _log_failure(framing.request, stream.failure)
        return CLOSED  # without the end that would make it look whole
    with contextlib.suppress(OSError) if stream.left else contextlib.nullcontext():
        client.sendall(begun + framing.end)
    whole = framing.length is None or framing.length == sent
    return Answered(keep and whole and not stream.left, stream.rest)


def _log_failure(request: Request, exc: Exception) -> None:
    # The type and the place, never the message: it may quote a request.
    place = "".join(traceback.format_tb(exc.__traceback__))
    method = request.method.decode("latin-1")
    log.error("request_failed method=%s error=%s\n%s", method, type(exc).__name__, place)
