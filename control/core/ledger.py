"""The ledger: every lease, session and pool, and the steps that change them.

Invariants, checked by the property tests and shown as metrics: a grant never takes a backend
past its limits; granted = ended + live; what a backend has in use is what its live leases hold.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from control.core.change import DRAINING, ENDED, GRANTED, MOVED, Change
from control.core.decision import AlreadyEnded, Decision, Granted, Refused, ReleaseOutcome
from control.core.lease import Lease, LeaseState
from control.core.pool import Limits, Pool, in_use
from control.core.session import Session
from control.core.tombstones import Tombstones
from control.core.verdict import Verdict, Witness

LAST_GRANT = 1 << 46
"""No grant has a larger number: nginx's Lua writes whole numbers exactly up to 14 digits."""
LAST_HELD = LAST_GRANT >> 1
"""So far what gateways say that they hold moves the ledger's own numbers: the rest, enough for
100 years, is left to grants that are made."""


class Claim(NamedTuple):
    """A stream that asks for room. ``tokens`` at least 0."""

    id: str
    pool: str
    scene: str
    tokens: int
    session: str
    tenant: str = ""


class Held(NamedTuple):
    """A stream that a gateway says it serves: enough to adopt it where it is not known.

    ``grant`` where it was granted by a ledger: the adopted lease goes on under it, so that the
    stream's own releases still name it.
    """

    id: str
    pool: str
    backend: str
    scene: str
    tokens: int
    grant: int | None = None


@dataclass(slots=True)
class Totals:
    """Counts since the ledger began; only ever growing."""

    granted: int = 0
    ended: Counter[tuple[Verdict, Witness]] = field(default_factory=Counter)
    idle_releases: Counter[tuple[ReleaseOutcome, Witness]] = field(default_factory=Counter)


