"""What a running service says, each part for itself: one that fails hides no other."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from control.client import AdminClient, Lease, ServiceError
from control.terminal.explain import ODD, explain_odd

MAX_LEASES = 1_000
OLDEST = 20


@dataclass(slots=True)
class Told:
    """What the service said, by part, and what went wrong where it said nothing."""

    parts: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, ServiceError] = field(default_factory=dict)
    metrics: str = ""
    skew_s: float | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether anything answered."""
        return any(error.status for error in self.errors.values()) or bool(self.parts)


def ask(client: AdminClient) -> Told:
    """Everything; at once given up where nobody is there."""
    told = Told()
    try:
        told.parts["health"] = client.health()
    except ServiceError as exc:
        told.errors["health"] = exc
        if exc.status is None:
            return told
    calls: dict[str, Callable[[], Any]] = {
        "ready": client.ready,
        "whoami": client.whoami,
        "pools": client.pools,
        "leases": lambda: lease_summary(client.lease_page(limit=MAX_LEASES, sort="-age")),
        "sessions": client.sessions,
        "nodes": client.nodes,
        "config": client.config,
        "history": client.history,
    }
    for name, call in calls.items():
        try:
            told.parts[name] = call()
        except ServiceError as exc:
            told.errors[name] = exc
        except ODD as exc:
            told.errors[name] = ServiceError(explain_odd(exc, client.address))
    try:
        told.metrics = client.metrics()
    except ServiceError as exc:
        told.errors["metrics"] = exc
    told.skew_s = _skew(told.parts.get("history"), time.time())
    return told


def _skew(history: dict[str, Any] | None, now: float) -> float | None:
    """How far the service's clock is from this machine's, as far as the minute that it counts in
    shows it."""
    if not history:
        return None
    try:
        into_minute: float = now - history["points"][-1]["at"]
        step_s: float = history["step_s"]
        return min(0.0, into_minute) or max(0.0, into_minute - step_s)
    except ODD:
        return None


def lease_summary(page: tuple[list[Lease], str | None]) -> dict[str, Any]:
    """How many of each kind, and the oldest; of a tenant nothing."""
    leases, more = page
    sums: dict[str, Counter[str]] = {}
    for lease in leases:
        for name in ("pool", "backend", "scene", "state", "session"):
            sums.setdefault(name, Counter())[str(lease[name])] += 1
    oldest = sorted(leases, key=lambda lease: -lease["age_s"])[:OLDEST]
    return {
        "counted": len(leases),
        "there_are_more": more is not None,
        "by": sums,
        "oldest": [{**lease, "tenant": None} for lease in oldest],
    }
