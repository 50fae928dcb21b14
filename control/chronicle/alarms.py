"""What a person should know of, raised and cleared once each: found by looking now and then.

An alarm that is raised is raised again only where its kind has changed, as from ``alarm`` to
``full``.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from control.chronicle.events import ALARM, NODE, Event
from control.core.node import MemoryState, Node
from control.core.pool import Pool, in_use

FULL_OVER_S = 2.0
"""A pool counts as full by the share of the last seconds, about so many, in which it was."""
SATURATED_AT, RELIEVED_AT = 0.8, 0.2


class Sight(NamedTuple):
    """What there is to be seen. ``fault``: why nothing can be kept; ``drift`` of the ledger."""

    pools: Sequence[Pool]
    nodes: Collection[Node]
    fault: str | None
    drift: int


class Alarm(NamedTuple):
    """One that is or is not: ``kind`` is empty where all is well."""

    name: str
    kind: str
    detail: str
    pool: str | None = None
    node: str | None = None

    @property
    def key(self) -> tuple[str, str | None, str | None]:
        return self.name, self.pool, self.node


@dataclass(slots=True)
class _Fullness:
    """How much of late a pool had no room, from 0 to 1."""

    level: float = 0.0
    looked_at: float = math.inf

    def look(self, is_full: bool, now: float) -> float:
        passed = max(0.0, min(now - self.looked_at, FULL_OVER_S))
        self.looked_at = now
        self.level += (1 - math.exp(-passed / FULL_OVER_S)) * (is_full - self.level)
        return self.level


@dataclass(slots=True)
class Alarms:
    """``smallest``: the tokens of the smallest request that there is, by the estimate."""

    smallest: int
    _silent: dict[str, bool] = field(default_factory=dict)
    _raised: dict[tuple[str, str | None, str | None], str] = field(default_factory=dict)
    """By alarm: its kind."""
    _fullness: dict[str, _Fullness] = field(default_factory=dict)

    def look(self, now: float, sight: Sight) -> list[Event]:
        """What has changed since the last look."""
        found = list(self._nodes(sight.nodes, now))
        told = [*map(self._saturated, sight.pools, [now] * len(sight.pools))]
        for node in sight.nodes:
            if not node.is_silent(now):  # what it said last may no longer be so
                told += _of_node(node)
        known = {node.name for node in sight.nodes}
        told += [Alarm(name, "", "", node=n) for name, _, n in self._raised if n and n not in known]
        told.append(Alarm("journal", "failed" if sight.fault else "", sight.fault or ""))
        drift = f"granted - ended - live is {sight.drift}: restart the service and report it"
        told.append(Alarm("drift", "drift" if sight.drift else "", drift))
        for alarm in told:
            found += self._changed(alarm, now)
        return found

    def _nodes(self, nodes: Collection[Node], now: float) -> Iterator[Event]:
        for node in nodes:
            silent = node.is_silent(now)
            if self._silent.get(node.name) is not silent:
                self._silent[node.name] = silent
                state = "silent" if silent else "up"
                yield Event(NODE, now, None, {"node": node.name, "state": state})
        for name in self._silent.keys() - {node.name for node in nodes}:
            del self._silent[name]

    def _saturated(self, pool: Pool, now: float) -> Alarm:
        open_now = [backend for backend in pool.backends.values() if backend.open_at(now)]
        is_full = bool(open_now) and not any(b.fits(self.smallest) for b in open_now)
        level = self._fullness.setdefault(pool.name, _Fullness()).look(is_full, now)
        is_raised = ("saturated", pool.name, None) in self._raised
        streams, tokens = in_use(open_now)
        told = (
            f"no room on any of {len(open_now)} open backends: {streams} streams and "
            f"{tokens} tokens are in use"
        )
        saturated = level > (RELIEVED_AT if is_raised else SATURATED_AT)
        return Alarm("saturated", "full" if saturated else "", told, pool=pool.name)

    def _changed(self, alarm: Alarm, now: float) -> Iterator[Event]:
        if alarm.kind == self._raised.get(alarm.key, ""):
            return
        data: dict[str, Any] = {"alarm": alarm.name}
        if alarm.pool or alarm.node:
            data = {"pool": alarm.pool, **data} if alarm.pool else {"node": alarm.node, **data}
        if alarm.kind:
            self._raised[alarm.key] = alarm.kind
            data |= {"state": "raised", "detail": alarm.detail}
        else:
            del self._raised[alarm.key]
            data |= {"state": "cleared", "detail": ""}
        yield Event(ALARM, now, alarm.pool, data)


def _of_node(node: Node) -> list[Alarm]:
    memory: Mapping[str, Any] = node.report.get("memory") or {}
    used, limit = memory.get("used_bytes", 0), memory.get("limit_bytes", 0)
    told = f"{node.memory}: {used >> 20} of {limit >> 20} MiB are in use"
    state = "" if node.memory is MemoryState.OK else node.memory.value
    leaks = "leak" if memory.get("leak_suspected") else ""
    return [
        Alarm("node_memory", state, told, node=node.name),
        Alarm("leak_suspected", leaks, "memory grows and streams do not", node=node.name),
    ]
