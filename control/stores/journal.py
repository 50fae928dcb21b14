"""The memory store's journal: live leases and changed limits in SQLite.

A row is a live lease; one that ends is deleted, and its id kept as long as its tombstone, so the
file is as large as what runs and what has just ended. Commits go to the write-ahead log without
fsync (12 us): what a killed process wrote is in the kernel's hands already, and a machine that lost
its power runs no stream any more. Limits are an operator's word and are synced.
"""

import contextlib
import logging
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from control.core.lease import Lease
from control.core.ledger import LAST_GRANT, LAST_HELD
from control.core.tombstones import MAX_EACH, Tombstones
from control.stores.base import StoreError
from control.stores.rows import Override, from_lease, to_lease, to_override

VERSION = 1
GRANTS_AT_ONCE = 10_000
"""Grant numbers are reserved in blocks: one write in so many grants keeps them from repeating."""
CHECKPOINT_PAGES = 2_000
"""The write-ahead log is folded in at about 8 MB."""
NOT_OURS = -1
"""No file's inode: what stands there is still to be put aside."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE leases (
    id TEXT PRIMARY KEY, "grant" INTEGER, pool TEXT, backend TEXT, tenant TEXT, scene TEXT,
    tokens INTEGER, session TEXT, granted_at REAL, state TEXT, verdict TEXT, witness TEXT,
    drain_until REAL
) WITHOUT ROWID;
CREATE TABLE limits (
    pool TEXT, backend TEXT, max_streams INTEGER, max_tokens INTEGER, state TEXT,
    configured_streams INTEGER, configured_tokens INTEGER,
    PRIMARY KEY (pool, backend)
) WITHOUT ROWID;
"""
PUT_LEASE = f"INSERT OR REPLACE INTO leases VALUES ({', '.join('?' * 13)})"
DELETE_LEASE = "DELETE FROM leases WHERE id = ?"
ENDED_TABLES = ("ended_0", "ended_1")
"""Tombstones, a table a generation in turn: forgetting one is emptying its table. Which is whose
is not known after a restart, so a start leaves the newest."""
ENDED_SCHEMA = "".join(f"CREATE TABLE IF NOT EXISTS {table} (id TEXT);" for table in ENDED_TABLES)
PUT_ENDED = [f"INSERT INTO {table} VALUES (?)" for table in ENDED_TABLES]
LEAVE_NEWEST = [
    f"DELETE FROM {table} WHERE rowid <= (SELECT max(rowid) FROM {table}) - {MAX_EACH}"
    for table in ENDED_TABLES
]
PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"

log = logging.getLogger("weir.journal")


class JournalLost(StoreError):
    """The file is no longer where it was opened."""


class Saved(NamedTuple):
    """What a journal held. ``ended``: ids of tombstones. ``first``: there was none before.
    ``damaged``: there was one, and it could not be read, so that what runs is not known."""

    leases: list[Lease]
    overrides: Mapping[tuple[str, str], Override]
    first_grant: int
    ended: Sequence[str] = ()
    first: bool = False
    damaged: bool = False


