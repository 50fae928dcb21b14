"""The same over cleartext HTTP/2, one stream a connection."""

import socket
import time
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events

CHAT = "/v1/chat/completions"


class H2Client:
    """A connection with one request on it."""

    def __init__(self, port: int, timeout_s: float = 10.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self.connection = h2.connection.H2Connection(config)
        self.connection.initiate_connection()
        self._flush()
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.ended = False
        self.reset: Any = None
        self.stream = 0

    def post(
        self,
        body: bytes,
        path: str = CHAT,
        headers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> "H2Client":
        fields = [
            (":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", path),
            ("content-type", "application/json"),
            ("content-length", str(len(body) if length is None else length)),
            *(headers or {}).items(),
        ]  # fmt: skip
        self.stream = self.connection.get_next_available_stream_id()
        self.connection.send_headers(self.stream, fields)
        end = length is None or length == len(body)
        for at in range(0, len(body), 16_000):
            if self.connection.local_flow_control_window(self.stream) < 16_000:
                break  # the rest stays unsent
            last = at + 16_000 >= len(body)
            self.connection.send_data(self.stream, body[at : at + 16_000], end_stream=last and end)
        self._flush()
        return self

    def read_until(self, condition: Any) -> None:
        """Take in what comes until the condition holds or the stream is over."""
        while not condition() and not self.ended:
            data = self.socket.recv(65536)
            if not data:
                self.ended = True
                return
            for event in self.connection.receive_data(data):
                self._take(event)
            self._flush()

    def head(self) -> "H2Client":
        self.read_until(lambda: self.status)
        return self

    def rest(self) -> bytes:
        self.read_until(lambda: False)
        return self.body

    def cancel(self) -> float:
        """RST_STREAM with CANCEL; the wall time of it. The connection stays open."""
        self.connection.reset_stream(self.stream, h2.errors.ErrorCodes.CANCEL)
        at = time.time()
        self._flush()
        return at

    def close(self) -> float:
        at = time.time()
        self.socket.close()
        return at

    def _take(self, event: Any) -> None:
        match event:
            case h2.events.ResponseReceived():
                fields = dict(event.headers)
                self.status = int(fields.pop(":status"))
                self.headers = fields
            case h2.events.DataReceived():
                self.body += event.data
                self.connection.acknowledge_received_data(
                    event.flow_controlled_length, event.stream_id
                )
            case h2.events.StreamEnded():
                self.ended = True
            case h2.events.StreamReset():
                self.reset = event.error_code
                self.ended = True

    def _flush(self) -> None:
        self.socket.sendall(self.connection.data_to_send())
