"""The ledger in this process's memory: one process decides for one site.

A gevent worker runs one greenlet at a time and no step here yields, so each call is atomic.
"""

from collections.abc import Callable, Iterable, Sequence

from control.core.lease import Lease
from control.core.ledger import Ledger, Totals
from control.core.operation import Operation, Result, apply
from control.core.pool import Pool
from control.core.session import Session


class MemoryStore:
    """:class:`control.stores.base.Store` without persistence."""

    def __init__(self, pools: Iterable[Pool], jitter: Callable[[], float] = lambda: 1.0) -> None:
        self._ledger = Ledger(pools, jitter)

    def apply(
        self, session: str | None, operations: Sequence[Operation], now: float
    ) -> list[Result]:
        ledger = self._ledger
        if session is not None:
            ledger.heard(session, now)
        return [apply(ledger, operation, now) for operation in operations]

    def tick(self, now: float) -> list[Lease]:
        return self._ledger.tick(now)

    def pools(self) -> Sequence[Pool]:
        return list(self._ledger.pools.values())

    def leases(self) -> Sequence[Lease]:
        return list(self._ledger.leases.values())

    def lease(self, lease_id: str) -> Lease | None:
        return self._ledger.leases.get(lease_id)

    def sessions(self) -> Sequence[Session]:
        return list(self._ledger.sessions.values())

    def totals(self) -> Totals:
        return self._ledger.totals

    def drift(self) -> int:
        return self._ledger.drift
