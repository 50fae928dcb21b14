"""An engine of which every byte and every pause is known."""

import contextlib
import socket
import threading
import time

HEAD = (
    b"HTTP/1.1 200 OK\r\nConnection: close\r\n"
    b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
"""It says that it closes: nginx would keep the connection, and send the next request on it."""
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


class Scripted:
    """Plays ``parts`` to each request, a number being seconds, and then closes."""

    def __init__(self, *parts: bytes | float, reads: bool = True) -> None:
        self.parts = parts
        self.reads = reads
        self.busy_s = 0.0
        """For so long it reads nothing of a request."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.left_at: list[float] = []
        self.requests: list[bytes] = []
        """What came first on each connection: head, and what there was of the body."""
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            time.sleep(self.busy_s)
            if self.reads:
                self.requests.append(connection.recv(1 << 20))
            for part in self.parts:
                if isinstance(part, float):
                    if self._left(connection, part):
                        self.left_at.append(time.time())
                        return
                else:
                    connection.sendall(part)
            connection.shutdown(socket.SHUT_WR)
            self._left(connection, 1.0)

    def _left(self, connection: socket.socket, seconds: float) -> bool:
        connection.settimeout(seconds)
        try:
            while True:
                if not connection.recv(1 << 16):
                    return True
        except TimeoutError:
            return False
        except OSError:
            return True

    def stop(self) -> None:
        self.listener.close()
