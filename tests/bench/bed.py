"""The two sides of each comparison, and the engines behind both."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.bench.plain import WORKERS, start_plain
from tests.bench.stub import FRAMES, start_stub
from tests.harness.client import CHAT
from tests.harness.node import Engine, Node, wait_for

STUB = "/stub"
"""The path that goes to the stub engine; :data:`CHAT` goes to the simulator."""
BEATS = "/beats"
"""Goes to the simulator as well, with heartbeats."""
LIMITS = {"max_streams": 1_000_000, "max_tokens": 1_000_000_000}
SETTLE_S = 30.0


@dataclass(frozen=True)
class Side:
    """One of the two: where it listens, and its processes. ``pids``: all that belong to it;
    ``workers``: nginx's workers; ``settle``: waits until no stream is left in it."""

    name: str
    port: int
    pids: Callable[[], list[int]]
    workers: Callable[[], list[int]]
    settle: Callable[[], None]


@dataclass(frozen=True)
class Bed:
    """Everything that one run needs."""

    folder: Path
    engine: Engine
    node: Node
    plain: Side
    weir: Side
    access_log: bool
    """Whether Weir writes its own, as it does unless told otherwise."""

    @property
    def sides(self) -> tuple[Side, Side]:
        """In the order of each round."""
        return self.plain, self.weir


@contextmanager
def make_bed(folder: Path, access_log: bool) -> Iterator[Bed]:
    """A simulator and a stub, with both sides before them; all stopped in the end.

    Limits are out of the way: it is Weir's cost that is measured, not its refusals.
    """
    with ExitStack() as stack:
        engine = Engine("--kv-tokens", "1000000000")
        stack.callback(engine.stop)
        stub = start_stub(folder / "stub")
        stack.callback(stub.stop)
        engines = {CHAT: engine.url, STUB: f"http://127.0.0.1:{stub.port}"}
        plain = start_plain(folder / "plain", engines)
        stack.callback(plain.stop)
        node = Node(
            folder / "weir",
            [],
            pools={
                name: {"backends": [{"name": "gpu-0", "url": url, **LIMITS}]}
                for name, url in zip(("default", "stub"), engines.values(), strict=True)
            },
            routes=[
                {"path": CHAT, "pool": "default"},
                {"path": STUB, "pool": "stub"},
                {"path": BEATS, "pool": "default", "heartbeat": "5s"},
            ],
            nginx={"workers": WORKERS, "access_log": access_log, "error_level": "crit"},
        )
        stack.push(partial(_stop, node))
        yield Bed(
            folder,
            engine,
            node,
            Side("plain", plain.port, plain.pids, plain.workers, lambda: None),
            _weir_side(node),
            access_log,
        )


def _stop(node: Node, kind: object, *_: object) -> None:
    """Stop a node; what it complains of then does not hide the error that led here."""
    try:
        node.stop()
    except AssertionError:
        if kind is None:
            raise


def _weir_side(node: Node) -> Side:
    """A node as a side: its supervisor, the admission service and nginx."""

    def pids() -> list[int]:
        root = psutil.Process(node.process.pid)
        return [root.pid, *(child.pid for child in root.children(recursive=True))]

    def settle() -> None:
        wait_for(lambda: not any(pool["streams"] for pool in _pools(node)), SETTLE_S)

    return Side("weir", node.port, pids, lambda: node.workers("nginx"), settle)


def _pools(node: Node) -> list[dict[str, Any]]:
    return list(node.get("/v1/pools")["pools"])


def short_stream() -> bytes:
    """The request for a stream that is over at once."""
    return json.dumps(
        {
            "stream": True,
            "sim": {"frames": FRAMES, "gap_ms": 0, "first_ms": 0},
            "messages": [{"role": "user", "content": "hi"}],
        }
    ).encode()


def post(path: str, body: bytes) -> bytes:
    """A whole HTTP/1.1 request."""
    return (
        b"POST %b HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (path.encode(), len(body), body)
    )
