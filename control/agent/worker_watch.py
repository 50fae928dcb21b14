"""Ends the sessions of nginx workers that are no more: a killed worker writes no log line."""

import logging
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from control.client import ServiceClient
from control.pid_file import MAX_PID, read_pid

SESSION = re.compile(r"([^/]+)/([0-9]{1,10})/([0-9]{1,16})")
"""``node/pid/start_ms``"""
REUSE_S = 1.0
"""A process that began so much later than the session that names it is another one."""

log = logging.getLogger("weir.agent")


class Worker(NamedTuple):
    """Whose proof of life a session is: ``node/pid/start_ms``."""

    session: str
    pid: int
    started: float


class WorkerWatch:
    """Compares the node's sessions with its processes. It keeps nothing in mind, so it also
    finds what died while no agent ran; and it must see nginx's processes (one pid namespace).
    """

    def __init__(self, client: ServiceClient, node: str, session: str, nginx_pid: Path) -> None:
        """``session`` is the agent's own; ``nginx_pid`` the pid file of nginx's master."""
        self._client = client
        self._node = node
        self._session = session
        self._nginx_pid = nginx_pid

    def tick(self) -> None:
        """End the sessions whose worker is gone."""
        listed = self._client.sessions(self._node)
        workers = [worker for entry in listed if (worker := _worker(self._node, entry))]
        for worker in gone(workers, read_pid(self._nginx_pid)):
            if worker.session != self._session:
                ended = len(self._client.end_session(worker.session))
                # One that was let go after a reload has given all its leases back.
                level = logging.WARNING if ended else logging.INFO
                log.log(level, "worker_gone session=%s leases=%d", worker.session, ended)


def gone(workers: Iterable[Worker], master: int | None) -> list[Worker]:
    """Those of which no process is left; ``master`` is nginx's."""
    newest: dict[int, float] = {}
    workers = list(workers)
    for worker in workers:
        newest[worker.pid] = max(worker.started, newest.get(worker.pid, 0.0))
    return [w for w in workers if w.started < newest[w.pid] or not _is_alive(w, master)]


def _is_alive(worker: Worker, master: int | None) -> bool:
    # Asked of the kernel: where /proc hides the processes of others, they live nonetheless.
    if not _exists(worker.pid):
        return False
    try:
        process = psutil.Process(worker.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if process.create_time() <= worker.started + REUSE_S:
            return True
        # Or so it seems: it is counted from the boot, whose time a step of the clock moves. But
        # a child of nginx's master is a worker, whatever the clock says.
        return master is not None and process.ppid() == master
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return _exists(worker.pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _worker(node: str, entry: Mapping[str, Any]) -> Worker | None:
    """Who a session is of; None for one that is not in our form, which others may use."""
    session = str(entry.get("id"))
    match = SESSION.fullmatch(session)
    if not match or match[1] != node or not 0 < int(match[2]) <= MAX_PID:
        return None
    return Worker(session, int(match[2]), int(match[3]) / 1000)
