"""The use cases of admission. The only caller of a store."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from control.core.decision import AlreadyEnded, Granted, Refused, ReleaseOutcome
from control.core.estimate import Estimate
from control.core.lease import Lease
from control.core.ledger import Claim, Totals
from control.core.operation import Acquire, Operation, Release, Result
from control.core.pool import Pool
from control.core.session import Session
from control.core.verdict import Verdict, Witness
from control.stores.base import Store


class Ask(NamedTuple):
    """A request for admission as a gateway words it.

    ``body_bytes`` is the length of the request's body, the unit of the estimate; ``tokens``
    overrides the estimate where a gateway knows better. At least 0, both.
    """

    id: str
    route: str
    scene: str
    body_bytes: int
    tokens: int | None = None


class UnknownRoute(NamedTuple):
    """The answer to an :class:`Ask` for a route that is not configured."""

    route: str


class Admission:
    """Decides, counts and forgets. ``clock`` gives monotonic seconds.

    ``routes`` maps a route's path to its pool's name, each a pool of the store.
    """

    def __init__(
        self,
        store: Store,
        routes: Mapping[str, str],
        estimate: Estimate,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._routes = routes
        self._estimate = estimate
        self.clock = clock
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        """Requests by (pool, scene, outcome): ``granted`` or a refusal's reason."""

    def batch(
        self, session: str, requests: Sequence[Ask | Operation]
    ) -> Sequence[Result | UnknownRoute]:
        """Do all that one gateway worker has pending, in order; answer each in its place."""
        now = self.clock()
        self._store.tick(now)
        asked = [self._operation(session, request) for request in requests]
        operations = [op for op in asked if not isinstance(op, UnknownRoute)]
        results = self._store.apply(session, operations, now)
        for operation, result in zip(operations, results, strict=True):
            if isinstance(operation, Acquire):
                self._count(operation.claim, result)
        if len(results) == len(asked):
            return results
        left = iter(results)
        return [op if isinstance(op, UnknownRoute) else next(left) for op in asked]

    def acquire(self, session: str, ask: Ask) -> Result | UnknownRoute:
        """Take room for one stream."""
        return self.batch(session, [ask])[0]

    def release(self, lease_id: str, verdict: Verdict, witness: Witness) -> ReleaseOutcome:
        """End one lease from outside its session (an operator, another gateway)."""
        now = self.clock()
        self._store.tick(now)
        [outcome] = self._store.apply(None, [Release(lease_id, verdict, witness)], now)
        assert isinstance(outcome, ReleaseOutcome)
        return outcome

    def tick(self) -> list[Lease]:
        """Let time pass; to be called some times a second. Returns the leases that were lost."""
        return self._store.tick(self.clock())

    def pools(self) -> Sequence[Pool]:
        """All pools as they are now."""
        self.tick()
        return self._store.pools()

    def leases(self) -> Sequence[Lease]:
        """All live leases as they are now, oldest first."""
        self.tick()
        return self._store.leases()

    def lease(self, lease_id: str) -> Lease | None:
        """One live lease as it is now."""
        self.tick()
        return self._store.lease(lease_id)

    def sessions(self) -> Sequence[Session]:
        """All sessions as they are now."""
        self.tick()
        return self._store.sessions()

    def totals(self) -> Totals:
        """Counts since the store began."""
        return self._store.totals()

    def drift(self) -> int:
        """granted - ended - live: 0, always."""
        return self._store.drift()

    def _operation(self, session: str, request: Ask | Operation) -> Operation | UnknownRoute:
        if not isinstance(request, Ask):
            return request
        pool = self._routes.get(request.route)
        if pool is None:
            return UnknownRoute(request.route)
        scene = self._estimate.scene(request.scene)
        tokens = request.tokens
        if tokens is None:
            tokens = self._estimate.tokens(request.body_bytes, scene)
        return Acquire(Claim(request.id, pool, scene, tokens, session))

    def _count(self, claim: Claim, result: Result) -> None:
        match result:
            case Granted(repeated=False):
                self.outcomes[claim.pool, claim.scene, "granted"] += 1
            case Refused(reason=reason):
                self.outcomes[claim.pool, claim.scene, reason] += 1
            case AlreadyEnded():
                self.outcomes[claim.pool, claim.scene, "already_ended"] += 1
