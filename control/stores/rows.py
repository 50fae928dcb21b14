"""The journal's rows: what they hold, and that they make sense."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from control.core.lease import Lease, LeaseState
from control.core.pool import BackendState, Limits
from control.core.verdict import Verdict, Witness

TEXT_OR_NONE = (str, type(None))
LEASE_TYPES = (
    str, int, str, str, str, str, int, str, float, str,
    TEXT_OR_NONE, TEXT_OR_NONE, (float, type(None)),
)  # fmt: skip
LIMIT_TYPES = (str, str, int, int, str, int, int)


class Override(NamedTuple):
    """Limits that were changed live, and what the configuration said then."""

    limits: Limits
    configured: Limits


def from_lease(lease: Lease) -> tuple[Any, ...]:
    """A lease as its row."""
    return (
        lease.id,
        lease.grant,
        lease.pool,
        lease.backend,
        lease.tenant,
        lease.scene,
        lease.tokens,
        lease.session,
        lease.granted_at,
        lease.state,
        lease.verdict,
        lease.witness,
        lease.drain_until,
    )


def to_lease(row: tuple[Any, ...]) -> Lease:
    """The inverse of :func:`from_lease`; :class:`ValueError` where it is none of ours."""
    lease = Lease(*_checked(row, LEASE_TYPES))
    lease.state = LeaseState(lease.state)
    lease.verdict = Verdict(lease.verdict) if lease.verdict else None
    lease.witness = Witness(lease.witness) if lease.witness else None
    told = (lease.verdict, lease.witness, lease.drain_until)
    is_whole = None not in told if lease.state is LeaseState.DRAINING else told == (None,) * 3
    makes_sense = lease.grant >= 1 and lease.tokens >= 0 and lease.state is not LeaseState.ENDED
    if not makes_sense or not is_whole:
        raise ValueError(f"a lease that cannot be: {lease!r}")
    return lease


def to_override(row: tuple[Any, ...]) -> tuple[tuple[str, str], Override]:
    """A backend's changed limits by its pool and name; :class:`ValueError` where there are none."""
    pool, backend, streams, tokens, state, file_streams, file_tokens = _checked(row, LIMIT_TYPES)
    return (pool, backend), Override(
        Limits(streams, tokens, BackendState(state)), Limits(file_streams, file_tokens)
    )


def _checked(row: tuple[Any, ...], types: Sequence[Any]) -> tuple[Any, ...]:
    """The row, where it has these types: SQLite itself holds anything anywhere."""
    fits = len(row) == len(types) and all(map(isinstance, row, types))
    if not fits or not all(math.isfinite(value) for value in row if isinstance(value, float)):
        raise ValueError(f"a row that makes no sense: {row!r:.200}")
    return row
