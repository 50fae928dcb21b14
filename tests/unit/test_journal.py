"""The memory store's journal: what a killed process had answered is there for the next one."""

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from control.core.change import ENDED, GRANTED
from control.core.decision import AlreadyEnded, Granted, Reason, Refused, ReleaseOutcome
from control.core.ledger import LAST_GRANT, Claim, Held
from control.core.operation import Acquire, Cut, Release, Reroute, Sync
from control.core.pool import Backend, BackendState, Limits, Pool
from control.core.tombstones import LIFETIME_S, MAX_EACH
from control.core.verdict import Verdict, Witness
from control.stores import MemoryStore, StoreError
from control.stores.journal import CHECKPOINT_PAGES, ENDED_TABLES

TTL, DRAIN = 15.0, 0.1


def pools(streams: int = 3, tokens: int = 10_000, **settings: Any) -> list[Pool]:
    backend = Backend("gpu-0", "http://e", streams, tokens)
    return [Pool("p", {"gpu-0": backend}, **{"session_ttl": TTL, "drain": DRAIN, **settings})]


def opened(path: Path, now: float = 100.0, some: list[Pool] | None = None) -> MemoryStore:
    return MemoryStore.journaled(pools() if some is None else some, path, lambda: 1.0, now)


def acquire(store: MemoryStore, lease_id: str, now: float = 100.0) -> Any:
    [result] = store.apply("n/1/1", [Acquire(Claim(lease_id, "p", "QA", 100, "n/1/1"))], now)
    return result


