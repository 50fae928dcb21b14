"""A kept-alive connection that tells when the first ``data:`` of a stream came.

It looks at bytes as they come and waits for nothing itself, so that one loop can watch many.
"""

import socket
from typing import Self

READ_BYTES = 65_536
TIMEOUT_S = 10.0


class Refused(Exception):
    """Another answer than 200; the connection is of no use any more."""


class Answer:
    """An HTTP/1.1 answer as far as it has come. Headers and body may share a packet, and a
    header may end in what looks like a last chunk: the framing is read for what it is."""

    def __init__(self) -> None:
        self.begun = False
        """Whether the first ``data:`` of the body has come."""
        self.done = False
        """Whether the body is complete: the connection takes the next request."""
        self._rest = b""
        self._body = b""
        self._headers = True
        self._chunked = False
        self._trailer = False
        self._left = 0

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self._rest += data
        if self._headers and not self._read_headers():
            return
        while not self.done and (self._read_chunk() if self._chunked else self._read_plain()):
            pass
        if not self.begun:
            self.begun = b"data:" in self._body

    def _read_headers(self) -> bool:
        head, mark, rest = self._rest.partition(b"\r\n\r\n")
        if not mark:
            return False
        status, *lines = head.lower().split(b"\r\n")
        if not status.startswith(b"http/1.1 200"):
            raise Refused(status.decode("latin-1"))
        fields = dict(line.split(b":", 1) for line in lines)
        self._chunked = fields.get(b"transfer-encoding", b"").strip() == b"chunked"
        if not self._chunked:
            self._left = int(fields[b"content-length"])
        self._headers = False
        self._rest = rest
        return True

    def _read_plain(self) -> bool:
        """A body of known length: all that is there."""
        self._body += self._rest
        self._left -= len(self._rest)
        self._rest = b""
        self.done = self._left <= 0
        return False

    def _read_chunk(self) -> bool:
        """The next whole chunk, or the next line of the trailer; False where it is not there."""
        line, mark, rest = self._rest.partition(b"\r\n")
        if not mark:
            return False
        if self._trailer:
            self.done = not line
            self._rest = rest
            return True
        size = int(line.split(b";")[0], 16)
        if size == 0:
            self._trailer = True
            self._rest = rest
            return True
        if len(rest) < size + 2:
            self._body += rest[:size] if not self.begun and b"data:" in rest[:size] else b""
            return False
        self._body += rest[:size]
        self._rest = rest[size + 2 :]
        return True


class Connection:
    """One connection to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.answer = Answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, request: bytes) -> None:
        """Begin the next stream."""
        self.answer = Answer()
        self.socket.sendall(request)

    def read(self) -> bytes:
        """What has come; waits where that is nothing."""
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise Refused("closed")
        return data
