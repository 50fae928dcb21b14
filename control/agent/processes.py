"""The node's processes, and the memory that each has for itself."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

from control.pid_file import read_pid

NGINX, NGINX_MASTER = "nginx", "nginx-master"
ADMISSION, ADMISSION_MASTER = "admission", "admission-master"
AGENT = "agent"

log = logging.getLogger("weir.agent")


class Footprint(NamedTuple):
    """One process. ``uss_bytes``: what would be free again if it ended; shared pages, of which
    forked workers have many, are counted for none."""

    pid: int
    role: str
    uss_bytes: int


class ProcessTable:
    """Who runs on this node, by the pid files in the folder ``run``."""

    def __init__(self, run: Path, own_pid: int) -> None:
        self._run = run
        self.own_pid = own_pid
        self._told = False

    @property
    def nginx_master(self) -> int | None:
        """The pid of nginx's master, where there is one."""
        return read_pid(self._run / "nginx.pid")

    @property
    def admission_master(self) -> int | None:
        """The pid of gunicorn's arbiter, where there is one."""
        return read_pid(self._run / "admission.pid")

    def footprints(self) -> list[Footprint]:
        """All that run now. Old nginx workers that still have streams after a reload are among
        them, for they are children of the same master."""
        found = [*_family(self.nginx_master, NGINX_MASTER, NGINX)]
        found += _family(self.admission_master, ADMISSION_MASTER, ADMISSION)
        found += _family(self.own_pid, AGENT, None)
        return [
            Footprint(process.pid, role, size)
            for process, role in found
            if (size := self._private_bytes(process)) is not None
        ]

    def _private_bytes(self, process: psutil.Process) -> int | None:
        """None where the process has just ended."""
        try:
            try:
                return int(process.memory_full_info().uss)
            except psutil.AccessDenied:
                if not self._told:
                    self._told = True
                    log.warning("memory_unreadable pid=%d instead=rss", process.pid)
                return int(process.memory_info().rss)
        except psutil.Error:
            return None


def _family(
    master: int | None, master_role: str, role: str | None
) -> Iterator[tuple[psutil.Process, str]]:
    if master is None:
        return
    try:
        process = psutil.Process(master)
        children = process.children() if role else []
    except psutil.Error:
        return
    yield process, master_role
    for child in children:
        yield child, str(role)