def release(store: MemoryStore, lease_id: str, now: float = 100.0, **fields: Any) -> Any:
    fields = {"verdict": Verdict.COMPLETED, "witness": Witness.LUA, **fields}
    [result] = store.apply("n/1/1", [Release(lease_id, **fields)], now)
    return result


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def killed_after(file: Path, statements: str) -> None:
    """Run statements on a store in a process that then dies of SIGKILL."""
    code = (
        "import os, signal\nfrom pathlib import Path\n"
        "from tests.unit.test_journal import *\n"
        f"store = opened(Path({str(file)!r}))\n{statements}\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_what_a_killed_process_answered_is_there_for_the_next(file: Path) -> None:
    killed_after(
        file,
        "for n in 'abc': acquire(store, n)\n"
        "release(store, 'b')\n"
        "release(store, 'c', verdict=Verdict.CLIENT_ABORT)",
    )
    store = opened(file, now=100.05)
    assert [(lease.id, lease.state, lease.tokens) for lease in store.leases()] == [
        ("a", "active", 100), ("c", "draining", 100),
    ]  # fmt: skip
    assert store.drift() == 0
    store.tick(100.0 + DRAIN)
    assert [lease.id for lease in store.leases()] == ["a"], "the drain ends when it would have"
    assert acquire(store, "a", 100.2).repeated
    assert release(store, "a", 100.2, grant=1) is ReleaseOutcome.RELEASED


def test_grant_numbers_never_repeat(file: Path) -> None:
    killed_after(file, "for n in range(5): acquire(store, 'a'); release(store, 'a')")
    assert acquire(opened(file), "b").lease.grant > 5


def test_an_id_that_has_ended_is_not_granted_by_the_next_process_either(file: Path) -> None:
    """Nor one whose end was told before it was asked for: its acquire is on its way still."""
    ended = AlreadyEnded("done"), AlreadyEnded("cut"), AlreadyEnded("early")
    killed_after(
        file,
        "for n in ('done', 'cut'): acquire(store, n)\n"
        "release(store, 'done')\n"
        "release(store, 'cut', verdict=Verdict.CLIENT_ABORT)\n"
        "release(store, 'early')",
    )
    for now in (100.05, 130.0):
        store = opened(file, now)
        store.tick(now)
        assert tuple(acquire(store, lease.id, now) for lease in ended) == ended
        store.tick(now + 2 * DRAIN)
        assert acquire(store, "cut", now + 2 * DRAIN) == AlreadyEnded("cut")
        store.close()
    store, later = opened(file, 130.0), 130.0 + 2 * LIFETIME_S
    store.tick(later)
    assert isinstance(acquire(store, "early", later), Granted)


def test_a_journal_that_knew_no_ended_ids_is_taken_up(file: Path) -> None:
    killed_after(file, "acquire(store, 'a')")
    db = sqlite3.connect(file)
    for table in ENDED_TABLES:
        db.execute(f"DROP TABLE {table}")
    db.close()
    assert [lease.id for lease in opened(file).leases()] == ["a"]


def test_a_restored_session_has_its_whole_time_to_be_heard(file: Path) -> None:
    killed_after(file, "acquire(store, 'a', 100.0)")
    store = opened(file, now=100.0 + 10 * TTL)
    assert store.tick(100.0 + 10 * TTL) == []
    store.apply("n/1/1", [Sync("n/1/1", ["a"], [])], 101.0 + 10 * TTL)
    assert [lease.id for lease in store.leases()] == ["a"]
    assert [lease.id for lease in store.tick(102.0 + 11 * TTL)] == ["a"]


def test_limits_changed_live_outlast_the_process(file: Path) -> None:
    killed_after(
        file,
        "[b] = store.pools()[0].backends.values()\n"
        "store.adjust(b, Limits(1, 10_000, BackendState.DRAINING))",
    )
    [backend] = opened(file).pools()[0].backends.values()
    assert backend.limits == Limits(1, 10_000, BackendState.DRAINING)
    assert backend.configured == Limits(3, 10_000)


def test_the_files_own_limits_count_again_once_they_are_changed(file: Path) -> None:
    store = opened(file)
    [backend] = store.pools()[0].backends.values()
    store.adjust(backend, Limits(1, 10_000))
    store.close()
    store = opened(file, some=pools(streams=7))
    [backend] = store.pools()[0].backends.values()
    assert backend.limits == Limits(7, 10_000)
    store.close()
    [backend] = opened(file).pools()[0].backends.values()
    assert backend.limits == Limits(3, 10_000), "the change is forgotten for good"


def test_what_the_file_still_says_leaves_the_live_change_of_it_in_force(file: Path) -> None:
    """One setting's new value in the file opens no backend that an operator has closed."""
    store = opened(file)
    [backend] = store.pools()[0].backends.values()
    store.adjust(backend, Limits(1, 5_000, BackendState.DISABLED))
    store.close()
    for _ in range(2):
        store = opened(file, some=pools(streams=7))
        [backend] = store.pools()[0].backends.values()
        assert backend.limits == Limits(7, 5_000, BackendState.DISABLED)
        store.close()


def test_limits_put_back_are_no_change(file: Path) -> None:
    store = opened(file)
    [backend] = store.pools()[0].backends.values()
    store.adjust(backend, Limits(1, 10_000))
    store.adjust(backend, backend.configured)
    store.close()
    [backend] = opened(file, some=pools(streams=7)).pools()[0].backends.values()
    assert backend.limits == backend.configured == Limits(7, 10_000)


def test_a_lease_whose_backend_is_no_longer_configured_runs_on_there(file: Path) -> None:
    store = opened(file)
    acquire(store, "a")
    store.close()
    other = [Pool("p", {"new": Backend("new", "http://n", 1, 1_000)}, drain=DRAIN)]
    store = opened(file, some=other)
    retired = store.pools()[0].backends["gpu-0"]
    assert (retired.state, retired.streams) == (BackendState.DISABLED, 1)
    assert acquire(store, "b").lease.backend == "new"
    assert release(store, "a") is ReleaseOutcome.RELEASED and store.drift() == 0


def test_after_a_reboot_ages_begin_anew(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The monotonic clock of the journal's times is gone with the boot that it counted from."""
    store = opened(file, now=50_000.0)
    acquire(store, "a", 50_000.0)
    acquire(store, "b", 50_000.0)
    release(store, "b", 50_000.0, verdict=Verdict.TIMEOUT)
    store.close()
    other_boot = file.with_name("boot_id")
    other_boot.write_text("another\n")
    monkeypatch.setattr("control.stores.journal.BOOT_ID", other_boot)
    store = opened(file, now=7.0)
    store.tick(7.0)
    assert [(lease.id, lease.granted_at) for lease in store.leases()] == [("a", 7.0)]


def test_the_file_does_not_grow(file: Path) -> None:
    store = opened(file)
    for n in range(6_000):
        acquire(store, f"lease-{n}", 100.0 + n / 10)
        release(store, f"lease-{n}", 100.0 + n / 10)
    size = sum(part.stat().st_size for part in file.parent.iterdir())
    assert size < 4 * CHECKPOINT_PAGES * 4_096, size
    store.close()
    assert file.stat().st_size < 100_000


def spoil(file: Path, how: str) -> None:
    content = file.read_bytes()
    match how:
        case "noise":
            file.write_bytes(os.urandom(len(content)))
        case "truncated":
            file.write_bytes(content[: len(content) // 2 + 100])
        case "empty":
            file.write_bytes(b"")
        case "holes":
            file.write_bytes(content[:4_096] + bytes(len(content) - 4_096))
        case "letter":  # what SQLite's own check does not look at
            file.write_bytes(content.replace(b"n/1/1", b"n/\xff/1"))
        case "other":
            file.unlink()
            sqlite3.connect(file).execute("CREATE TABLE other (a)")
        case statement:
            db = sqlite3.connect(file)
            db.execute(statement)
            db.commit()
            db.close()


@pytest.mark.parametrize(
    "how",
    [
        "noise",
        "truncated",
        "empty",
        "holes",
        "letter",
        "other",
        "DROP TABLE leases",
        "UPDATE leases SET tokens = NULL",
        "UPDATE leases SET state = 'draining'",
        "UPDATE leases SET granted_at = 9e999",
        "INSERT INTO limits VALUES ('p', 'gpu-0', 'many', 1, 'active', 3, 10000)",
        "UPDATE meta SET value = NULL WHERE key = 'grants_reserved'",
        "UPDATE meta SET value = 9e999 WHERE key = 'grants_reserved'",
        "UPDATE meta SET value = -5 WHERE key = 'grants_reserved'",
        'UPDATE leases SET "grant" = 0',
    ],
)
def test_a_damaged_journal_grants_nothing_until_all_that_live_have_been_heard(
    file: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(file)
    acquire(store, "a")
    store.close()
    spoil(file, how)
    store = opened(file, now=100.0)
    assert "journal_damaged" in caplog.text
    assert file.with_name("journal.db.damaged").exists(), "it is kept for whoever looks into it"
    refused = acquire(store, "b", 100.0 + TTL - 0.1)
    assert isinstance(refused, Refused)
    assert refused.reason is Reason.ADMISSION_DOWN and 0 < refused.retry_after_s < 1
    assert isinstance(acquire(store, "b", 100.0 + TTL), Granted)
    store.close()
    assert [lease.id for lease in opened(file).leases()] == ["b"]


def test_a_journal_that_is_missing_where_there_was_one_counts_as_damaged(file: Path) -> None:
    store = MemoryStore.journaled(pools(), file, lambda: 1.0, 100.0, expected=True)
    assert acquire(store, "a").reason is Reason.ADMISSION_DOWN
    assert isinstance(acquire(store, "a", 100.0 + TTL), Granted)


def test_a_first_start_does_not_wait(file: Path) -> None:
    assert isinstance(acquire(opened(file, some=pools(decided_locally=True)), "a"), Granted)


def test_pools_that_were_decided_elsewhere_meanwhile_settle_first(file: Path) -> None:
    opened(file, some=pools(decided_locally=True)).close()
    store = opened(file, some=pools(decided_locally=True))
    assert acquire(store, "a").reason is Reason.ADMISSION_DOWN
    assert isinstance(acquire(store, "a", 100.0 + TTL), Granted)


def test_what_a_full_disk_refuses_is_not_told_to_return_together(file: Path) -> None:
    factors = iter((0.75, 1.25))
    store = MemoryStore.journaled(pools(), file, lambda: next(factors), 100.0)
    full_disk(file, 1)
    try:
        told = [acquire(store, name).retry_after_s for name in "ab"]
    finally:
        roomy_disk()
    assert told == [0.75, 1.25]


def full_disk(file: Path, size: int | None = None) -> None:
    """Nothing can be written beyond what is there, or beyond a file's size."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max((part.stat().st_size for part in file.parent.iterdir()), default=0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size or largest, hard))


def roomy_disk() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_what_cannot_be_kept_is_not_granted(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = opened(file)
    acquire(store, "a")
    full_disk(file)
    try:
        for n in range(10_000):
            refused = acquire(store, f"fill-{n}")
            if isinstance(refused, Refused):
                break
            release(store, f"fill-{n}")
        assert refused.reason is Reason.ADMISSION_DOWN
        told = [(change.kind, change.lease.id) for change in store.take_news()]
        lives = [[(GRANTED, f"fill-{m}"), (ENDED, f"fill-{m}")] for m in range(n)]
        assert told == sum(lives, [(GRANTED, "a")]), "what was withdrawn is not told"
        assert store.fault() and "cannot be written" in store.fault()
        assert [lease.id for lease in store.leases()] == ["a"] and store.drift() == 0
        assert store.totals().granted == store.totals().ended.total() + 1
        assert release(store, "a") is ReleaseOutcome.RELEASED, "an end is an end all the same"
        [backend] = store.pools()[0].backends.values()
        with pytest.raises(StoreError):
            store.adjust(backend, Limits(1, 1))
        assert backend.limits == backend.configured
    finally:
        roomy_disk()
    assert caplog.text.count("journal_failed") == 1, "said once, not with each request"
    assert isinstance(acquire(store, "b"), Granted)
    assert store.fault() is None and "journal_recovered" in caplog.text
    store.close()
    assert [lease.id for lease in opened(file).leases()] == ["b"], "the end of a was made up for"


def test_a_change_that_is_refused_is_not_in_force_after_a_restart_either(file: Path) -> None:
    """The write-ahead log has room, and the file that it is folded into has none."""

    def started() -> tuple[MemoryStore, Backend]:
        store = opened(file, some=pools(streams=10_000, tokens=10_000_000))
        [backend] = store.pools()[0].backends.values()
        return store, backend

    store, _ = started()
    for n in range(1_000):
        acquire(store, f"fill-{n:04}" + "x" * 100)
    store.close()  # all is in the file by now, and nothing in the log
    store, backend = started()
    full_disk(file, file.stat().st_size // 2)
    try:
        assert isinstance(acquire(store, "z"), Granted)  # its row is the file's last
        try:
            store.adjust(backend, Limits(1, 10_000_000))
        except StoreError:
            assert backend.max_streams == 10_000
        told = backend.max_streams
        store.close()
    finally:
        roomy_disk()
    assert started()[1].max_streams == told


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: spoil(file, "noise")])
def test_a_journal_that_is_lost_under_a_running_service_is_written_anew(
    file: Path, lose: Callable[[Path], None]
) -> None:
    store = opened(file)
    [backend] = store.pools()[0].backends.values()
    store.adjust(backend, Limits(2, 10_000))
    acquire(store, "a")
    lose(file)
    assert isinstance(acquire(store, "b"), Granted | Refused)
    store.close()
    store = opened(file)
    known = {lease.id for lease in store.leases()}
    settles = isinstance(acquire(store, "c"), Refused)
    assert "a" in known or settles, "known, or known to be unknown"


def test_a_journal_that_is_written_anew_repeats_no_grant_number(file: Path) -> None:
    store = opened(file)
    acquire(store, "a")
    file.unlink()
    for n in range(20):
        release(store, f"b-{n}")
        acquire(store, f"c-{n}")
        release(store, f"c-{n}")
    store.close()
    granted = acquire(opened(file), "d")
    assert granted.lease.grant > 20


def test_a_journal_that_could_not_be_written_anew_is_not_taken_for_whole(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(file)
    acquire(store, "a")
    for n in range(2_000):  # remembered ends: too many for what is left of the disk
        release(store, f"never-began-{n}" + "x" * 100)
    file.unlink()
    full_disk(file, 80_000)
    try:
        assert isinstance(acquire(store, "b"), Refused)
        assert isinstance(acquire(store, "b"), Refused)
    finally:
        roomy_disk()
    assert caplog.text.count("journal_lost") == 1
    assert isinstance(acquire(store, "c"), Granted)
    store.close()
    assert {lease.id for lease in opened(file).leases()} == {"a", "c"}


def test_a_journal_that_the_disk_had_no_room_for_in_the_middle_lies_to_nobody(
    file: Path, tmp_path: Path
) -> None:
    """Wherever writing anew ends: what runs is known to the next process, or known to be unknown,
    and what was granted to nobody is not among it."""
    refused = 0
    for size in range(4_096, 60_000, 2_048):
        store = opened(file)
        acquire(store, "a")
        file.unlink()
        full_disk(file, size)
        try:
            granted = isinstance(acquire(store, "b"), Granted)
        finally:
            roomy_disk()
        refused += not granted
        killed = tmp_path / f"{size}"
        killed.mkdir()
        for part in tmp_path.glob("journal.db*"):
            shutil.copy(part, killed)
        if (killed / file.name).exists():
            next_one = opened(killed / file.name)
            known = {lease.id for lease in next_one.leases()}
            settles = isinstance(acquire(next_one, "c"), Refused)
            assert settles or known == ({"a", "b"} if granted else {"a"}), (size, known)
            next_one.close()
        store.close()
        for part in tmp_path.glob("journal.db*"):
            part.unlink()
    assert 5 < refused < 25


def test_ends_of_what_never_began_do_not_gather_while_the_disk_is_full(file: Path) -> None:
    store = opened(file)
    full_disk(file)
    try:
        n = 0
        while not store.fault():
            release(store, f"fill-{(n := n + 1)}" + "x" * 100)
        size = tracked(store)
        for m in range(1_000):
            release(store, f"more-{m}")
        assert tracked(store) <= size
    finally:
        roomy_disk()


def tracked(store: MemoryStore) -> int:
    """What waits to be written."""
    return len(store._ledger.changed | store._ledger.foretold)


def test_a_service_that_restarts_again_and_again_does_not_gather_ended_ids(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = MAX_EACH // 2
    for start in range(6):
        store = opened(file)
        store.apply(
            "n/1/1",
            [Release(f"{start}-{n}", Verdict.COMPLETED, Witness.LUA) for n in range(ids)],
            100.0,
        )
        store.close()
    opened(file).close()
    db = sqlite3.connect(file)
    counts = [db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ENDED_TABLES]
    assert max(counts) <= MAX_EACH, counts


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not/there"):
        opened(tmp_path / "not" / "there" / "journal.db")


def test_a_cut_that_was_asked_for_is_not_a_change_to_keep(file: Path) -> None:
    store = opened(file)
    acquire(store, "a")
    [outcome] = store.apply(None, [Cut("a")], 100.0)
    assert outcome is ReleaseOutcome.CUTTING
    store.close()
    assert [lease.id for lease in opened(file).leases()] == ["a"]


def test_a_file_that_cannot_be_put_aside_is_named_and_nothing_is_granted_meanwhile(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(file)
    acquire(store, "a")
    file.unlink()
    in_the_way = file.with_name("journal.db.damaged")
    in_the_way.mkdir()
    for now in (100.0, 100.05, 100.1):
        assert acquire(store, "b", now).reason is Reason.ADMISSION_DOWN
        [backend] = store.pools()[0].backends.values()
        with pytest.raises(StoreError, match=r"journal\.db\.damaged"):
            store.adjust(backend, Limits(1, 1))
    assert store.fault() and str(in_the_way) in store.fault()
    assert [lease.id for lease in store.leases()] == ["a"] and store.drift() == 0
    assert caplog.text.count("journal_lost") == caplog.text.count("journal_failed") == 1
    in_the_way.rmdir()
    assert isinstance(acquire(store, "b"), Granted) and store.fault() is None
    store.close()
    assert {lease.id for lease in opened(file).leases()} == {"a", "b"}


def test_a_damaged_file_that_cannot_be_put_aside_is_named_at_the_start(file: Path) -> None:
    opened(file).close()
    spoil(file, "noise")
    file.with_name("journal.db.damaged").mkdir()
    with pytest.raises(StoreError, match=r"journal\.db\.damaged"):
        opened(file)
    assert file.exists()


def test_grants_that_could_not_be_kept_are_told_to_nobody_in_their_batch(file: Path) -> None:
    """Nor to who asked for them twice, or could not reach the backend."""
    two = Pool("p", {n: Backend(n, "http://e", 3, 10_000) for n in ("gpu-0", "gpu-1")})
    store = opened(file, some=[two])
    acquire(store, "held")
    a, held = (Acquire(Claim(lease_id, "p", "QA", 100, "n/1/1")) for lease_id in ("a", "held"))
    full_disk(file, 1)
    try:
        *new, known = store.apply("n/1/1", [a, a, Reroute("a"), a, held], 100.0)
    finally:
        roomy_disk()
    assert [result.reason for result in new] == [Reason.ADMISSION_DOWN] * 4
    assert isinstance(known, Granted)
    assert [lease.id for lease in store.leases()] == ["held"] and store.drift() == 0


def test_an_end_that_could_not_be_kept_is_made_up_for_though_its_id_was_asked_for_again(
    file: Path,
) -> None:
    store = opened(file)
    acquire(store, "a")
    full_disk(file, 1)
    try:
        assert [lease.id for lease in store.tick(101.0 + TTL)] == ["a"]  # lost, and drains
        store.tick(102.0 + TTL)
        assert acquire(store, "a", 102.0 + TTL).reason is Reason.ADMISSION_DOWN
    finally:
        roomy_disk()
    assert not store.leases()
    store.close()
    assert not opened(file).leases()


def test_a_number_that_a_gateway_made_up_uses_up_no_grants(file: Path) -> None:
    """nginx's Lua writes numbers of 14 digits: a lease with a longer one it could not release."""
    store = opened(file)
    for n in range(3):
        held = Held(f"held-{n}", "p", "gpu-0", "QA", 100, LAST_GRANT)
        store.apply("n/1/1", [Sync("n/1/1", [f"held-{m}" for m in range(n)], [held])], 100.0)
    for n in range(3):
        assert release(store, f"held-{n}", grant=LAST_GRANT) is ReleaseOutcome.RELEASED
    grant = acquire(store, "a").lease.grant
    assert grant <= LAST_GRANT // 2 + 10
    assert release(store, "a", grant=grant) is ReleaseOutcome.RELEASED
    store.close()
    assert grant < acquire(opened(file), "b").lease.grant < LAST_GRANT


def test_a_journal_that_was_made_to_count_too_far_grants_again(file: Path) -> None:
    """As one could be before held leases had a largest number."""
    store = opened(file)
    acquire(store, "a")
    store.close()
    too_far = 1 << 53
    spoil(file, f"UPDATE meta SET value = {too_far + 10_001} WHERE key = 'grants_reserved'")
    spoil(file, f"""UPDATE leases SET "grant" = {too_far}""")
    grants = []
    for n in range(3):
        store = opened(file)
        grants.append(acquire(store, f"b-{n}").lease.grant)
        release(store, f"b-{n}")
        assert [lease.grant for lease in store.leases()] == [too_far], "it lives on as it is"
        store.close()
    assert grants == sorted(set(grants)) and grants[-1] < LAST_GRANT
    assert release(opened(file), "a", grant=too_far) is ReleaseOutcome.RELEASED
