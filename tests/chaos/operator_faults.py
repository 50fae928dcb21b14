"""What an operator does while all runs: limits, cuts, sessions of dead workers."""

import signal
import time
from typing import Any
from urllib.parse import quote

import requests

from tests.chaos.bed import BACKENDS, MAX_STREAMS, MAX_TOKENS
from tests.chaos.faults import AFTERMATH_S, CUT, RECOVERS_S, Faults, Missed, Scene, one_of
from tests.chaos.limits import Lowered
from tests.chaos.nginx_faults import end_workers
from tests.chaos.plan import Event

KILLED = (CUT, "refused: killed")
CLOSED = ("refused: draining", "refused: no_backend")
LEAST_STREAMS = 3
LEAST_TOKENS = 40_000
"""Limits are not lowered below what each single stream needs."""
TIMEOUT_S = 5.0


class OperatorFaults(Faults):
    """Changes through the admin plane."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self.by_name = {
            "limits": self._lower_limits,
            "cut": self._cut,
            "session-end": self._end_session,
        }

    def _lower_limits(self, event: Event) -> str:
        engines = BACKENDS["default"]
        backend = one_of(event, engines)
        limits = self._scene.limits
        if not limits.claim(backend):
            raise Missed(f"{backend} has other limits already")
        change = _change(event.pick * len(engines) % 1)
        cause = self._causes.add(str(event), CLOSED, time.monotonic())
        try:
            self._patch(backend, change)
            limits.lower(
                backend,
                Lowered(
                    change.get("max_streams", MAX_STREAMS),
                    change.get("max_tokens", MAX_TOKENS),
                    "state" not in change,
                    time.monotonic(),
                ),
            )
            self._scene.over.wait(event.hold_s)
        finally:
            limits.restore(backend)
            self._restore(backend)
            limits.leave(backend)
            cause.until = time.monotonic() + AFTERMATH_S
        return f"{backend} to {change}"

    def _restore(self, backend: str) -> None:
        """As configured again, as soon as the admin plane answers."""
        deadline = time.monotonic() + RECOVERS_S
        original = {"max_streams": MAX_STREAMS, "max_tokens": MAX_TOKENS, "state": "active"}
        while time.monotonic() < deadline:
            try:
                self._patch(backend, original)
                return
            except requests.RequestException:
                time.sleep(0.2)
        self._scene.problems.append(f"{backend}: its limits could not be restored")

    def _patch(self, backend: str, change: dict[str, Any]) -> None:
        url = f"{self._node.admin}/v1/pools/default/backends/{backend}"
        requests.patch(url, json=change, timeout=TIMEOUT_S).raise_for_status()

    def _cut(self, event: Event) -> str:
        leases = [lease["id"] for lease in self._node.leases() if lease["state"] == "active"]
        lease_id = one_of(event, leases)
        self._causes.add(str(event), KILLED, time.monotonic(), ids=frozenset([lease_id]))
        url = f"{self._node.admin}/v1/leases/{lease_id}?cut=true"
        answer = requests.delete(url, timeout=TIMEOUT_S)
        return f"lease {lease_id}: {answer.status_code}"

    def _end_session(self, event: Event) -> str:
        """An operator is about as fast as the agent: either may be the first."""
        pid = one_of(event, self._node.workers("nginx"))
        listed = [session["id"] for session in self._node.get("/v1/sessions")["sessions"]]
        count = end_workers(self._scene, event, [pid], signal.SIGKILL)
        told = [self._delete(name) for name in listed if name.split("/")[1] == str(pid)]
        return f"worker {pid} with {count} clients, its sessions: {told}"

    def _delete(self, session: str) -> int:
        url = f"{self._node.admin}/v1/sessions/{quote(session, safe='')}"
        return requests.delete(url, timeout=TIMEOUT_S).status_code


def _change(turn: float) -> dict[str, Any]:
    """Closed, or with lower limits, as ``turn``, below 1, says."""
    if turn > 0.7:
        return {"state": "draining"}
    return {
        "max_streams": LEAST_STREAMS + int(turn * 8),
        "max_tokens": LEAST_TOKENS + int(turn * 40_000),
    }