class Journal:
    """One file, open in one process. Every failure is a :class:`StoreError`."""

    def __init__(self, path: Path, create: bool) -> None:
        self.path = path
        self._reserved = 1
        self._turns: int | None = None
        self._inode: int | None = None
        self._open(create)
        if create:
            self._complete()

    @classmethod
    def open(cls, path: Path, now: float) -> "tuple[Journal, Saved]":
        """Open the journal, and read what it holds. A damaged one is put aside, not repaired:
        nothing says which of its leases are true."""
        first = not path.exists()
        journal = None
        try:
            journal = cls(path, create=first)
            return journal, journal._load(now)._replace(first=first)
        except (StoreError, sqlite3.Error, ValueError) as exc:
            if journal is not None:
                journal.close()
            if first or _is_transient(exc):
                raise StoreError(
                    f"{path} cannot be used: {exc}; mend that, or move the file away: then nothing"
                    " is granted until every worker has said what it holds"
                ) from exc
            try:
                aside = _put_aside(path)
            except OSError as failed:
                raise StoreError(_in_the_way(path, failed)) from failed
            log.critical("journal_damaged file=%s error=%s kept_as=%s", path, exc, aside)
        journal = cls(path, create=True)
        return journal, Saved([], {}, journal._reserved, damaged=True)

    def write(
        self,
        changes: Iterable[tuple[str, Lease | None]],
        next_grant: int,
        tombstones: Tombstones,
        is_probe: bool = False,
    ) -> None:
        """Keep leases as they are now; None for one that has ended, or will never begin. All or
        nothing. ``is_probe``: write something even where nothing has changed."""
        gone, live = [], []
        for lease_id, lease in changes:
            if lease is None:
                gone.append((lease_id,))
            else:
                live.append(from_lease(lease))
        self._check_place()
        db = self._db
        reserved = self._reserved
        try:
            db.execute("BEGIN")
            self._forget_ended(tombstones.turns)
            if gone:
                db.executemany(DELETE_LEASE, gone)
                ended = (row for row in gone if row[0] in tombstones)
                db.executemany(PUT_ENDED[tombstones.turns % 2], ended)
            if live:
                db.executemany(PUT_LEASE, live)
            if is_probe or next_grant > reserved:
                reserved = next_grant + GRANTS_AT_ONCE
                db.execute(PUT_META, ("grants_reserved", reserved))
            db.execute("COMMIT")
        except sqlite3.Error as exc:
            self._roll_back()
            raise StoreError(f"{self.path} cannot be written: {exc}") from exc
        self._reserved, self._turns = reserved, tombstones.turns

    def keep(self, pool: str, backend: str, override: Override | None) -> None:
        """Keep a backend's changed limits, or forget them. Durable when this returns."""
        self._check_place()
        db = self._db
        try:
            # Whether it was kept is decided by this one commit: nothing that can fail comes after.
            db.execute("PRAGMA synchronous = FULL")
            db.execute("BEGIN")
            db.execute("DELETE FROM limits WHERE pool = ? AND backend = ?", (pool, backend))
            if override is not None:
                limits, configured = override
                values = (pool, backend, *limits, *configured[:2])
                db.execute("INSERT INTO limits VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            db.execute("COMMIT")
        except sqlite3.Error as exc:
            self._roll_back()
            raise StoreError(f"{self.path} cannot be written: {exc}") from exc
        finally:
            with contextlib.suppress(sqlite3.Error):  # at worst, leases are synced too
                db.execute("PRAGMA synchronous = NORMAL")

    def begin_anew(
        self,
        leases: Iterable[Lease],
        overrides: Mapping[tuple[str, str], Override],
        next_grant: int,
        tombstones: Tombstones,
    ) -> None:
        """Put the file aside, and write a new one of what is known. Where that fails the file
        counts as lost, and is begun anew with the next write."""
        self.close()
        try:
            if self._inode is not None:
                self._inode = NOT_OURS
                _put_aside(self.path)
                self._inode = None
            _remove(self.path)
        except OSError as exc:
            raise StoreError(_in_the_way(self.path, exc)) from exc
        self._reserved, self._turns = 0, None
        try:
            self._open(create=True)
            for (pool, backend), override in overrides.items():
                self.keep(pool, backend, override)
            known = [(lease.id, lease) for lease in leases]
            ended = [(lease_id, None) for lease_id in tombstones]
            self.write([*ended, *known], next_grant, tombstones)
            self._complete()
        except StoreError:
            self._inode = None
            raise

    def is_lost(self, exc: StoreError) -> bool:
        """Whether a failed write means that the file is gone or damaged, and not only that the
        disk has no room."""
        return isinstance(exc, JournalLost) or not _is_transient(exc)

    def close(self) -> None:
        """Fold the log in and let go of the file."""
        try:
            self._db.close()
        except sqlite3.Error as exc:
            log.warning("journal_close_failed file=%s error=%s", self.path, exc)

    def _open(self, create: bool) -> None:
        try:
            self._db = db = sqlite3.connect(self.path, isolation_level=None)
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            if create:
                db.executescript(f"BEGIN;{SCHEMA}{ENDED_SCHEMA}COMMIT;")
            self._inode = self.path.stat().st_ino
        except (sqlite3.Error, OSError) as exc:
            raise StoreError(f"{self.path} cannot be opened: {exc}") from exc

    def _complete(self) -> None:
        """Say, durably, that all is in the file: one that does not is taken for damaged."""
        db = self._db
        try:
            db.execute("PRAGMA synchronous = FULL")
            db.execute(PUT_META, ("boot", _boot()))
            db.execute(PUT_META, ("version", VERSION))
            db.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.Error as exc:
            raise StoreError(f"{self.path} cannot be written: {exc}") from exc

    def _load(self, now: float) -> Saved:
        db = self._db
        if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            raise ValueError("it is not a journal")
        verdict = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise ValueError(verdict)
        meta = dict(db.execute("SELECT key, value FROM meta"))
        if meta.get("version") != VERSION:
            raise ValueError(f"version {meta.get('version')!r} is not {VERSION}")
        self._reserved = _reserved(meta.get("grants_reserved", 1))
        leases = [to_lease(row) for row in db.execute('SELECT * FROM leases ORDER BY "grant"')]
        if len({lease.id for lease in leases}) < len(leases):
            raise ValueError("an id has two leases")
        db.executescript(ENDED_SCHEMA)  # a journal of before had none
        for statement in LEAVE_NEWEST:
            db.execute(statement)
        ended = [
            str(row[0]) for table in ENDED_TABLES for row in db.execute(f"SELECT id FROM {table}")
        ]
        if meta.get("boot") != _boot():
            _restart_clock(leases, now)
            db.execute(PUT_META, ("boot", _boot()))
        overrides = dict(map(to_override, db.execute("SELECT * FROM limits")))
        return Saved(leases, overrides, self._reserved, ended)

    def _forget_ended(self, turns: int) -> None:
        """Empty the tables of the generations that have been forgotten since the last write."""
        since = 0 if self._turns is None else turns - self._turns
        for turn in range(turns, turns - min(since, 2), -1):
            self._db.execute(f"DELETE FROM {ENDED_TABLES[turn % 2]}")

    def _check_place(self) -> None:
        try:
            in_place = self.path.stat().st_ino == self._inode
        except OSError:
            in_place = False
        if not in_place:
            raise JournalLost(f"{self.path} is not the file that was opened: it was removed")

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            try:
                self._db.execute("ROLLBACK")
            except sqlite3.Error as exc:
                log.error("journal_rollback_failed file=%s error=%s", self.path, exc)


def _is_transient(exc: Exception) -> bool:
    """Whether the file itself may be sound: it is locked, not readable, the disk is full. A table
    that is not there and a text that is none are operational errors of SQLite's as well."""
    cause = exc.__cause__ if isinstance(exc, StoreError) else exc
    code = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return isinstance(cause, sqlite3.OperationalError) and code != sqlite3.SQLITE_ERROR


def _put_aside(path: Path) -> Path:
    """Keep the file, with what is still in its write-ahead log."""
    aside = path.with_name(path.name + ".damaged")
    _remove(aside)
    for suffix in ("", "-wal"):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.replace(aside.with_name(aside.name + suffix))
    _remove(path)
    return aside


def _in_the_way(path: Path, exc: OSError) -> str:
    return (
        f"{path} is lost or damaged, and cannot be begun anew: {exc}; let the service write to its"
        " folder, or move away what is in the way"
    )


def _remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _reserved(saved: object) -> int:
    if not isinstance(saved, int) or saved < 1:
        raise ValueError(f"grants_reserved {saved!r} is no grant's number")
    if saved <= LAST_GRANT:
        return saved
    # A number that a gateway had made up was once taken over, and counted on from.
    log.warning("grants_renumbered from=%d to=%d", saved, LAST_HELD)
    return LAST_HELD


def _boot() -> str:
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else ""


def _restart_clock(leases: Iterable[Lease], now: float) -> None:
    """The machine was started anew, and its monotonic clock with it: ages begin again."""
    for lease in leases:
        lease.granted_at = now
        if lease.drain_until is not None:
            lease.drain_until = now
