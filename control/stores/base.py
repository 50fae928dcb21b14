"""The contract of a store."""

from collections.abc import Sequence
from typing import Protocol

from control.core.change import Change
from control.core.lease import Lease
from control.core.ledger import Totals
from control.core.operation import Operation, Result
from control.core.pool import Backend, Limits, Pool
from control.core.session import Session


class StoreError(Exception):
    """What was asked could not be kept, and has not been done."""


class Store(Protocol):
    """The ledger of one site. ``now`` is in seconds on one monotonic clock.

    Every method leaves the ledger's invariants true (:mod:`control.core.ledger`).
    """

    def apply(
        self, session: str | None, operations: Sequence[Operation], now: float
    ) -> list[Result]:
        """Do all operations, in order, as one step, and answer each; hearing them is the
        session's heartbeat (None: of nobody).

        When this returns the changes are as durable as the store makes them. A grant that cannot
        be kept is not made: it is answered as refused with ``admission_down``.
        """

    def tick(self, now: float) -> list[Lease]:
        """Let time pass: drains end, silent sessions' leases are lost. Returns the lost."""

    def take_news(self) -> list[Change]:
        """What became of leases since this was last asked, in order. To be asked after
        :meth:`apply`: a grant that could not be kept is not in it."""

    def forgive(self, seconds: float, now: float) -> None:
        """Nobody could be heard for so long: that silence is not the sessions'."""

    def adjust(self, backend: Backend, limits: Limits) -> None:
        """Put a backend's limits in force, and keep them. :class:`StoreError` where they cannot
        be kept: the old ones stay."""

    def fault(self) -> str | None:
        """Why nothing can be kept at present, or None."""

    def close(self) -> None:
        """Let go of what others may take over."""

    def pools(self) -> Sequence[Pool]:
        """All pools in the order of the configuration, to be read and not changed."""

    def leases(self) -> Sequence[Lease]:
        """All live leases, oldest grant first."""

    def lease(self, lease_id: str) -> Lease | None:
        """One live lease."""

    def sessions(self) -> Sequence[Session]:
        """All sessions that have been heard and not forgotten."""

    def session(self, session_id: str) -> Session | None:
        """One of them."""

    def totals(self) -> Totals:
        """Counts since the store began."""

    def drift(self) -> int:
        """granted - ended - live: anything but 0 is a defect."""
