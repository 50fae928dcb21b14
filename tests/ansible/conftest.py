"""Machines of a bare Debian 12 under systemd, and playbooks run against them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.machine import Machine, Network
from tests.harness.node import Engine
from tests.harness.playbook import Site
from tests.harness.root import bare_debian, why_no_machine


@pytest.fixture(scope="module")
def start_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Machine]]:
    """Boots machines for a module."""
    if reason := why_no_machine():
        pytest.skip(reason)
    root, network = bare_debian(), Network()
    machines: list[Machine] = []

    def start(name: str) -> Machine:
        machines.append(Machine(root, tmp_path_factory.mktemp(name), network, name))
        return machines[-1]

    yield start
    for machine in machines:
        machine.stop()
    network.stop()


@pytest.fixture(scope="module")
def start_engine_at() -> Iterator[Callable[[str], Engine]]:
    """Starts engine simulators where machines reach them."""
    engines: list[Engine] = []

    def start(host: str) -> Engine:
        engines.append(Engine(host=host))
        return engines[-1]

    yield start
    for engine in engines:
        engine.stop()


@pytest.fixture(scope="module")
def make_site(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Site]:
    """Inventories for a module."""

    def make(**common: Any) -> Site:
        # No more descriptors than this machine may give away.
        return Site(tmp_path_factory.mktemp("site"), weir_nofile=8192, **common)

    return make


@pytest.fixture(scope="session")
def ansible_folder() -> Path:
    return Path(__file__).parents[2] / "ansible"
