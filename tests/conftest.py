"""Fixtures: engines and nodes that are stopped, and found clean, at the end."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.harness.node import Engine, Node
from tests.harness.scripted import Scripted

# A run says the same each time. `HYPOTHESIS_PROFILE=default make test` looks further.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture
def start_engine() -> Iterator[Callable[..., Engine]]:
    """Starts engine simulators for one test."""
    engines: list[Engine] = []

    def start(*options: str) -> Engine:
        engines.append(Engine(*options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """Starts nodes for one test."""
    nodes: list[Node] = []

    def start(engines: list[str], **settings: Any) -> Node:
        nodes.append(Node(tmp_path / f"n{len(nodes)}", engines, **settings))
        return nodes[-1]

    yield start
    for node in nodes:
        if node.process.poll() is None:
            node.stop()


@pytest.fixture
def play(start_node: Callable[..., Node]) -> Iterator[Callable[..., tuple[Node, Scripted]]]:
    """A node before an engine that plays what it is told."""
    engines: list[Scripted] = []

    def start(*parts: bytes | float, reads: bool = True, **settings: Any) -> tuple[Node, Scripted]:
        engines.append(Scripted(*parts, reads=reads))
        return start_node([engines[-1].url], **settings), engines[-1]

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """One engine for a module."""
    engine = Engine()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def node(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """One node with mission 000's limits before it, for a module."""
    node = Node(tmp_path_factory.mktemp("node"), [engine.url])
    yield node
    node.settled()
    node.stop()
