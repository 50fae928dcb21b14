"""The admission service with its journal, and the agent."""

import os
import signal
import time

from tests.chaos.faults import SERVICE_AWAY, Faults, Scene, one_of
from tests.chaos.plan import Event


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
