"""HTTP/2's frames on a socket, without GOAWAY: h2 takes the connection for closed after it, while
a server that reloads finishes the streams that it has taken (RFC 9113, section 6.8)."""

import math
import socket
from typing import Any

HEAD_BYTES = 9
GOAWAY = 7


class Frames:
    """A socket whose ``recv`` gives whole frames. ``last_taken`` is the last stream that the
    server has said it will answer."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._buffer = b""
        self.last_taken: float = math.inf

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)

    def recv(self, size: int) -> bytes:
        """At least one frame; empty at the end."""
        while True:
            data = self._socket.recv(size)
            self._buffer += data
            if (whole := self._whole()) or not data:
                return whole

    def _whole(self) -> bytes:
        kept, at = [], 0
        while len(self._buffer) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + int.from_bytes(self._buffer[at : at + 3])
            if end > len(self._buffer):
                break
            frame, at = self._buffer[at:end], end
            if frame[3] == GOAWAY:
                self.last_taken = int.from_bytes(frame[HEAD_BYTES : HEAD_BYTES + 4]) & 0x7FFFFFFF
            else:
                kept.append(frame)
        self._buffer = self._buffer[at:]
        return b"".join(kept)
