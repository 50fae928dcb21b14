"""A session: the proof of life of one nginx worker."""

import math
from dataclasses import dataclass, field


@dataclass(slots=True)
class Session:
    """One nginx worker (``node/pid/start``) and the ids of the leases that live with it.

    Every batch it sends is its heartbeat. A lease is never judged by its age, only by whether
    its session has been heard: a 40-minute stream on a live worker is a healthy stream.
    ``cuts`` are those of its leases whose streams an operator wants ended.
    """

    id: str
    last_seen: float
    leases: set[str] = field(default_factory=set)
    cuts: set[str] = field(default_factory=set)
    synced_at: float = -math.inf
    config: str | None = None
    """The version of the configuration that it runs, as its last sync said."""

    @property
    def node(self) -> str:
        """The node that the worker runs on."""
        return self.id.partition("/")[0]

    def silent_for(self, now: float) -> float:
        """Seconds since the last batch."""
        return now - self.last_seen

    def __repr__(self) -> str:
        return f"<Session {self.id} {len(self.leases)} leases, seen {self.last_seen:.3f}>"
