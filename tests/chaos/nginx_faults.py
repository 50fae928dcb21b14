"""nginx: its workers, its master, its access log."""

import os
import signal
import time
from collections.abc import Callable, Iterable

import psutil

from tests.chaos.causes import UNANSWERED, Cause
from tests.chaos.faults import (
    AFTERMATH_S,
    CUT,
    RELAY_AWAY,
    RELAY_LOST,
    RELAY_MISSED_S,
    SENT_AWAY,
    SERVICE_AWAY,
    Faults,
    Missed,
    Scene,
    one_of,
    send,
)
from tests.chaos.outcome import Kind
from tests.chaos.plan import Event
from tests.chaos.sockets import client_ports

NGINX_AWAY = (CUT, SENT_AWAY, str(Kind.UNREACHABLE))
LONGEST_PAUSE_S = 0.2
"""Between a log's new name and USR1."""


class NginxFaults(Faults):
    """Faults of nginx's processes and files."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        log = scene.log
        self.by_name = {
            "worker-kill": lambda event: self._end_one(event, signal.SIGKILL),
            "worker-segv": lambda event: self._end_one(event, signal.SIGSEGV),
            "workers-kill": self._end_all,
            "worker-stop": self._stop,
            "nginx-kill": self._kill_master,
            "nginx-stop": self._stop_master,
            "reload": lambda event: self._reload(event, 1),
            "reloads": lambda event: self._reload(event, 2 + int(event.pick * 4)),
            "rotate": lambda event: self._change_log(event, log.rotate),
            "log-delete": lambda event: self._change_log(event, log.delete),
            "log-truncate": lambda event: self._change_log(event, lambda _: log.truncate()),
        }

    def _end_one(self, event: Event, number: signal.Signals) -> str:
        pid = one_of(event, self._node.workers("nginx"))
        return f"worker {pid} with {end_workers(self._scene, event, [pid], number)} clients"

    def _end_all(self, event: Event) -> str:
        pids = self._node.workers("nginx")
        count = end_workers(self._scene, event, pids, signal.SIGKILL)
        return f"workers {pids} with {count} clients"

    def _stop(self, event: Event) -> str:
        pid = one_of(event, self._node.workers("nginx"))
        # What it asked before comes back too late for it.
        cause = self._causes.add(str(event), SERVICE_AWAY, time.monotonic() - AFTERMATH_S)
        self._hold(event, pid, cause)
        return f"worker {pid}"

    def _kill_master(self, event: Event) -> str:
        pid = self._node.pid("nginx")
        cause = self._end(event)
        os.kill(pid, signal.SIGKILL)
        back = self._recovered(event, cause, f"{self._node.url}/healthz", ("nginx", pid))
        return f"master {pid}, {back}"

    def _stop_master(self, event: Event) -> str:
        """Fast; or gracefully, and fast when the patience of the one who waits has ended."""
        pid = self._node.pid("nginx")
        workers = self._node.workers("nginx")
        fast = event.pick < 0.5
        if fast:
            cause = self._end(event)
            os.kill(pid, signal.SIGTERM)
        else:
            # Who is answered already is not cut.
            at = time.monotonic()
            cause = self._causes.add(str(event), NGINX_AWAY, at, ids=UNANSWERED)
            # Who asks over a connection of before still is; the relay's socket has gone at once.
            until = at + event.hold_s + AFTERMATH_S
            self._causes.add(str(event), RELAY_AWAY, at, until=until, relayed=True)
            os.kill(pid, signal.SIGQUIT)
            if fast := self._outlives(pid, event.hold_s):
                cause.until = time.monotonic() + AFTERMATH_S
                cause = self._end(event)
                send(pid, signal.SIGTERM)
        back = self._recovered(event, cause, f"{self._node.url}/healthz", ("nginx", pid))
        if fast:
            self._tolerate(workers)
        return f"master {pid}, {'fast' if fast else 'of its own accord'}, {back}"

    def _end(self, event: Event) -> Cause:
        """All of nginx is about to end. The cause lasts until it is told that it is back."""
        now = time.monotonic()
        until = now + RELAY_MISSED_S
        self._causes.add(str(event), RELAY_LOST, now, until=until, relayed=True)
        return self._causes.add(str(event), NGINX_AWAY, now)

    def _outlives(self, pid: int, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while psutil.pid_exists(pid):
            if self._scene.over.wait(0.05) or time.monotonic() > deadline:
                return True
        return False

    def _tolerate(self, workers: Iterable[int]) -> None:
        """What workers say that were leaving already when they were stopped fast: that they leave
        streams."""
        mine = tuple(f"[alert] {pid}#" for pid in workers)
        self._node.tolerated += tuple(
            line
            for line in self._node.errors().splitlines()
            if any(part in line for part in mine)
            and ("left in connection" in line or line.endswith("aborting"))
        )

    def _reload(self, event: Event, times: int) -> str:
        pid = self._node.pid("nginx")
        at = time.monotonic()
        # A connection over HTTP/2 on which nothing was asked yet is sent away (RFC 9113, 6.8).
        self._causes.add(str(event), (SENT_AWAY,), at, until=at + AFTERMATH_S + 1)
        for _ in range(times):
            os.kill(pid, signal.SIGHUP)
            self._scene.over.wait(1 / times if times > 1 else 0)
        return f"master {pid}, {times} times"

    def _change_log(self, event: Event, how: Callable[[float], None]) -> str:
        pause_s = event.pick * LONGEST_PAUSE_S
        how(pause_s)
        return f"pause {pause_s * 1_000:.0f} ms"


def end_workers(scene: Scene, event: Event, pids: Iterable[int], number: signal.Signals) -> int:
    """End workers by a signal. They are held still while it is seen whom they serve, so that the
    cause is exact; how many clients that were."""
    node = scene.bed.node
    still = [pid for pid in pids if send(pid, signal.SIGSTOP)]
    if not still:
        raise Missed("they had ended")
    at = time.monotonic()
    ports = frozenset[int]().union(*(client_ports(pid, {node.port, node.h2_port}) for pid in still))
    missed = at + RELAY_MISSED_S
    scene.causes.add(str(event), RELAY_LOST, at, until=missed, relayed=True)
    scene.causes.add(str(event), (CUT, SENT_AWAY), at, until=at + AFTERMATH_S, ports=ports)
    for pid in still:
        send(pid, number)
        send(pid, signal.SIGCONT)
    return len(ports)
