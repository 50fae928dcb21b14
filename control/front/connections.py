"""The connections of one listener: how many there may be, and what they may hold."""

import contextlib
import os
import socket
from typing import Any


class Connections:
    """Where there are ``most``, the one that has kept us waiting longest, for a request or for
    its reading an answer, makes room: slow clients cannot keep others out. The bodies of all have
    at most ``most_bytes``."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._held: dict[Any, int] = {}
        self._waiting: dict[Any, None] = {}
        self._asking: set[Any] = set()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def enter(self, client: Any) -> bool:
        """One more; False where all are being answered, and none can make room."""
        if len(self._held) >= self._most:
            oldest = next(iter(self._waiting), None)
            if oldest is None:
                return False
            del self._waiting[oldest]
            hang_up(oldest, socket.SHUT_RDWR)
        self._held[client] = 0
        self._waiting[client] = None
        self._asking.add(client)
        return True

    def leave(self, client: Any) -> None:
        """One less."""
        self._bytes -= self._held.pop(client, 0)
        self._waiting.pop(client, None)
        self._asking.discard(client)

    @property
    def any_asks(self) -> bool:
        """Whether a request is on its way: a connection's first, or one that has come in part."""
        return bool(self._asking)

    def asks(self, client: Any) -> None:
        """A request has come in part."""
        self._asking.add(client)

    def has_asked(self, client: Any) -> None:
        """The request is whole."""
        self._asking.discard(client)

    def waits(self, client: Any) -> None:
        """From now on the client is waited for."""
        self._waiting[client] = None

    def is_answered(self, client: Any) -> None:
        """The client waits for us."""
        self._waiting.pop(client, None)

    def hold(self, client: Any, size: int) -> bool:
        """The client's bodies have so many bytes; False where that is too much."""
        self._bytes += size - self._held[client]
        self._held[client] = size
        return self._bytes <= self._most_bytes

    def close_for_reading(self, *, but_who_asks: bool = False) -> None:
        """What has been asked is answered; then each reads the end."""
        for client in self._held.keys() - (self._asking if but_who_asks else set()):
            hang_up(client, socket.SHUT_RD)


def hang_up(client: Any, how: int) -> None:
    """Shut down a connection whose greenlet reads or writes, below its TLS."""
    with (
        contextlib.suppress(OSError),  # it has just closed by itself
        socket.socket(fileno=os.dup(client.fileno())) as twin,
    ):
        twin.shutdown(how)
