"""The use cases of admission. The only caller of a store."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from control.chronicle.alarms import Alarms, Sight
from control.chronicle.chronicle import Chronicle
from control.chronicle.events import EventLog
from control.chronicle.history import Counts, History
from control.core.decision import AlreadyEnded, Granted, Reason, Refused, ReleaseOutcome
from control.core.estimate import Estimate
from control.core.lease import Lease
from control.core.ledger import Claim, Totals
from control.core.node import MemoryState, Node
from control.core.operation import (
    Acquire,
    Cut,
    EndSession,
    Operation,
    Release,
    Reroute,
    Result,
    Synced,
)
from control.core.pool import Backend, Limits, Pool
from control.core.session import Session
from control.core.tombstones import Tombstones
from control.core.verdict import Phase, Verdict, Witness
from control.progress import Progress, ProgressBoard, Report
from control.stores.base import Store
from control.tracing.spans import NO_SPANS, Tracing

OWN_PAUSE_S = 1.0
"""Time passes at least every 50 ms; a longer gap means that this process did not run."""
SYNC_EVERY_S = 60.0
"""How often a gateway is asked for all that it holds, beside when something was restarted."""
NODE_MEMORY_RETRY_S = 5.0
MAX_NODES = 1_000


class Ask(NamedTuple):
    """A request for admission as a gateway words it.

    ``body_bytes`` is the length of the request's body, the unit of the estimate; ``tokens``
    overrides the estimate where a gateway knows better. At least 0, both. ``trace`` is the
    client's ``traceparent``, where it has one.
    """

    id: str
    route: str
    scene: str
    body_bytes: int
    tokens: int | None = None
    trace: str | None = None


class UnknownRoute(NamedTuple):
    """The answer to an :class:`Ask` for a route that is not configured."""

    route: str


class Answered(NamedTuple):
    """The answer to a batch. ``sync``: the gateway is to say all that it holds; ``cuts``: ids of
    its leases whose streams it is to end."""

    results: Sequence[Result | UnknownRoute]
    sync: bool
    cuts: Sequence[str]


class Admission:
    """Decides, counts and forgets. ``clock`` gives monotonic seconds, ``wall`` those since 1970,
    which are only told.

    ``routes`` maps a route's path to its pool's name, each a pool of the store. ``jitter`` is the
    store's (:meth:`control.core.pool.Pool.choose`).
    """

    def __init__(
        self,
        store: Store,
        routes: Mapping[str, str],
        estimate: Estimate,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        *,
        tracing: Tracing | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._store = store
        self._routes = routes
        self._estimate = estimate
        self._jitter = jitter
        self.clock, self.wall = clock, wall
        self._passed_at = clock()
        self._lost: list[Lease] = []
        self._nodes: dict[str, Node] = {}
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        """Requests by (pool, scene, outcome): ``granted`` or a refusal's reason."""
        self.aborts: Counter[Phase] = Counter()
        """Clients that left, by how far their streams had come."""
        self._aborted = Tombstones()
        self.dropped = 0
        """Releases that found no place in their gateways."""
        self.unreachable: Counter[tuple[str, str]] = Counter()
        """Streams whose backend could not be connected to, by (pool, backend)."""
        self.events = EventLog(clock, wall)
        history = History(clock(), wall(), self._counts(), store.pools())
        self._chronicle = Chronicle(self.events, history, Alarms(estimate.smallest))
        self._progress = ProgressBoard()
        self._tracing = tracing

    def batch(
        self,
        session: str,
        requests: Sequence[Ask | Operation],
        progress: Sequence[Report] = (),
    ) -> Answered:
        """Do all that one gateway worker has pending, in order; answer each in its place.
        ``progress`` is what it says of streams that it holds."""
        tracing = self._tracing
        began_ns = tracing.wall_ns() if tracing is not None else 0
        now = self._pass_time()
        asked = [self._operation(session, request, now) for request in requests]
        operations = [op for op in asked if not isinstance(op, UnknownRoute | Refused)]
        done: Sequence[Any] = self._store.apply(session, operations, now)
        results = done
        if len(done) < len(asked):
            left = iter(done)
            results = [op if isinstance(op, UnknownRoute | Refused) else next(left) for op in asked]
        if tracing is not None:
            for request, result in zip(requests, results, strict=True):
                if isinstance(request, Ask) and request.trace:
                    tracing.decided(request.trace, result, began_ns)
        self._tell()
        for operation, result in zip(operations, done, strict=True):
            if isinstance(operation, Acquire):
                self._count(operation.claim.pool, operation.claim.scene, result, now)
        heard = self._store.session(session)
        if heard is None:  # it ended itself in this very batch
            return Answered(results, False, ())
        if progress:
            self._progress.note(progress, heard.leases, now)
        return Answered(results, now - heard.synced_at > SYNC_EVERY_S, tuple(heard.cuts))

    def acquire(self, session: str, ask: Ask) -> Result | UnknownRoute:
        """Take room for one stream."""
        return self.batch(session, [ask]).results[0]

    def release(self, lease_id: str, verdict: Verdict, witness: Witness) -> ReleaseOutcome:
        """End one lease from outside its session (an operator, another gateway)."""
        outcome = self._alone(Release(lease_id, verdict, witness))
        assert isinstance(outcome, ReleaseOutcome)
        return outcome

    def cut(self, lease_id: str) -> ReleaseOutcome:
        """Have a stream ended by its gateway; its lease ends when it has."""
        outcome = self._alone(Cut(lease_id))
        assert isinstance(outcome, ReleaseOutcome)
        return outcome

    def end_session(self, session: str) -> Sequence[Lease] | None:
        """A gateway's worker is dead: all that it held ends. None where it is not known."""
        if self._store.session(session) is None:
            return None
        synced = self._alone(EndSession(session))
        assert isinstance(synced, Synced)
        return synced.ended

    def note_abort(self, lease_id: str, phase: Phase | None) -> bool:
        """Count a client that left, by how far its stream had come. False where it has been
        counted: a gateway whose answer was lost tells it again, whoever ended the lease."""
        if lease_id in self._aborted:
            return False
        self._aborted.add(lease_id, self.clock())
        if phase:
            self.aborts[phase] += 1
        return True

    def adjust(self, backend: Backend, limits: Limits, who: str) -> None:
        """Put a backend's limits in force, and keep them over restarts; ``who`` has changed them.
        :class:`control.stores.StoreError` where they cannot be kept."""
        pool = next(p for p in self._store.pools() if p.backends.get(backend.name) is backend)
        before = backend.limits
        self._store.adjust(backend, limits)
        if limits != before:
            self._chronicle.adjusted(
                pool.name,
                backend.name,
                before=before,
                after=limits,
                who=who,
                now=self.clock(),
            )

    def report_node(self, name: str, memory: MemoryState, report: Mapping[str, Any]) -> int:
        """An agent says how its node is; answered by the streams that run there."""
        now = self.clock()
        if name not in self._nodes and len(self._nodes) >= MAX_NODES:
            oldest = min(self._nodes.values(), key=lambda node: node.last_seen)
            del self._nodes[oldest.name]
        self._nodes[name] = Node(name, now, memory, report)
        return sum(len(s.leases) for s in self._store.sessions() if s.node == name)

    def nodes(self) -> Sequence[Node]:
        """Every node whose agent has been heard, by name."""
        return [self._nodes[name] for name in sorted(self._nodes)]

    def tick(self) -> list[Lease]:
        """Let time pass, and keep what it changed; to be called some times a second. Returns the
        leases that were lost."""
        now = self._pass_time()
        self._store.apply(None, (), now)
        self._tell()
        sight = Sight(
            self._store.pools(), self._nodes.values(), self._store.fault(), self._store.drift()
        )
        self._chronicle.tick(now, sight, self._counts)
        lost, self._lost = self._lost, []
        return lost

    def fault(self) -> str | None:
        """Why nothing new is granted at present, as far as it is the store's."""
        return self._store.fault()

    def close(self) -> None:
        """Decide nothing more, and let another take over."""
        self._store.close()

    def pools(self) -> Sequence[Pool]:
        """All pools as they are now."""
        self._pass_time()
        return self._store.pools()

    def leases(self) -> Sequence[Lease]:
        """All live leases as they are now, oldest first."""
        self._pass_time()
        return self._store.leases()

    def lease(self, lease_id: str) -> Lease | None:
        """One live lease as it is now."""
        self._pass_time()
        return self._store.lease(lease_id)

    def progress(self, lease_id: str) -> Progress | None:
        """How far a live stream has come, as its gateway last said."""
        return self._progress.of(lease_id)

    def history(self, minutes: int) -> dict[str, Any]:
        """What happened in the last minutes (:meth:`control.chronicle.history.History.shown`)."""
        now = self._pass_time()
        return self._chronicle.history.shown(
            now, self.wall(), self._counts(), self._store.pools(), minutes
        )

    def sessions(self) -> Sequence[Session]:
        """All sessions as they are now."""
        self._pass_time()
        return self._store.sessions()

    def session(self, session_id: str) -> Session | None:
        """One of them."""
        return self._store.session(session_id)

    def totals(self) -> Totals:
        """Counts since the store began."""
        return self._store.totals()

    def spans(self) -> Mapping[str, int]:
        """What became of the spans that were made for clients that trace."""
        return NO_SPANS if self._tracing is None else self._tracing.counts

    def drift(self) -> int:
        """granted - ended - live: 0, always."""
        return self._store.drift()

    def _alone(self, operation: Operation) -> Result:
        [result] = self._store.apply(None, [operation], self._pass_time())
        self._tell()
        return result

    def _tell(self) -> None:
        """What has been kept may be told."""
        changes = self._store.take_news()
        if changes:
            self._chronicle.changed(changes, self._store.pools())
            self._progress.forget(changes)
            if self._tracing is not None:
                self._tracing.changed(changes)

    def _counts(self) -> Counts:
        return Counts.of(self._store.totals(), self.outcomes)

    def _pass_time(self) -> float:
        """Let time pass up to now. What is lost meanwhile is reported by the next tick."""
        now = self.clock()
        pause = now - self._passed_at
        self._passed_at = now
        if pause > OWN_PAUSE_S:
            # Stopped, swapped out, or a machine that was paused: nobody could be heard.
            self._store.forgive(pause, now)
        self._lost += self._store.tick(now)
        return now

    def _operation(
        self, session: str, request: Ask | Operation, now: float
    ) -> Operation | UnknownRoute | Refused:
        if not isinstance(request, Ask):
            if isinstance(request, Reroute) and (lease := self._store.lease(request.id)):
                self.unreachable[lease.pool, lease.backend] += 1
            return request
        pool = self._routes.get(request.route)
        if pool is None:
            return UnknownRoute(request.route)
        scene = self._estimate.scene(request.scene)
        if self._nodes:
            node = self._nodes.get(session.partition("/")[0])
            if node is not None and not node.admits(now):
                wait = NODE_MEMORY_RETRY_S * self._jitter()
                refused = Refused(Reason.NODE_MEMORY, pool, retry_after_s=wait)
                self._count(pool, scene, refused, now)
                return refused
        tokens = request.tokens
        if tokens is None:
            tokens = self._estimate.tokens(request.body_bytes, scene)
        return Acquire(Claim(request.id, pool, scene, tokens, session))

    def _count(self, pool: str, scene: str, result: Result, now: float) -> None:
        match result:
            case Granted(repeated=False):
                self.outcomes[pool, scene, "granted"] += 1
            case Refused(reason=reason):
                self.outcomes[pool, scene, reason] += 1
                self._chronicle.refused(scene, result, now)
            case AlreadyEnded():
                self.outcomes[pool, scene, "already_ended"] += 1
