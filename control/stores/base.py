"""The contract of a store."""

from collections.abc import Sequence
from typing import Protocol

from control.core.lease import Lease
from control.core.ledger import Totals
from control.core.operation import Operation, Result
from control.core.pool import Pool
from control.core.session import Session


class Store(Protocol):
    """The ledger of one site. ``now`` is in seconds on one monotonic clock.

    Every method leaves the ledger's invariants true (:mod:`control.core.ledger`).
    """

    def apply(
        self, session: str | None, operations: Sequence[Operation], now: float
    ) -> list[Result]:
        """Do all operations, in order, as one step, and answer each; hearing them is the
        session's heartbeat (None: of nobody). When this returns the changes are as durable
        as the store makes them."""

    def tick(self, now: float) -> list[Lease]:
        """Let time pass: drains end, silent sessions' leases are lost. Returns the lost."""

    def pools(self) -> Sequence[Pool]:
        """All pools in the order of the configuration, to be read and not changed."""

    def leases(self) -> Sequence[Lease]:
        """All live leases, oldest grant first."""

    def lease(self, lease_id: str) -> Lease | None:
        """One live lease."""

    def sessions(self) -> Sequence[Session]:
        """All sessions that have been heard and not forgotten."""

    def totals(self) -> Totals:
        """Counts since the store began."""

    def drift(self) -> int:
        """granted - ended - live: anything but 0 is a defect."""
