"""Which clients a process serves, as the kernel tells."""

import os
from collections.abc import Iterator
from pathlib import Path

ESTABLISHED = "01"
CLOSE_WAIT = "08"


def client_ports(pid: int, listening: set[int]) -> frozenset[int]:
    """The clients' ports of the connections that a process holds on its listening ports."""
    mine = set(_inodes(pid))
    found = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[9] in mine and fields[3] in (ESTABLISHED, CLOSE_WAIT):
            here, there = (int(fields[n].rpartition(":")[2], 16) for n in (1, 2))
            if here in listening:
                found.add(there)
    return frozenset(found)


def _inodes(pid: int) -> Iterator[str]:
    """Of all sockets that a process has open; none where it is gone."""
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)  # noqa: PTH208
    except OSError:
        return
    for descriptor in descriptors:
        try:
            target = os.readlink(f"{folder}/{descriptor}")  # noqa: PTH115
        except OSError:
            continue  # closed just now
        if target.startswith("socket:["):
            yield target[8:-1]
