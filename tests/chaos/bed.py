"""The parts under test: a node with engines that a single stream too many would crash."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos import plan
from tests.harness.node import Engine, Node

BACKENDS = {"default": ("gpu-0", "gpu-1"), "beats": ("gpu-2",)}
"""By pool. The second one has the route with heartbeats."""
DRAIN_S = 1.0
"""An engine that shares its CPU with all else notices late."""
RELAYED_DRAIN_S = 2.0
"""A worker that relays for others may stand still for so long, and keeps their engine meanwhile."""
NGINX_WORKERS = 3
MAX_STREAMS = 12
MAX_TOKENS = 96_000
"""Twelve streams of the mean size: now the one limit binds, now the other."""
BLOCK_SLACK = 16 * MAX_STREAMS
"""Tokens that an engine may lose in half-filled blocks."""
SESSION_TTL_S = 3.0
HEARTBEAT_S = 0.5
BUDGET_S = 1.0
"""For a decision: the machine is busier than any that serves."""
TOLERATED = ("exited on signal 9", "exited on signal 11")
"""What nginx's master says of workers that were killed."""


@dataclass(frozen=True)
class Bed:
    """``engines`` by their backend's name. ``local``: whether nginx decides while the service
    is away. ``shutdown_s``: how long its old workers may finish their streams."""

    node: Node
    engines: dict[str, Engine]
    local: bool
    shutdown_s: float


@contextmanager
def make_bed(folder: Path, seed: int) -> Iterator[Bed]:
    """Everything started. The engines are stopped in the end; the node is whoever's who checks
    what it leaves, or else stopped by force."""
    engines: dict[str, Engine] = {}
    local = plan.admits_locally(seed)
    shutdown_s = plan.shutdown_timeout_s(seed)
    direct, beats = plan.PATHS
    try:
        for name in sum(BACKENDS.values(), ()):
            engines[name] = Engine("--kv-tokens", str(MAX_TOKENS + BLOCK_SLACK))
        node = Node(
            folder,
            [],
            pools={
                "default": _pool("default", engines, local, DRAIN_S),
                "beats": _pool("beats", engines, local, RELAYED_DRAIN_S),
            },
            admission={"budget": f"{BUDGET_S:g}s"},
            nginx={"workers": NGINX_WORKERS, "shutdown_timeout": f"{shutdown_s:g}s"},
            routes=[
                {"path": direct, "pool": "default"},
                {"path": beats, "pool": "beats", "heartbeat": f"{HEARTBEAT_S:g}s"},
            ],
            scenes={"default": "long", "expected_output": plan.SCENES},
        )
        node.tolerated = TOLERATED
        try:
            yield Bed(node, engines, local, shutdown_s)
        finally:
            _end(node)
    finally:
        for engine in engines.values():
            engine.stop()


def _pool(name: str, engines: dict[str, Engine], local: bool, drain_s: float) -> dict[str, Any]:
    limits = {"max_streams": MAX_STREAMS, "max_tokens": MAX_TOKENS}
    return {
        "session_ttl": f"{SESSION_TTL_S:g}s",
        "when_down": "local" if local else "refuse",
        "drain": f"{drain_s:g}s",
        "backends": [{"name": each, "url": engines[each].url, **limits} for each in BACKENDS[name]],
    }


def _end(node: Node) -> None:
    """Stop it, if nobody has: the second signal ends its patience."""
    for wait_s in (1.0, 20.0):
        if node.process.poll() is None:
            node.process.terminate()
            try:
                node.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
