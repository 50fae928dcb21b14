"""A client that can be as rude as real ones: raw HTTP/1.1 on a socket."""

import json
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Self

CHAT = "/v1/chat/completions"


def chat_body(frames: int = 20, gap_ms: float = 20, prompt: str = "发热三天", **sim: Any) -> bytes:
    """A request that the simulator answers with so many events."""
    asked = {
        "model": "sim",
        "stream": True,
        "messages": [{"role": "user", "content": prompt}],
        "sim": {"frames": frames, "gap_ms": gap_ms, "first_ms": 5, **sim},
    }
    return json.dumps(asked).encode()


class Response:
    """Status, headers (lower case) and the body so far."""

    def __init__(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        self.status = int(lines[0].split()[1])
        self.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.headers}>"


class Client:
    """One connection. ``receive_buffer`` bounds what the kernel takes unread."""

    def __init__(
        self,
        port: int,
        timeout_s: float = 10.0,
        receive_buffer: int = 0,
        host: str = "127.0.0.1",
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(timeout_s)
        self.socket.connect((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fin()

    def post(
        self,
        body: bytes = b"",
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
        length: int | None = None,
        method: str = "POST",
    ) -> Self:
        """Send a request; ``length`` announces more than is sent."""
        fields = {
            "Host": "test",
            "Content-Type": "application/json",
            "Content-Length": str(len(body) if length is None else length),
            **(headers or {}),
        }
        head = f"{method} {path} HTTP/1.1\r\n"
        head += "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.socket.sendall(head.encode("utf-8") + b"\r\n" + body)
        return self

    def head(self) -> Response:
        """Read up to the end of the headers, passing over 100 Continue."""
        head = self._until(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            head = self._until(b"\r\n\r\n")
        self.response = Response(head)
        self.body, self.done = b"", False
        return self.response

    def events(self, count: int) -> list[bytes]:
        """So many events, as the engine wrote them."""
        found = []
        for _ in range(count):
            while b"\n\n" not in self.body and not self.done:
                self._pull()
            event, mark, self.body = self.body.partition(b"\n\n")
            found.append(event + mark)
        return found

    def rest(self) -> bytes:
        """The body from here to its end, without HTTP's framing."""
        while not self.done:
            self._pull()
        body, self.body = self.body, b""
        return body

    def request(self, body: bytes, **options: Any) -> tuple[Response, bytes]:
        """Post and read everything."""
        response = self.post(body, **options).head()
        return response, self.rest()

    def fin(self) -> float:
        """Leave politely; the wall time of it."""
        at = time.time()
        self.socket.close()
        return at

    def rst(self) -> float:
        """Leave by a reset; the wall time of it."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return self.fin()

    def closed(self) -> bool:
        """Whether the other side has closed; waits for it as long as the timeout."""
        try:
            return self.socket.recv(65536) == b""
        except ConnectionError:
            return True

    def _until(self, mark: bytes) -> bytes:
        while mark not in self.buffer:
            if not self._receive():
                raise ConnectionError(f"closed after {self.buffer!r}")
        part, _, self.buffer = self.buffer.partition(mark)
        return part + mark

    def _receive(self) -> bool:
        data = self.socket.recv(65536)
        self.buffer += data
        return bool(data)

    def _pull(self) -> None:
        """Move what has come from the wire into ``body``."""
        headers = self.response.headers
        if headers.get("transfer-encoding") == "chunked":
            size = int(self._until(b"\r\n").split(b";")[0], 16)
            while len(self.buffer) < size + 2:
                if not self._receive():
                    raise ConnectionError("closed within a chunk")
            self.body += self.buffer[:size]
            self.buffer = self.buffer[size + 2 :]
            self.done = size == 0
        elif "content-length" in headers:
            self.body += self.buffer
            self.buffer = b""
            self.done = len(self.body) >= int(headers["content-length"])
            if not self.done and not self._receive():
                raise ConnectionError("closed before the announced length")
        else:
            self.done = not self._receive()
            self.body += self.buffer
            self.buffer = b""


def error_of(body: bytes) -> dict[str, Any]:
    """The error object of a refusal, from its frame or its JSON."""
    text = body.decode()
    if text.startswith("event: error\n"):
        line = text.split("\n")[1]
        assert line.startswith("data: ")
        assert text.endswith("\n\n")
        text = line.removeprefix("data: ")
    return dict(json.loads(text)["error"])


def events_in(body: bytes) -> list[str]:
    """The data of each event of a body."""
    return [event.removeprefix("data: ") for event in body.decode().split("\n\n") if event.strip()]
