"""The answers of the ledger: values, not exceptions.

What every stream passes through is a named tuple: as immutable as a frozen dataclass, and made
in half the time.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from control.core.lease import Lease


class Reason(StrEnum):
    """Why a request was refused. Clients, dashboards and alerts read these."""

    STREAMS_EXHAUSTED = "streams_exhausted"
    TOKENS_EXHAUSTED = "tokens_exhausted"
    REQUEST_TOO_LARGE = "request_too_large"
    NO_BACKEND = "no_backend"
    DRAINING = "draining"
    NODE_MEMORY = "node_memory"
    ADMISSION_DOWN = "admission_down"

    @property
    def status(self) -> int:
        """429 where the limit is contended, 413 where it can never fit, else 503."""
        if self in (Reason.STREAMS_EXHAUSTED, Reason.TOKENS_EXHAUSTED):
            return 429
        return 413 if self is Reason.REQUEST_TOO_LARGE else 503

    @property
    def retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self is not Reason.REQUEST_TOO_LARGE


class Granted(NamedTuple):
    """The lease is held. ``repeated`` says that it was held before: nothing was taken. ``tight``
    says that its release must not wait a moment for company, for room is scarce."""

    lease: Lease
    repeated: bool
    tight: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing was taken. ``limit``, ``in_use`` and ``requested`` are in the reason's unit:
    streams, or tokens; all are zero where no limit was the cause."""

    reason: Reason
    pool: str
    limit: int = 0
    in_use: int = 0
    requested: int = 0
    retry_after_s: float = 1.0


class AlreadyEnded(NamedTuple):
    """This id's release has been seen: the client left before its room was granted, or the
    acquire was delivered a second time after its end. Nothing was taken."""

    id: str


Decision = Granted | Refused | AlreadyEnded


class ReleaseOutcome(StrEnum):
    """What a release did."""

    RELEASED = "released"
    """It was the first: the lease ends, or begins to drain."""
    ALREADY = "already_released"
    UNKNOWN = "unknown"
    """No such lease: a tombstone now refuses an acquire that is still on its way."""
    STALE = "stale"
    """It named an earlier grant under the same id: the lease that lives now is untouched."""
    CUTTING = "cutting"
    """Its gateway is told to cut the stream; the lease ends when it has."""
