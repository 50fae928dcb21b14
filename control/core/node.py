"""A node: what its agent last said of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

SILENT_AFTER_S = 5.0
"""Agents report each second; one that has not for so long is silent."""


class MemoryState(StrEnum):
    """How full a node's memory is, as its agent judges it."""

    OK = "ok"
    ALARM = "alarm"
    FULL = "full"


@dataclass(slots=True)
class Node:
    """``report`` is the agent's own, shown as it is. ``last_seen`` in monotonic seconds."""

    name: str
    last_seen: float
    memory: MemoryState = MemoryState.OK
    report: Mapping[str, Any] = field(default_factory=dict)

    def is_silent(self, now: float) -> bool:
        """Whether its agent has not been heard for too long."""
        return now - self.last_seen > SILENT_AFTER_S

    def admits(self, now: float) -> bool:
        """Whether new streams may start on it. A silent agent's word no longer counts: a dead
        daemon must not close a node."""
        return self.memory is not MemoryState.FULL or self.is_silent(now)
