"""Watches the node's memory: what is used of the limit, by whom, and whether it grows."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from control.agent.memory_limit import CGROUPS, PROC, Level, find_level
from control.agent.processes import ADMISSION, NGINX, Footprint, ProcessTable
from control.agent.recycler import Recycler
from control.agent.stream_memory import StreamMemory
from control.agent.trend import Sample, Trend
from control.agent.watermark import Watermark
from control.agent.webhook import Webhook
from control.core.node import MemoryState

MAX_PROCESSES = 1_000
"""The largest ones that a report names."""

log = logging.getLogger("weir.agent")


class MemoryMonitor:
    """One look each :meth:`tick`; what was seen last is the :attr:`report`.

    ``limit_bytes`` replaces what cgroup or machine say; then what counts is what the node's own
    processes hold. ``proc`` and ``cgroups`` are where the kernel tells of itself.
    """

    def __init__(
        self,
        node: str,
        table: ProcessTable,
        watermark: Watermark,
        *,
        recycler: Recycler,
        webhook: Webhook | None = None,
        limit_bytes: int | None = None,
        proc: Path = PROC,
        cgroups: Path = CGROUPS,
    ) -> None:
        self._node = node
        self._table = table
        self._watermark = watermark
        self._recycler = recycler
        self._webhook = webhook
        self._limit_bytes = limit_bytes
        self._proc, self._cgroups = proc, cgroups
        self._state = MemoryState.OK
        self._stream_memory = StreamMemory()
        self._trends = {NGINX: Trend(), ADMISSION: Trend()}
        self._suspects: set[str] = set()
        self._report: dict[str, Any] | None = None

    @property
    def report(self) -> dict[str, Any] | None:
        """What was seen last; None before the first look, or where nothing can be seen."""
        return self._report

    def tick(self, now: float, wall: float, streams: int) -> None:
        """Look at everything. ``streams``: live ones of this node; ``wall`` is only told."""
        footprints = self._table.footprints()
        level = self._level(footprints)
        if level is None:
            self._report = None
            return
        self._change_to(self._watermark.after(self._state, level.ratio), level, wall)
        self._look_for_leaks(footprints, streams, now)
        self._recycler.look(footprints, self._table.admission_master, now)
        workers = {each.pid: each.uss_bytes for each in footprints if each.role == NGINX}
        self._report = {
            "source": level.source,
            "limit_bytes": level.limit_bytes,
            "used_bytes": level.used_bytes,
            "state": self._state.value,
            "per_stream_bytes": self._stream_memory.per_stream(workers, streams),
            "leak_suspected": bool(self._suspects),
            "processes": [each._asdict() for each in _largest(footprints)],
        }

    def _level(self, footprints: Sequence[Footprint]) -> Level | None:
        if self._limit_bytes:
            used = sum(each.uss_bytes for each in footprints)
            return Level("configured", self._limit_bytes, used)
        master = self._table.nginx_master
        is_there = master and (self._proc / str(master)).exists()
        pid = master if master and is_there else self._table.own_pid
        return find_level(pid, self._proc, self._cgroups, self._watermark.resume)

    def _change_to(self, state: MemoryState, level: Level, wall: float) -> None:
        if state is self._state:
            return
        self._state = state
        log.log(
            logging.INFO if state is MemoryState.OK else logging.WARNING,
            "node_memory state=%s ratio=%.3f used_bytes=%d limit_bytes=%d source=%s",
            state, level.ratio, level.used_bytes, level.limit_bytes, level.source,
        )  # fmt: skip
        if self._webhook:
            self._webhook.send(
                {
                    "event": "node_memory",
                    "node": self._node,
                    "state": state.value,
                    "used_bytes": level.used_bytes,
                    "limit_bytes": level.limit_bytes,
                    "ratio": round(level.ratio, 4),
                    "at": round(wall, 3),
                }
            )

    def _look_for_leaks(self, footprints: Sequence[Footprint], streams: int, now: float) -> None:
        for role, trend in self._trends.items():
            used = sum(each.uss_bytes for each in footprints if each.role == role)
            leaking = trend.add(Sample(now, used, streams))
            if leaking and role not in self._suspects:
                self._suspects.add(role)
                log.warning("leak_suspected role=%s used_bytes=%d streams=%d", role, used, streams)
            elif not leaking and role in self._suspects:
                self._suspects.remove(role)
                log.info("leak_cleared role=%s used_bytes=%d streams=%d", role, used, streams)


def _largest(footprints: Sequence[Footprint]) -> Sequence[Footprint]:
    """All of them, unless there are far too many to be told."""
    if len(footprints) <= MAX_PROCESSES:
        return footprints
    return sorted(footprints, key=lambda each: -each.uss_bytes)[:MAX_PROCESSES]
