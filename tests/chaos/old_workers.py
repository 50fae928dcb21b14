"""nginx's old workers, which finish their streams and cut what is left after `shutdown_timeout`."""

import math
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.chaos.causes import Cause, Causes
from tests.chaos.faults import AFTERMATH_S, CUT, RELAY_LOST, RELAY_MISSED_S
from tests.chaos.sockets import client_ports
from tests.harness.node import Node

CLOCK_S = 0.25
"""A busy worker's clock is that of its last look at it: its timer runs from there."""


class OldWorkers:
    """Which clients they cut, and from when on they may. ``cut_after_s``: `shutdown_timeout`.
    Times are monotonic."""

    def __init__(self, causes: Causes, cut_after_s: float) -> None:
        self._causes = causes
        self._cut_after_s = cut_after_s
        self._looked = time.monotonic()
        self._leaving: dict[int, tuple[Cause, Cause]] = {}

    @property
    def known(self) -> Iterable[int]:
        """Those that left when it was looked last."""
        return self._leaving.keys()

    def look(self, leaving: Mapping[int, frozenset[int]], now: float) -> None:
        """Take note of those that leave at a moment, with the ports of their clients: whoever was
        one while it left is cut from the end of its time on, and not before."""
        for pid, ports in leaving.items():
            if pid not in self._leaving:
                self._leaving[pid] = self._begin(pid)
            cause, _ = self._leaving[pid]
            cause.ports = (cause.ports or frozenset()) | ports
        for pid in self._leaving.keys() - leaving.keys():
            for cause in self._leaving.pop(pid):
                # Before its time it has cut nobody.
                after = RELAY_MISSED_S if cause.relayed else AFTERMATH_S
                cause.until = now + after if now >= cause.at else -math.inf
        self._looked = now

    def _begin(self, pid: int) -> tuple[Cause, Cause]:
        """It began to leave after the last look."""
        at = self._looked + self._cut_after_s - CLOCK_S
        name = f"# shutdown_timeout of worker {pid}"
        return (
            self._causes.add(name, (CUT,), at, ports=frozenset()),
            self._causes.add(name, RELAY_LOST, at, relayed=True),
        )


def leaving(node: Node, known: Iterable[int]) -> dict[int, frozenset[int]]:
    """nginx's workers that are shutting down, with their clients' ports. ``known`` are looked at in
    any case: while one child ends the kernel's list may lack another."""
    mine = {node.port, node.h2_port}
    found = {*known, *_children(node)}
    return {pid: client_ports(pid, mine) for pid in found if _leaves(pid)}


def _children(node: Node) -> Iterable[int]:
    try:
        master = node.pid("nginx")
        return map(int, Path(f"/proc/{master}/task/{master}/children").read_text().split())
    except (OSError, ValueError):
        return ()  # it is gone: what is left of it is ended with it


def _leaves(pid: int) -> bool:
    try:
        return b"is shutting down" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
