"""The two protocols, from one request's point of view."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol

import h2.events

from tests.chaos.frames import Frames
from tests.chaos.plan import Request
from tests.harness.client import Client
from tests.harness.h2client import H2Client

SILENCE_S = 30.0
"""Longer than any answer that is not streamed, with any pause that a fault makes."""
SMALL_BUFFER = 4_096


class SentAway(ConnectionError):
    """GOAWAY before the request was taken."""


class Conversation(Protocol):
    """What both protocols have in common. All of it raises ``OSError``."""

    port: int
    status: int
    headers: dict[str, str]

    def wait_at_most(self, seconds: float) -> None:
        """For how long the next reads wait."""

    def ask(self, request: Request) -> None:
        """Send the request."""

    def head(self) -> None:
        """Read status and headers."""

    def more(self) -> bytes:
        """The next piece of the body; empty only at its proper end."""

    def leave(self, how: str | None) -> None:
        """Close, in some way."""


class Http1:
    """A :class:`Conversation` over HTTP/1.1."""

    def __init__(self, port: int, slow: bool) -> None:
        self._client = Client(port, SILENCE_S, SMALL_BUFFER if slow else 0)
        self.port = self._client.socket.getsockname()[1]
        self.status = 0
        self.headers: dict[str, str] = {}

    def wait_at_most(self, seconds: float) -> None:
        self._client.socket.settimeout(seconds)

    def ask(self, request: Request) -> None:
        body = request.body()
        half = len(body) // 2 if request.uploads else len(body)
        self._client.post(body[:half], request.path, _headers(request), len(body))
        if request.uploads:
            time.sleep(request.uploads)
            # Refused long ago, and closed a second later: the answer has come all the same.
            with suppress(ConnectionError):
                self._client.socket.sendall(body[half:])

    def head(self) -> None:
        response = self._client.head()
        self.status, self.headers = response.status, response.headers

    def more(self) -> bytes:
        return self._client.events(1)[0]

    def leave(self, how: str | None) -> None:
        if how == "rst":
            self._client.rst()
        else:
            self._client.fin()


class Http2(H2Client):
    """A :class:`Conversation` over HTTP/2."""

    def __init__(self, port: int, slow: bool) -> None:
        del slow
        super().__init__(port, SILENCE_S)
        self.port = self.socket.getsockname()[1]
        self.finished = False
        self._wire = self.socket = Frames(self.socket)  # type: ignore[assignment]
        self._read = 0

    def wait_at_most(self, seconds: float) -> None:
        self.socket.settimeout(seconds)

    def ask(self, request: Request) -> None:
        with self._sent_away():
            self.post(request.body(), request.path, _headers(request))

    def head(self) -> None:  # type: ignore[override]
        with self._sent_away():
            self.read_until(lambda: self.status)
            if not self.status:
                raise ConnectionError(f"closed, reset {self.reset}")

    def more(self) -> bytes:
        self.read_until(lambda: len(self.body) > self._read)
        piece = self.body[self._read :]
        self._read = len(self.body)
        if not piece and not self.finished:
            raise ConnectionError(f"closed, reset {self.reset}")
        return piece

    def leave(self, how: str | None) -> None:
        if how == "cancel" and not self.ended:
            self.cancel()
            time.sleep(0.02)
        self.close()

    @contextmanager
    def _sent_away(self) -> Iterator[None]:
        """Tells a connection that broke from one whose server had said that it would."""
        try:
            yield
        except ConnectionError as exc:
            with suppress(OSError):
                while self._wire.recv(65_536):
                    pass  # what it said before it closed
            if self._wire.last_taken < self.stream:
                raise SentAway("GOAWAY before the request was taken") from exc
            raise

    def _take(self, event: Any) -> None:
        self.finished = self.finished or isinstance(event, h2.events.StreamEnded)
        super()._take(event)


def _headers(request: Request) -> dict[str, str]:
    accept = "text/event-stream" if request.streams else "application/json"
    return {"x-medical-scene": request.scene, "accept": accept}
