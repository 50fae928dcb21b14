"""What a gateway may ask of the ledger, as values: a store applies a list of them in one step."""

from collections.abc import Sequence
from typing import NamedTuple

from control.core.decision import Decision, ReleaseOutcome
from control.core.lease import Lease
from control.core.ledger import Claim, Held, Ledger
from control.core.pool import Limits
from control.core.verdict import Verdict, Witness


class Acquire(NamedTuple):
    """Take room for a stream. Answered by a :data:`Decision`."""

    claim: Claim


class Reroute(NamedTuple):
    """Move a lease whose backend cannot be reached. Answered by a :data:`Decision`."""

    id: str


class Release(NamedTuple):
    """End a lease. Answered by a :class:`ReleaseOutcome`."""

    id: str
    verdict: Verdict
    witness: Witness
    grant: int | None = None


class Sync(NamedTuple):
    """All that a session holds, of what was granted ``up_to`` a grant, and which configuration
    it runs. Answered by :class:`Synced`."""

    session: str
    known: Sequence[str]
    held: Sequence[Held]
    up_to: int | None = None
    config: str | None = None


class Cut(NamedTuple):
    """Have a lease's stream ended by its gateway. Answered by a :class:`ReleaseOutcome`."""

    id: str


class EndSession(NamedTuple):
    """A gateway's worker is known to be dead. Answered by :class:`Synced`."""

    session: str


class Synced(NamedTuple):
    """What a sync changed, and what its gateway needs to know: the ``limits`` in force, by pool
    and backend, of pools that it decides while it has no answer."""

    ended: Sequence[Lease]
    adopted: Sequence[Lease]
    limits: dict[str, dict[str, Limits]]


Operation = Acquire | Reroute | Release | Sync | Cut | EndSession
Result = Decision | ReleaseOutcome | Synced


def apply(ledger: Ledger, operation: Operation, now: float) -> Result:
    """Do one operation on the ledger."""
    match operation:
        case Acquire(claim):
            return ledger.acquire(claim, now)
        case Release(lease_id, verdict, witness, grant):
            return ledger.release(lease_id, verdict, witness, now, grant)
        case Reroute(lease_id):
            return ledger.reroute(lease_id, now)
        case Sync(session, known, held, up_to, config):
            synced = ledger.sync(session, known, held, now, up_to, config=config)
            return Synced(*synced, ledger.local_limits())
        case Cut(lease_id):
            return ledger.cut(lease_id)
        case EndSession(session):
            return Synced(ledger.end_session(session, now), [], {})
