"""The admission service with its journal, and the agent."""

import os
import resource
import signal
import time
from contextlib import suppress
from random import Random

import psutil

from tests.chaos.faults import AFTERMATH_S, SERVICE_AWAY, Faults, Scene, one_of, send
from tests.chaos.plan import Event

PAGE = 4_096
"""Of the journal."""


class ServiceFaults(Faults):
    """Faults of the processes that decide, and of the one that watches."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.by_name = {
            "service-kill": self._kill_worker,
            "service-stop": self._stop_worker,
            "arbiter-kill": lambda event: self._signal_arbiter(event, signal.SIGKILL, SERVICE_AWAY),
            # The old worker answers until the new one does: nobody may notice.
            "arbiter-reload": lambda event: self._signal_arbiter(event, signal.SIGHUP, ()),
            "journal-remove": self._remove_journal,
            "journal-lose": self._lose_journal,
            "journal-spoil": self._spoil_journal,
            "agent-kill": self._kill_agent,
            "agent-stop": self._stop_agent,
        }

    def _kill_worker(self, event: Event) -> str:
        pid = one_of(event, self._node.workers("admission"))
        cause = self._causes.add(str(event), SERVICE_AWAY, time.monotonic())
        os.kill(pid, signal.SIGKILL)
        back = self._recovered(event, cause, self._ready_url, ("admission", pid))
        return f"worker {pid}, {back}"

    def _stop_worker(self, event: Event) -> str:
        pid = one_of(event, self._node.workers("admission"))
        cause = self._causes.add(str(event), SERVICE_AWAY, time.monotonic())
        self._hold(event, pid, cause)
        return f"worker {pid}"

    def _signal_arbiter(
        self, event: Event, number: signal.Signals, explains: tuple[str, ...]
    ) -> str:
        pid = self._node.pid("admission")
        worker = one_of(event, self._node.workers("admission"))
        cause = self._causes.add(str(event), explains, time.monotonic())
        os.kill(pid, number)
        back = self._recovered(event, cause, self._ready_url, ("admission", worker))
        return f"arbiter {pid}, {back}"

    def _remove_journal(self, event: Event) -> str:
        names = ["journal.db"] if event.pick < 0.5 else ["journal.db", "journal.db-wal"]
        for name in names:
            (self._node.state / name).unlink(missing_ok=True)
        self._scene.limits.forget()  # where the service dies before it notices
        now = time.monotonic()
        self._causes.add(str(event), (), now, until=now)  # nobody may notice
        return " and ".join(names)

    def _lose_journal(self, event: Event) -> str:
        """Killed before it can notice that the journal is gone."""
        pid = one_of(event, self._node.workers("admission"))
        cause = self._causes.add(str(event), SERVICE_AWAY, time.monotonic())
        self._scene.limits.forget()  # an operator's changes are gone with it
        os.kill(pid, signal.SIGSTOP)
        for file in self._node.state.glob("journal.db*"):
            file.unlink(missing_ok=True)
        os.kill(pid, signal.SIGKILL)
        back = self._recovered(event, cause, self._ready_url, ("admission", pid))
        return f"worker {pid}, {back}"

    def _spoil_journal(self, event: Event) -> str:
        return self._damage(event) if event.pick < 0.5 else self._fill_disk(event)

    def _damage(self, event: Event) -> str:
        """While nobody has it open; whole pages, as a disk loses them: the first, or all."""
        pid = one_of(event, self._node.workers("admission"))
        arbiter = self._node.pid("admission")
        journal = self._node.state / "journal.db"
        cause = self._causes.add(str(event), SERVICE_AWAY, time.monotonic())
        self._scene.limits.forget()  # an operator's changes may be gone with it
        os.kill(arbiter, signal.SIGSTOP)
        try:
            os.kill(pid, signal.SIGKILL)
            self._wait_for_death(pid)
            whole = event.pick < 0.25
            size = journal.stat().st_size if whole else PAGE
            with journal.open("r+b") as file:
                file.write(Random(event.number).randbytes(size))
            if whole:
                journal.with_name("journal.db-wal").unlink(missing_ok=True)
        finally:
            send(arbiter, signal.SIGCONT)
        back = self._recovered(event, cause, self._ready_url, ("admission", pid))
        return f"{size} bytes while worker {pid} was dead, {back}"

    def _wait_for_death(self, pid: int) -> None:
        """Its parent stands still, so that it stays in the list of processes."""
        while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
            self._scene.over.wait(0.001)

    def _fill_disk(self, event: Event) -> str:
        """No file of the process that decides may become longer than its log of changes is."""
        pid = one_of(event, self._node.workers("admission"))
        full = (self._node.state / "journal.db-wal").stat().st_size
        worker = psutil.Process(pid)
        _, hard = worker.rlimit(resource.RLIMIT_FSIZE)
        cause = self._causes.add(str(event), SERVICE_AWAY, time.monotonic())
        worker.rlimit(resource.RLIMIT_FSIZE, (full, hard))
        try:
            self._scene.over.wait(event.hold_s)
        finally:
            with suppress(psutil.NoSuchProcess):  # another fault was faster, and ended the limit
                worker.rlimit(resource.RLIMIT_FSIZE, (hard, hard))
            cause.until = time.monotonic() + AFTERMATH_S
        return f"no room beyond {full} bytes for worker {pid}"

    def _kill_agent(self, event: Event) -> str:
        del event
        pid = self._node.pid("agent")
        os.kill(pid, signal.SIGKILL)
        return f"agent {pid}"

    def _stop_agent(self, event: Event) -> str:
        pid = self._node.pid("agent")
        self._hold(event, pid, None)
        return f"agent {pid}"

    @property
    def _ready_url(self) -> str:
        return f"{self._node.admin}/readyz"