class Ledger:
    """State and its rules, for at least one pool. Not thread-safe: one caller at a time, and no
    step yields.

    ``jitter`` gives the factor by which the advice to come back is spread. ``first_grant`` is
    more than every grant that was ever made under the ids that may still come.
    """

    def __init__(
        self,
        pools: Iterable[Pool],
        jitter: Callable[[], float] = lambda: 1.0,
        first_grant: int = 1,
    ) -> None:
        self.pools: Mapping[str, Pool] = {pool.name: pool for pool in pools}
        self.leases: dict[str, Lease] = {}
        self.sessions: dict[str, Session] = {}
        self.totals = Totals()
        self.next_grant = first_grant
        self.changed: set[str] = set()
        """Leases that were granted, moved or ended since whoever keeps them cleared this."""
        self.foretold: set[str] = set()
        """Ids whose end was told before they began, since whoever keeps them cleared this."""
        self._news: list[Change] = []
        self._jitter = jitter
        self.tombstones = Tombstones()
        self._drains: list[tuple[float, int, str]] = []
        self._shortest_ttl = min(pool.session_ttl for pool in self.pools.values())
        self._longest_ttl = max(pool.session_ttl for pool in self.pools.values())

    # -- what a gateway says -------------------------------------------------------------

    def heard(self, session_id: str, now: float) -> None:
        """The session lives. Called once a batch."""
        self._session(session_id, now).last_seen = now

    def acquire(self, claim: Claim, now: float) -> Decision:
        """Take one stream and the claim's tokens of a backend of its pool (a known one).

        Idempotent: an id that holds a lease gets that lease again. It lives with the session
        that asked last.
        """
        lease = self.leases.get(claim.id)
        if lease is not None:
            return self._repeat(lease, claim.session, now)
        if claim.id in self.tombstones:
            return AlreadyEnded(claim.id)
        pool = self.pools[claim.pool]
        backend = pool.choose(claim.tokens, now, self._jitter)
        if isinstance(backend, Refused):
            return backend
        return self._granted(self._grant(claim, backend.name, now))

    def reroute(self, lease_id: str, now: float) -> Decision:
        """The lease's backend could not be reached and has been sent nothing: try another.

        The backend is passed over for the pool's ``pass_over``. The lease moves to another
        backend in one step; where there is none it ends as ``upstream_error``.
        """
        lease = self.leases.get(lease_id)
        if lease is None or lease.state is not LeaseState.ACTIVE:
            return AlreadyEnded(lease_id)
        if lease_id in self.sessions[lease.session].cuts:
            # It was cut: what looks like an engine that cannot be reached is our doing.
            self.release(lease_id, Verdict.KILLED, Witness.ADMIN, now)
            return AlreadyEnded(lease_id)
        pool = self.pools[lease.pool]
        pool.backends[lease.backend].passed_over_until = now + pool.pass_over
        choice = pool.choose(lease.tokens, now, self._jitter)
        if isinstance(choice, Refused):
            self._finish(lease, Verdict.UPSTREAM_ERROR, Witness.LUA, now)
            self.tombstones.add(lease.id, now)
            return choice
        self._move(lease, lease.pool, choice.name, now)
        return self._granted(lease)

    def release(
        self,
        lease_id: str,
        verdict: Verdict,
        witness: Witness,
        now: float,
        grant: int | None = None,
    ) -> ReleaseOutcome:
        """End a lease, or let it drain where its verdict says so. Only the first one counts.

        ``grant``, where the caller knows it, must be the lease's own.
        """
        outcome = self._release(lease_id, verdict, witness, now, grant)
        if outcome is not ReleaseOutcome.RELEASED:
            self.totals.idle_releases[outcome, witness] += 1
        return outcome

    def sync(
        self,
        session_id: str,
        known: Iterable[str],
        held: Iterable[Held],
        now: float,
        up_to: int | None = None,
        *,
        config: str | None = None,
    ) -> tuple[list[Lease], list[Lease]]:
        """Make the session's leases those that it says it holds: ``(ended, adopted)``.

        Active leases of the session that are in neither ``known`` nor ``held`` end as ``lost``,
        as far as they were granted ``up_to`` the last grant that it had heard of: a sync that was
        long under way says nothing of later ones. What is in ``held`` and not known here, or was
        given up as lost, is adopted, limits or not: it runs already. What runs on another backend
        or under another session than is known here is counted there.
        """
        session = self._session(session_id, now)
        session.synced_at = now
        session.config = config
        held = [claim for claim in held if self._has_place(claim)]
        alive = set(known) | {claim.id for claim in held}
        lost = [self.leases[lease_id] for lease_id in session.leases - alive]
        lost = [
            lease
            for lease in lost
            if lease.state is LeaseState.ACTIVE and (up_to is None or lease.grant <= up_to)
        ]
        for lease in lost:
            self._end_early(lease, Verdict.LOST, Witness.SESSION, now)
        adopted = [self._adopt(claim, session_id, now) for claim in held]
        return lost, [lease for lease in adopted if lease is not None]

    # -- what time does ------------------------------------------------------------------

    def tick(self, now: float) -> list[Lease]:
        """End drains that are over and leases whose session has gone silent; forget what is
        no longer needed. Returns the leases that ended or began to drain for silence."""
        while self._drains and self._drains[0][0] <= now:
            _, grant, lease_id = heapq.heappop(self._drains)
            lease = self.leases.get(lease_id)
            drains = lease is not None and lease.state is LeaseState.DRAINING
            if lease is not None and drains and lease.grant == grant:
                self._remove(lease, now)
        lost = []
        for session in list(self.sessions.values()):
            if session.silent_for(now) > self._shortest_ttl:
                lost += self._reap(session, now)
        self.tombstones.fade(now)
        return lost

    def forgive(self, seconds: float, now: float) -> None:
        """Nobody could be heard for so long: that silence is not the sessions'. Pools that were
        decided elsewhere meanwhile settle first."""
        for session in self.sessions.values():
            session.last_seen += seconds
        for pool in self.pools.values():
            if pool.decided_locally:
                pool.settle(now)

    # -- what an operator says -----------------------------------------------------------

    def cut(self, lease_id: str) -> ReleaseOutcome:
        """Ask the lease's gateway to end its stream. The lease stays until it says it has."""
        lease = self.leases.get(lease_id)
        if lease is None:
            known = lease_id in self.tombstones
            return ReleaseOutcome.ALREADY if known else ReleaseOutcome.UNKNOWN
        if lease.state is not LeaseState.ACTIVE:
            return ReleaseOutcome.ALREADY
        self.sessions[lease.session].cuts.add(lease_id)
        return ReleaseOutcome.CUTTING

    def end_session(self, session_id: str, now: float) -> list[Lease]:
        """The worker is known to be dead: end all that it held, without waiting."""
        session = self.sessions.pop(session_id, None)
        if session is None:
            return []
        lost = [self.leases[lease_id] for lease_id in session.leases]
        lost = [lease for lease in lost if lease.state is LeaseState.ACTIVE]
        for lease in lost:
            self._end_early(lease, Verdict.LOST, Witness.SESSION, now)
        return lost

    # -- what its keeper says ------------------------------------------------------------

    def restore(self, leases: Iterable[Lease], now: float, ended: Iterable[str] = ()) -> None:
        """Take up live leases that an earlier ledger granted; all their sessions count as heard.
        ``ended``: ids that it remembered.

        Each lease must have a pool and a backend here.
        """
        for lease_id in ended:
            self.tombstones.add(lease_id, now)
        for lease in leases:
            self.totals.granted += 1
            self._pass_number(lease.grant)
            self._take(lease, now)
            if lease.state is LeaseState.DRAINING:
                assert lease.drain_until is not None
                longest = now + self.pools[lease.pool].drain
                lease.drain_until = min(lease.drain_until, longest)
                heapq.heappush(self._drains, (lease.drain_until, lease.grant, lease.id))
                if lease.verdict is not Verdict.LOST:
                    self.tombstones.add(lease.id, now)

    def withdraw(self, leases: Sequence[Lease]) -> None:
        """Undo grants that nobody has been told of."""
        for lease in leases:
            self.totals.granted -= 1
            self.pools[lease.pool].backends[lease.backend].drop(lease)
            self._forget(lease)
        untold = {id(lease) for lease in leases}
        self._news = [change for change in self._news if id(change.lease) not in untold]

    def take_news(self) -> list[Change]:
        """What became of leases since this was last asked, in order."""
        news, self._news = self._news, []
        return news

    # -- what may be asked ---------------------------------------------------------------

    @property
    def drift(self) -> int:
        """granted - ended - live: 0, always."""
        return self.totals.granted - self.totals.ended.total() - len(self.leases)

    def next_drain(self) -> float | None:
        """When the next draining lease ends, in the caller's time; None where none drains."""
        return self._drains[0][0] if self._drains else None

    def audit(self) -> list[str]:
        """Every invariant that does not hold, in words. Counts all anew: for tests and doctors."""
        faults = []
        if self.drift:
            faults.append(f"granted - ended - live is {self.drift}")
        for pool in self.pools.values():
            for backend in pool.backends.values():
                mine = [
                    lease
                    for lease in self.leases.values()
                    if (lease.pool, lease.backend) == (pool.name, backend.name)
                ]
                held = (
                    len(mine),
                    sum(lease.tokens for lease in mine),
                    sum(lease.state is LeaseState.DRAINING for lease in mine),
                )
                counted = (backend.streams, backend.tokens, backend.draining)
                if held != counted:
                    faults.append(f"{pool.name}/{backend.name} holds {held}, counts {counted}")
        owned = sorted(i for session in self.sessions.values() for i in session.leases)
        unowned = set(self.leases) - set(owned)
        faults += [f"lease {i} has no session" for i in unowned if not self._is_draining(i)]
        faults += [f"session owns ended lease {i}" for i in owned if i not in self.leases]
        return faults

    def local_limits(self) -> dict[str, dict[str, Limits]]:
        """The limits in force of pools that gateways decide by themselves while they have no
        answer."""
        return {
            pool.name: {b.name: b.limits for b in pool.backends.values()}
            for pool in self.pools.values()
            if pool.decided_locally
        }

    def in_use(self) -> tuple[int, int]:
        """Streams and tokens in use over all pools."""
        return in_use(b for pool in self.pools.values() for b in pool.backends.values())

    # -- within --------------------------------------------------------------------------

    def _repeat(self, lease: Lease, session_id: str, now: float) -> Decision:
        if lease.state is LeaseState.ACTIVE:
            self._hand_over(lease, session_id, now)
            return self._granted(lease, repeated=True)
        return AlreadyEnded(lease.id)

    def _granted(self, lease: Lease, repeated: bool = False) -> Granted:
        backend = self.pools[lease.pool].backends[lease.backend]
        return Granted(lease, repeated, backend.is_tight)

    def _grant(self, claim: Claim, backend: str, now: float, grant: int | None = None) -> Lease:
        self.totals.granted += 1
        lease = Lease(
            id=claim.id,
            grant=grant or self.next_grant,
            pool=claim.pool,
            backend=backend,
            tenant=claim.tenant,
            scene=claim.scene,
            tokens=claim.tokens,
            session=claim.session,
            granted_at=now,
        )
        self._pass_number(lease.grant)
        self.changed.add(lease.id)
        self._take(lease, now)
        self._tell(GRANTED, lease, now)
        return lease

    def _pass_number(self, grant: int) -> None:
        """The next grant's number is larger; how much larger, no gateway says without bound."""
        if grant == self.next_grant:
            self.next_grant += 1
        else:
            self.next_grant = max(self.next_grant, min(grant, LAST_HELD) + 1)

    def _take(self, lease: Lease, now: float) -> None:
        self.leases[lease.id] = lease
        self.pools[lease.pool].backends[lease.backend].hold(lease)
        self._session(lease.session, now).leases.add(lease.id)

    def _session(self, session_id: str, now: float) -> Session:
        session = self.sessions.get(session_id)
        if session is None:
            session = self.sessions[session_id] = Session(session_id, now)
        return session

    def _move(self, lease: Lease, pool: str, backend: str, now: float) -> None:
        if (lease.pool, lease.backend) == (pool, backend):
            return
        self.pools[lease.pool].backends[lease.backend].drop(lease)
        lease.pool, lease.backend = pool, backend
        self.pools[pool].backends[backend].hold(lease)
        self.changed.add(lease.id)
        self._tell(MOVED, lease, now)

    def _hand_over(self, lease: Lease, session_id: str, now: float) -> None:
        """Its gateway speaks under another session now, as after a restart of its own."""
        if lease.session == session_id:
            return
        before = self.sessions.get(lease.session)
        session = self._session(session_id, now)
        if before is not None:
            before.leases.discard(lease.id)
            if lease.id in before.cuts:
                before.cuts.discard(lease.id)
                session.cuts.add(lease.id)
        lease.session = session_id
        session.leases.add(lease.id)
        self.changed.add(lease.id)

    def _has_place(self, held: Held) -> bool:
        return held.pool in self.pools and held.backend in self.pools[held.pool].backends

    def _adopt(self, held: Held, session_id: str, now: float) -> Lease | None:
        lease = self.leases.get(held.id)
        if lease is None:
            if held.id in self.tombstones:
                return None
            claim = Claim(held.id, held.pool, held.scene, held.tokens, session_id)
            return self._grant(claim, held.backend, now, held.grant)
        if lease.state is LeaseState.ACTIVE:
            self._hand_over(lease, session_id, now)
            self._move(lease, held.pool, held.backend, now)
            return None
        if lease.verdict is not Verdict.LOST:
            return None
        # It was given up too early: its gateway was only silent, and it still drains.
        self.pools[lease.pool].backends[lease.backend].draining -= 1
        lease.state = LeaseState.ACTIVE
        lease.verdict = lease.witness = lease.drain_until = None
        self._hand_over(lease, session_id, now)
        self._session(session_id, now).leases.add(lease.id)
        self.changed.add(lease.id)
        self._tell(MOVED, lease, now)
        return lease

    def _release(
        self, lease_id: str, verdict: Verdict, witness: Witness, now: float, grant: int | None
    ) -> ReleaseOutcome:
        lease = self.leases.get(lease_id)
        if lease is None:
            known = lease_id in self.tombstones
            # A person cannot be ahead of an acquire, as a gateway can.
            if known or witness is not Witness.ADMIN:
                self.tombstones.add(lease_id, now)
                if not known:
                    self.foretold.add(lease_id)
            return ReleaseOutcome.ALREADY if known else ReleaseOutcome.UNKNOWN
        if grant is not None and grant != lease.grant:
            return ReleaseOutcome.STALE
        if lease.state is not LeaseState.ACTIVE:
            return ReleaseOutcome.ALREADY
        self._finish(lease, verdict, witness, now)
        self.tombstones.add(lease_id, now)
        return ReleaseOutcome.RELEASED

    def _finish(self, lease: Lease, verdict: Verdict, witness: Witness, now: float) -> None:
        """End an active lease the way its verdict asks for."""
        if verdict.drains and self.pools[lease.pool].drain > 0:
            self._end_early(lease, verdict, witness, now)
        else:
            lease.verdict, lease.witness = verdict, witness
            self._remove(lease, now)

    def _end_early(self, lease: Lease, verdict: Verdict, witness: Witness, now: float) -> None:
        """The stream was cut: its room stays counted until the engine has surely freed it."""
        pool = self.pools[lease.pool]
        backend = pool.backends[lease.backend]
        backend.drop(lease)
        lease.state = LeaseState.DRAINING
        backend.hold(lease)
        lease.verdict, lease.witness = verdict, witness
        lease.drain_until = now + pool.drain
        self._uncut(lease)
        self.changed.add(lease.id)
        self._tell(DRAINING, lease, now)
        heapq.heappush(self._drains, (lease.drain_until, lease.grant, lease.id))

    def _remove(self, lease: Lease, now: float) -> None:
        """The lease is over: this is the only place where room comes back."""
        assert lease.verdict is not None and lease.witness is not None
        pool = self.pools[lease.pool]
        pool.backends[lease.backend].drop(lease)
        pool.note_end(lease, now)
        lease.state = LeaseState.ENDED
        self._forget(lease)
        self.totals.ended[lease.verdict, lease.witness] += 1
        self._tell(ENDED, lease, now)

    def _tell(self, kind: str, lease: Lease, now: float) -> None:
        self._news.append(
            Change(kind, now, lease, lease.pool, lease.backend, lease.verdict, lease.witness)
        )

    def _forget(self, lease: Lease) -> None:
        del self.leases[lease.id]
        self.changed.add(lease.id)
        self._uncut(lease)
        session = self.sessions.get(lease.session)
        if session is not None:
            session.leases.discard(lease.id)

    def _uncut(self, lease: Lease) -> None:
        session = self.sessions.get(lease.session)
        if session is not None:
            session.cuts.discard(lease.id)

    def _reap(self, session: Session, now: float) -> list[Lease]:
        silence = session.silent_for(now)
        lost = []
        for lease_id in list(session.leases):
            lease = self.leases[lease_id]
            if lease.state is LeaseState.ACTIVE and silence > self.pools[lease.pool].session_ttl:
                self._end_early(lease, Verdict.LOST, Witness.SESSION, now)
                lost.append(lease)
        if not session.leases and silence > self._longest_ttl:
            del self.sessions[session.id]
        return lost

    def _is_draining(self, lease_id: str) -> bool:
        return self.leases[lease_id].state is LeaseState.DRAINING
