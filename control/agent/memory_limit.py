"""How much memory the node may use, and how much of it is gone: cgroup, machine, or configured."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
NO_LIMIT = 1 << 60
"""What no machine has."""


class Level(NamedTuple):
    """A limit and what counts against it. ``source``: where both come from. What the kernel can
    drop at need (clean pages of files that nobody reads) is not counted."""

    source: str
    limit_bytes: int
    used_bytes: int

    @property
    def ratio(self) -> float:
        """How much of the limit is in use."""
        return self.used_bytes / self.limit_bytes


class _Version(NamedTuple):
    """How a version of cgroups names things. ``controller``: in ``/proc/PID/cgroup``."""

    source: str
    hierarchy: str
    controller: str
    limit: str
    usage: str
    inactive: str


_VERSIONS = (
    _Version("cgroup2", "", "", "memory.max", "memory.current", "inactive_file"),
    _Version(
        "cgroup1", "memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)  # fmt: skip


def find_level(
    pid: int, proc: Path = PROC, cgroups: Path = CGROUPS, nearly_full: float = 1.0
) -> Level | None:
    """The smallest limit that holds for a process: of its cgroup, of one above it, or the
    machine's memory. None where not even that can be read.

    From ``nearly_full`` on it is the machine's, where that is fuller: others fill it. A cgroup
    above is not asked so, for it may be full of files that the kernel can drop.
    """
    machine = _machine(proc)
    # "No limit" is a number too in version 1: one that is larger than any machine.
    largest = machine.limit_bytes if machine else NO_LIMIT
    for version in _VERSIONS:
        folders = _groups(pid, version, proc, cgroups)
        levels = [level for folder in folders if (level := _level(folder, version))]
        limits = [level for level in levels if level.limit_bytes < largest]
        if limits:
            own = min(limits, key=lambda level: level.limit_bytes)
            return machine if machine and machine.ratio >= max(nearly_full, own.ratio) else own
    return machine


def _groups(pid: int, version: _Version, proc: Path, cgroups: Path) -> Iterator[Path]:
    """The process's group and all above it, up to what is mounted here: in a container that is
    its own group, though the path names one of the host."""
    root = cgroups / version.hierarchy
    for line in _text(proc / str(pid) / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if version.controller in controllers.split(","):
            parts = [part for part in path.split("/") if part]
            # Outside of this cgroup namespace there is nothing to be read.
            parts = [] if ".." in parts else parts
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth])


def _level(folder: Path, version: _Version) -> Level | None:
    limit = _number(_text(folder / version.limit))
    usage = _number(_text(folder / version.usage))
    if not limit or usage is None:
        return None
    inactive = _field(_text(folder / "memory.stat"), version.inactive)
    return Level(version.source, limit, max(0, usage - (inactive or 0)))


def _machine(proc: Path) -> Level | None:
    text = _text(proc / "meminfo")
    total, available = _field(text, "MemTotal:"), _field(text, "MemAvailable:")
    if not total or available is None:
        return None
    return Level("machine", total * 1024, max(0, total - available) * 1024)


def _field(text: str, name: str) -> int | None:
    """The number behind a name in ``memory.stat`` or ``meminfo``."""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == name:
            return _number(words[1])
    return None


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
