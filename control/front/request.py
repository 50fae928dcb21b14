"""Requests, as they are put together from what arrives."""

import io
import sys
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

import httptools

from control.front.listener import BODY, HEAD, IDLE
from control.front.refusal import (
    BAD_TARGET,
    EXPECTATION,
    HEAD_TOO_LARGE,
    MAX_FIELDS,
    MAX_HEAD,
    MAX_TARGET,
    NOT_HTTP,
    TARGET_TOO_LONG,
    UPGRADE,
    Refusal,
    body_too_large,
)


class Request(NamedTuple):
    """One request, whole. ``version`` is HTTP's."""

    method: bytes
    target: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    version: str
    keep_alive: bool

    def environ(self, listener: dict[str, Any]) -> dict[str, Any]:
        """The request's WSGI environment, over what the listener gives."""
        path, _, query = self.target.decode("latin-1").partition("?")
        if "%" in path:
            path = unquote_to_bytes(path).decode("latin-1")
        environ = listener.copy()
        environ["wsgi.input"] = io.BytesIO(self.body)
        environ["REQUEST_METHOD"] = self.method.decode("latin-1")
        environ["PATH_INFO"] = path
        environ["QUERY_STRING"] = query
        environ["SERVER_PROTOCOL"] = "HTTP/1.0" if self.version == "1.0" else "HTTP/1.1"
        environ["CONTENT_LENGTH"] = str(len(self.body))
        for name, value in self.headers:
            key = _KEYS.get(name) or _key(name)
            text = value.decode("latin-1")
            environ[key] = f"{environ[key]},{text}" if key in environ else text
        return environ


def _key(name: bytes) -> str:
    key = name.decode("latin-1").upper().replace("-", "_")
    return key if key == "CONTENT_TYPE" else f"HTTP_{key}"


_KEYS = {
    name: _key(name)
    for plain in (b"Host", b"Content-Type", b"Accept", b"Authorization", b"User-Agent")
    for name in (plain, plain.lower())
}
"""What is asked for most, to be looked up."""


def listener_environ(plane: str, local: bool, scheme: str, peer: str) -> dict[str, Any]:
    """What the requests of one connection have in common. ``peer``: its address."""
    return {
        "SCRIPT_NAME": "",
        "SERVER_NAME": "weir",
        "SERVER_PORT": "443" if scheme == "https" else "80",
        "REMOTE_ADDR": peer,
        "weir.plane": plane,
        "weir.local": local,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


class Gathered:
    """What has come on one connection. ``refusal`` says what is wrong with it; what was complete
    before is still to be answered."""

    def __init__(self, max_body: int) -> None:
        self.refusal: Refusal | None = None
        self.awaits_continue = False
        """Whether the client waits to be told to go on."""
        self._max_body = max_body
        self._ready: list[Request] = []
        self._parser = httptools.HttpRequestParser(self)
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects: bytes | None = None
        self._announced = 0
        self._body: list[bytes] = []
        self._phase = HEAD
        self._received = self._head_bytes = self._body_bytes = 0

    def feed(self, data: bytes) -> None:
        """So much has come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Passed over (RFC 9110, 7.8): the answer is HTTP/1.1, and the last on its connection.
            # The parser takes no body after it: one with a body has been refused.
            self._ready[-1:] = [last._replace(keep_alive=False) for last in self._ready[-1:]]
            if not self._ready:
                self.refusal = self.refusal or NOT_HTTP
        except httptools.HttpParserError:
            self.refusal = self.refusal or NOT_HTTP
        # A line or a field without an end shows only here.
        if not self._ready:
            self._received += len(data)
            if self._phase != BODY:
                if self._received > MAX_HEAD:
                    self.refusal = self.refusal or HEAD_TOO_LARGE
            elif self._received > MAX_HEAD + 2 * self._max_body:
                self.refusal = self.refusal or body_too_large(self._max_body)

    def take(self) -> list[Request]:
        """The requests that are complete."""
        ready, self._ready = self._ready, []
        return ready

    @property
    def phase(self) -> int:
        """What is waited for."""
        return self._phase if self._received else IDLE

    @property
    def held(self) -> int:
        """Bytes of bodies."""
        return self._body_bytes + sum(len(request.body) for request in self._ready)

    # -- httptools' callbacks --------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._received = self._received or 1

    def on_url(self, url: bytes) -> None:
        self._target += url
        if len(self._target) > MAX_TARGET:
            self.refusal = self.refusal or TARGET_TOO_LONG

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._phase == BODY:
            return  # a trailer: nobody has asked for it
        size = len(name)
        self._head_bytes += size + len(value)
        if size == 6 and name.lower() == b"expect":
            self._expects = value.lower()
        elif size == 14 and name.lower() == b"content-length":
            # The application is told how much has come, which chunks do not announce.
            self._announced = int(value)
            return
        # nginx passes over names with an underscore, too: A_B and A-B are one to WSGI.
        if b"_" not in name:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._phase = BODY
        size = self._head_bytes + len(self._target)
        if size > MAX_HEAD or len(self._headers) > MAX_FIELDS:
            self.refusal = self.refusal or HEAD_TOO_LARGE
        if self._announced > self._max_body:
            self.refusal = self.refusal or body_too_large(self._max_body)
        if self._parser.should_upgrade() and self._has_body():
            self.refusal = self.refusal or UPGRADE
        if self._expects is not None:
            self._weigh_expectation()
        if not self._target.startswith(b"/"):
            self._take_absolute_target()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body:
            self.refusal = self.refusal or body_too_large(self._max_body)
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self.awaits_continue = False
        if self.refusal is None:
            parser = self._parser
            version = parser.get_http_version()
            keep_alive = parser.should_keep_alive() and version != "1.0"
            self._ready.append(
                Request(
                    parser.get_method(),
                    self._target,
                    self._headers,
                    b"".join(self._body),
                    version,
                    keep_alive,
                )
            )
        self._begin()

    def _begin(self) -> None:
        self._target = b""
        self._headers = []
        self._expects = None
        self._announced = 0
        self._body = []
        self._phase = HEAD
        self._received = self._head_bytes = self._body_bytes = 0

    def _has_body(self) -> bool:
        chunked = any(name.lower() == b"transfer-encoding" for name, _ in self._headers)
        return chunked or self._announced > 0

    def _weigh_expectation(self) -> None:
        if self._expects != b"100-continue":
            self.refusal = self.refusal or EXPECTATION
        else:
            self.awaits_continue = self._parser.get_http_version() != "1.0"

    def _take_absolute_target(self) -> None:
        """``http://host/path`` means the path (RFC 9112, 3.2.2)."""
        scheme, mark, rest = self._target.partition(b"://")
        if not mark or scheme.lower() not in (b"http", b"https"):
            if self._target != b"*":
                self.refusal = self.refusal or BAD_TARGET
            return
        slash = rest.find(b"/")
        self._target = rest[slash:] if slash >= 0 else b"/"
