"""A lease: one stream's claim on one backend."""

from dataclasses import dataclass
from enum import StrEnum

from control.core.verdict import Verdict, Witness


class LeaseState(StrEnum):
    """``active → draining → ended``; what does not drain ends at once."""

    ACTIVE = "active"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(slots=True)
class Lease:
    """One stream's room: one stream and ``tokens`` tokens of ``backend`` in ``pool``.

    ``id`` is the request id that the gateway minted. ``grant`` counts grants over the whole
    ledger, so a late release of an earlier grant under the same id can be told from this one.
    ``granted_at`` and ``drain_until`` are seconds on the caller's monotonic clock.
    """

    id: str
    grant: int
    pool: str
    backend: str
    tenant: str
    scene: str
    tokens: int
    session: str
    granted_at: float
    state: LeaseState = LeaseState.ACTIVE
    verdict: Verdict | None = None
    witness: Witness | None = None
    drain_until: float | None = None

    def __repr__(self) -> str:
        end = f" {self.verdict} by {self.witness}" if self.verdict else ""
        return (
            f"<Lease {self.id}#{self.grant} {self.state} on {self.pool}/{self.backend} "
            f"{self.tokens} tokens{end}>"
        )
