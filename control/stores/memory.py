"""The ledger in this process's memory: one process decides for one site.

A gevent worker runs one greenlet at a time and no step here yields, so each call is atomic. With
a journal, what is answered has been written.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from control.core.change import Change
from control.core.decision import Granted, Reason, Refused
from control.core.lease import Lease
from control.core.ledger import Ledger, Totals
from control.core.operation import Acquire, Operation, Result, apply
from control.core.pool import Backend, BackendState, Limits, Pool
from control.core.session import Session
from control.stores.base import StoreError
from control.stores.journal import Journal, Saved
from control.stores.rows import Override

RETRY_S = 1.0
"""How soon a refused client may come back where the journal could not be written."""

log = logging.getLogger("weir.store")


class MemoryStore:
    """:class:`control.stores.base.Store`; with a journal, what is live outlasts the process."""

    def __init__(
        self,
        pools: Iterable[Pool],
        jitter: Callable[[], float] = lambda: 1.0,
        journal: Journal | None = None,
        saved: Saved | None = None,
        now: float = 0.0,
    ) -> None:
        self._journal = journal
        self._jitter = jitter
        self._fault: str | None = None
        self._overrides: dict[tuple[str, str], Override] = {}
        by_name = {pool.name: pool for pool in pools}
        if saved is None:
            self._ledger = Ledger(by_name.values(), jitter)
            return
        for lease in saved.leases:
            _make_place(by_name, lease)
        self._ledger = Ledger(by_name.values(), jitter, saved.first_grant)
        self._ledger.restore(saved.leases, now, saved.ended)
        self._take_up(saved)
        for pool in by_name.values():
            if saved.damaged or (pool.decided_locally and not saved.first):
                pool.settle(now)

    @classmethod
    def journaled(
        cls,
        pools: Iterable[Pool],
        path: Path,
        jitter: Callable[[], float],
        now: float,
        expected: bool = False,
    ) -> "MemoryStore":
        """The store of a journal, with all that it holds. :class:`StoreError` where the file
        cannot be used. ``expected``: it is no first start, and without a file something is lost.
        """
        journal, saved = Journal.open(path, now)
        if saved.first and expected:
            log.critical("journal_missing file=%s", path)
            saved = saved._replace(damaged=True)
        store = cls(pools, jitter, journal, saved, now)
        log.info("journal_read leases=%d limits=%d", len(saved.leases), len(saved.overrides))
        return store

    def apply(
        self, session: str | None, operations: Sequence[Operation], now: float
    ) -> list[Result]:
        ledger = self._ledger
        unkept = set(ledger.changed)
        if session is not None:
            ledger.heard(session, now)
        results = [apply(ledger, operation, now) for operation in operations]
        if (ledger.changed or ledger.foretold or self._fault) and not self._keep():
            return self._without_grants(operations, results, unkept)
        return results

    def tick(self, now: float) -> list[Lease]:
        return self._ledger.tick(now)

    def take_news(self) -> list[Change]:
        return self._ledger.take_news()

    def forgive(self, seconds: float, now: float) -> None:
        self._ledger.forgive(seconds, now)

    def adjust(self, backend: Backend, limits: Limits) -> None:
        pool = next(p.name for p in self.pools() if p.backends.get(backend.name) is backend)
        changed = limits != backend.configured
        override = Override(limits, backend.configured) if changed else None
        overrides = {**self._overrides}
        overrides.pop((pool, backend.name), None)
        if override is not None:
            overrides[pool, backend.name] = override
        self._write(lambda journal: journal.keep(pool, backend.name, override), overrides)
        self._overrides = overrides
        backend.adjust(limits)
        for session in self._ledger.sessions.values():
            session.synced_at = float("-inf")  # they are told the new limits when they sync

    def fault(self) -> str | None:
        return self._fault

    def close(self) -> None:
        if self._journal is not None:
            self._keep()
            self._journal.close()

    def pools(self) -> Sequence[Pool]:
        return list(self._ledger.pools.values())

    def leases(self) -> Sequence[Lease]:
        return sorted(self._ledger.leases.values(), key=lambda lease: lease.grant)

    def lease(self, lease_id: str) -> Lease | None:
        return self._ledger.leases.get(lease_id)

    def sessions(self) -> Sequence[Session]:
        return list(self._ledger.sessions.values())

    def session(self, session_id: str) -> Session | None:
        return self._ledger.sessions.get(session_id)

    def totals(self) -> Totals:
        return self._ledger.totals

    def drift(self) -> int:
        return self._ledger.drift

    # -- the journal -----------------------------------------------------------------------

    def _keep(self) -> bool:
        """Write what has changed; what cannot be written is tried again with the next change, but
        for ends of what never began: a full disk makes many of them, and they fade."""
        ledger = self._ledger
        live = ledger.leases
        ids = ledger.changed | ledger.foretold
        ledger.foretold.clear()
        try:
            self._write(
                lambda journal: journal.write(
                    ((lease_id, live.get(lease_id)) for lease_id in ids),
                    ledger.next_grant,
                    ledger.tombstones,
                    is_probe=self._fault is not None,
                ),
                self._overrides,
            )
        except StoreError as exc:
            if self._fault is None:
                log.critical("journal_failed nothing_is_granted=true error=%s", exc)
            self._fault = str(exc)
            return False
        if self._fault is not None:
            log.warning("journal_recovered")
            self._fault = None
        ledger.changed.clear()
        return True

    def _write(
        self,
        write: Callable[[Journal], None],
        overrides: Mapping[tuple[str, str], Override],
    ) -> None:
        """All or nothing. ``overrides``: as they are with what is written."""
        journal = self._journal
        if journal is None:
            return
        try:
            write(journal)
        except StoreError as exc:
            if not journal.is_lost(exc):
                raise
            # All that it held is known here, and what was to be written: a new one is as good.
            if self._fault is None:
                log.critical("journal_lost a_new_one_is_written=true error=%s", exc)
            ledger = self._ledger
            journal.begin_anew(
                ledger.leases.values(), overrides, ledger.next_grant, ledger.tombstones
            )

    def _without_grants(
        self, operations: Sequence[Operation], results: list[Result], unkept: set[str]
    ) -> list[Result]:
        """The results where what was granted could not be kept: nobody has been told yet.
        ``unkept``: ids whose earlier changes wait to be written."""
        made: dict[str, Lease] = {}
        for operation, result in zip(operations, results, strict=True):
            match operation, result:
                case Acquire(), Granted(lease, repeated=False):
                    made[lease.id] = lease
        live = self._ledger.leases
        withdrawn = [lease for lease in made.values() if live.get(lease.id) is lease]
        self._ledger.withdraw(withdrawn)
        self._ledger.changed.difference_update({lease.id for lease in withdrawn} - unkept)
        # Also where this batch asked for it twice, or could not reach its backend.
        return [
            Refused(
                Reason.ADMISSION_DOWN, result.lease.pool, retry_after_s=RETRY_S * self._jitter()
            )
            if isinstance(result, Granted) and result.lease.id in made
            else result
            for result in results
        ]

    def _take_up(self, saved: Saved) -> None:
        """Put changed limits in force again, but those whose own in the file have been changed
        since."""
        for (pool_name, name), override in saved.overrides.items():
            pool = self._ledger.pools.get(pool_name)
            backend = pool and pool.backends.get(name)
            kept = _still_in_force(override, backend.configured) if backend else None
            if backend and kept:
                self._overrides[pool_name, name] = kept
                backend.adjust(kept.limits)
            if kept == override:
                continue
            log.warning("limits_from_file pool=%s backend=%s was=%s", pool_name, name, override)
            if self._journal is not None:
                self._journal.keep(pool_name, name, kept)


def _still_in_force(override: Override, file: Limits) -> Override | None:
    """Of what was changed live, that of which the file says what it said then."""
    live, then = override
    streams = live.max_streams if file.max_streams == then.max_streams else file.max_streams
    tokens = live.max_tokens if file.max_tokens == then.max_tokens else file.max_tokens
    limits = Limits(streams, tokens, live.state)
    return Override(limits, file) if limits != file else None


def _make_place(pools: dict[str, Pool], lease: Lease) -> None:
    """A lease whose backend is no longer configured runs on where it runs: its backend stays,
    closed, until the next start without it."""
    pool = pools.setdefault(lease.pool, Pool(lease.pool, {}))
    if lease.backend not in pool.backends:
        pool.backends[lease.backend] = Backend(lease.backend, "", 0, 0, state=BackendState.DISABLED)
        log.warning("backend_retired pool=%s backend=%s", lease.pool, lease.backend)
