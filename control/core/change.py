"""What became of a lease, as a value: the ledger's news."""

from enum import StrEnum
from typing import NamedTuple

from control.core.lease import Lease
from control.core.verdict import Verdict, Witness


class ChangeKind(StrEnum):
    """A lease's life: granted, perhaps moved, perhaps draining, ended."""

    GRANTED = "granted"
    MOVED = "moved"
    """To another backend; or taken up again where it was given up as lost and drains."""
    DRAINING = "draining"
    ENDED = "ended"


class Change(NamedTuple):
    """``lease`` goes on changing; what it was ``at`` that time (the caller's monotonic seconds)
    stands beside it."""

    kind: ChangeKind
    at: float
    lease: Lease
    pool: str
    backend: str
    verdict: Verdict | None
    witness: Witness | None
