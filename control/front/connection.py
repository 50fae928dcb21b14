"""One connection: its requests are answered one after the other, until it ends."""

import contextlib
import socket
import time
from collections.abc import Callable
from typing import Any

from control.front.answer import Answered, WsgiApp, answer
from control.front.connections import hang_up
from control.front.door import Door
from control.front.listener import IDLE
from control.front.refusal import FULL, TIMED_OUT, Refusal
from control.front.request import Gathered, Request, listener_environ

READ_BYTES = 64 << 10
LINGER_S = 0.5
"""How long a client that was refused may go on sending: closing at once would take back our
answer (a reset overtakes what the client has not read)."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection:
    """A client that has come in. ``stays`` tells whether the worker goes on; ``peer`` is the
    client's address."""

    def __init__(
        self,
        client: Any,
        app: WsgiApp,
        door: Door,
        stays: Callable[[], bool],
        peer: str = "",
    ) -> None:
        self._client = client
        self._app = app
        self._connections = door.connections
        self._turns = door.turns()
        self._stays = stays
        listener = door.listener
        self._patience = listener.patience
        scheme = "https" if listener.tls else "http"
        self._environ = listener_environ(listener.plane, listener.local, scheme, peer)
        self._gathered = Gathered(listener.max_body)
        self._phase: int | None = IDLE
        self._deadline = time.monotonic() + (self._patience.head_s if self._patience else 0.0)

    def serve(self) -> None:
        """Answer what comes. An OSError is the client's end, or that of our patience with it."""
        gathered = self._gathered
        while data := self._receive():
            while data:
                gathered.feed(data)
                data = b""
                for request in gathered.take():
                    kept, rest = self._answer(request)
                    if not kept:
                        return
                    data += rest
                if gathered.refusal:
                    self._refuse(gathered.refusal)
                    return
            if gathered.phase != IDLE:
                self._connections.asks(self._client)
            if gathered.awaits_continue:
                gathered.awaits_continue = False
                self._send(CONTINUE)
            if self._patience and not self._connections.hold(self._client, gathered.held):
                self._refuse(FULL)
                return

    def _receive(self) -> bytes:
        """What comes next; nothing at the connection's end."""
        if self._patience is None:
            data: bytes = self._client.recv(READ_BYTES)
            return data
        phase = self._gathered.phase
        if phase != self._phase:
            self._phase = phase
            self._deadline = time.monotonic() + self._patience.wait_s(phase)
        self._client.settimeout(max(0.001, self._deadline - time.monotonic()))
        try:
            data = self._client.recv(READ_BYTES)
        except TimeoutError:
            if phase != IDLE:
                self._refuse(TIMED_OUT)
            return b""
        return data

    def _answer(self, request: Request) -> Answered:
        keep = request.keep_alive and self._stays()
        environ = request.environ(self._environ)
        self._connections.has_asked(self._client)
        if self._patience is None:
            return answer(self._client, self._app, request, environ, keep)
        self._turns.take()
        self._connections.is_answered(self._client)
        self._client.settimeout(self._patience.send_s)
        answered = answer(self._client, self._app, request, environ, keep, is_made=self._is_to_read)
        self._connections.waits(self._client)
        self._phase = None
        return answered

    def _is_to_read(self) -> None:
        self._connections.waits(self._client)

    def _send(self, wire: bytes) -> None:
        self._client.settimeout(self._patience and self._patience.send_s)
        self._client.sendall(wire)

    def _refuse(self, refusal: Refusal) -> None:
        self._send(refusal.wire)
        hang_up(self._client, socket.SHUT_WR)
        deadline = time.monotonic() + LINGER_S
        with contextlib.suppress(OSError):
            while (left := deadline - time.monotonic()) > 0:
                self._client.settimeout(left)
                if not self._client.recv(READ_BYTES):
                    return
