"""Holds streams open, in a process of its own: descriptors are counted by process.

``python -m tests.bench.hold PORT``: each line on stdin is a number of streams to have open; the
answer, on stdout, is how many are open and have had their first event, at the latest after
``TIMEOUT_S``. Ends with stdin.
"""

import asyncio
import resource
import sys
from typing import cast

import uvloop

from tests.bench.bed import post
from tests.harness.client import CHAT, chat_body

AT_ONCE = 100
"""Streams that are being opened."""
TIMEOUT_S = 30.0
# Within nginx's patience, and long enough for nothing to pass while memory is read.
REQUEST = post(CHAT, chat_body(100, gap_ms=150_000, first_ms=0, payload="x"))


class Held(asyncio.Protocol):
    """One stream. ``opened`` is set when it had its first event, which ``first`` tells, or
    ended."""

    def __init__(self) -> None:
        self.opened = asyncio.get_running_loop().create_future()
        self.first = False
        self.alive = True
        self._seen = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self.transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        if self.opened.done():
            return
        self._seen += data
        if b"data:" in self._seen:
            self.first = self._seen.startswith(b"HTTP/1.1 200")
            self.opened.set_result(None)
            self._seen = b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.alive = False
        if not self.opened.done():
            self.opened.set_result(None)


async def _hold(port: int) -> None:
    loop = asyncio.get_running_loop()
    gate = asyncio.Semaphore(AT_ONCE)
    streams: list[Held] = []

    async def one() -> None:
        async with gate:
            _, held = await loop.create_connection(Held, "127.0.0.1", port)
            streams.append(held)
            await held.opened

    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
                for _ in range(int(line) - len(streams)):
                    group.create_task(one())
        except (TimeoutError, ExceptionGroup) as exc:
            print(f"hold: {exc!r}", file=sys.stderr)
        print(sum(held.alive and held.first for held in streams), flush=True)
    for held in streams:
        held.transport.abort()


def main() -> None:
    """Hold until stdin ends."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    uvloop.run(_hold(int(sys.argv[1])))


if __name__ == "__main__":
    main()
