"""What became of a lease, as a value: the ledger's news."""

from typing import NamedTuple

from control.core.lease import Lease
from control.core.verdict import Verdict, Witness

GRANTED = "granted"
MOVED = "moved"
"""To another backend; or taken up again where it was given up as lost and drains."""
DRAINING = "draining"
ENDED = "ended"
LIFE = (GRANTED, MOVED, DRAINING, ENDED)
"""Each at most once and in this order, but for MOVED. Words and no enumeration: to look up its
members costs more than all else that a change costs."""


class Change(NamedTuple):
    """``kind`` is one of :data:`LIFE`. ``lease`` goes on changing; what it was ``at`` that time
    (the caller's monotonic seconds) stands beside it."""

    kind: str
    at: float
    lease: Lease
    pool: str
    backend: str
    verdict: Verdict | None
    witness: Witness | None
