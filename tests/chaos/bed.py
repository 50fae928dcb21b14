"""The parts under test: a node with two engines that a single stream too many would crash."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos import plan
from tests.harness.node import Engine, Node

ENGINES = 2
NGINX_WORKERS = 3
MAX_STREAMS = 12
MAX_TOKENS = 96_000
"""Twelve streams of the mean size: now the one limit binds, now the other."""
BLOCK_SLACK = 16 * MAX_STREAMS
"""Tokens that an engine may lose in half-filled blocks."""
SESSION_TTL_S = 3.0
TOLERATED = ("exited on signal 9", "exited on signal 11")
"""What nginx's master says of workers that were killed."""


@dataclass(frozen=True)
class Bed:
    """``engines`` by their backend's name. ``local``: whether nginx decides while the service
    is away."""

    node: Node
    engines: dict[str, Engine]
    local: bool


@contextmanager
def make_bed(folder: Path, local: bool) -> Iterator[Bed]:
    """Everything started. The engines are stopped in the end; the node is whoever's who checks
    what it leaves, or else stopped by force."""
    engines: dict[str, Engine] = {}
    try:
        for n in range(ENGINES):
            engines[f"gpu-{n}"] = Engine("--kv-tokens", str(MAX_TOKENS + BLOCK_SLACK))
        node = Node(
            folder,
            [engine.url for engine in engines.values()],
            pool={
                "session_ttl": f"{SESSION_TTL_S:g}s",
                "when_down": "local" if local else "refuse",
                "drain": "1s",  # an engine that shares its CPU with all else notices late
            },
            limits={"max_streams": MAX_STREAMS, "max_tokens": MAX_TOKENS},
            admission={"budget": "1s"},
            nginx={"workers": NGINX_WORKERS},
            scenes={"default": "long", "expected_output": plan.SCENES},
        )
        node.tolerated = TOLERATED
        try:
            yield Bed(node, engines, local)
        finally:
            _end(node)
    finally:
        for engine in engines.values():
            engine.stop()


def _end(node: Node) -> None:
    """Stop it, if nobody has: the second signal ends its patience."""
    for wait_s in (1.0, 20.0):
        if node.process.poll() is None:
            node.process.terminate()
            try:
                node.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
