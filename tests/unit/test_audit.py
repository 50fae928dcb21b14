"""The audit log: whole lines or none, read backwards in pages, rotated at any time."""

import os
import resource
from pathlib import Path

import pytest

from control import audit
from control.audit import AuditError, AuditLog, Cursor, Entry, UnknownCursor


def entry(n: int, size: int = 0) -> Entry:
    return Entry(
        float(n), "ops", "10.0.0.1", "end_lease", f"lease-{n}", {"x": "y" * size}, None, "done"
    )


def numbers(
    log: AuditLog, limit: int, cursor: Cursor | None = None
) -> tuple[list[int], Cursor | None]:
    entries, following = log.newest(limit, cursor)
    return [int(each.at) for each in entries], following


def everything(log: AuditLog, limit: int) -> list[int]:
    seen, cursor = numbers(log, limit)
    while cursor is not None:
        more, cursor = numbers(log, limit, cursor)
        seen += more
    return seen


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
@pytest.mark.parametrize("block", [1, 16, 100, 64 << 10])
def test_every_line_is_shown_once_newest_first_however_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, block: int
) -> None:
    monkeypatch.setattr(audit, "BLOCK_BYTES", block)
    log = AuditLog(tmp_path / "log" / "audit.log")
    for n in range(20):
        log.write(entry(n, size=n * 13 % 90))
    assert everything(log, limit) == list(range(19, -1, -1))


def test_an_empty_or_absent_log_has_no_entries(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    assert log.newest(5) == ([], None)
    log.path.touch()
    assert log.newest(5) == ([], None)
    with pytest.raises(UnknownCursor):
        log.newest(5, Cursor(1, 2))


def test_a_page_that_is_just_full_is_the_last(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    for n in range(3):
        log.write(entry(n))
    assert numbers(log, 3) == ([2, 1, 0], None)
    assert numbers(log, 2)[1] is not None


def test_it_goes_on_in_a_new_file_when_the_old_one_is_moved_or_removed(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.write(entry(1))
    _, cursor = numbers(log, 1)
    log.path.rename(tmp_path / "audit.log.1")
    log.write(entry(2))
    log.write(entry(3))
    assert everything(log, 1) == [3, 2, 1]
    _, cursor = numbers(log, 1)
    log.path.rename(tmp_path / "audit.log.1")
    log.write(entry(4))
    assert numbers(log, 5, cursor) == ([2], None), "a cursor follows its file"
    log.path.unlink()
    log.write(entry(5))
    assert everything(log, 5) == [5, 3, 2]
    (tmp_path / "audit.log.1").unlink()
    with pytest.raises(UnknownCursor):
        log.newest(5, cursor)


def test_what_finds_no_room_leaves_no_half_line(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    log.write(entry(1))
    size = log.path.stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(AuditError, match="room"):
            log.write(entry(2))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert log.path.stat().st_size == size
    log.write(entry(3))
    assert everything(log, 5) == [3, 1]


@pytest.mark.parametrize("what", ["folder", "full", "fifo"])
def test_what_cannot_be_written_is_an_error_at_once(tmp_path: Path, what: str) -> None:
    path = tmp_path / "audit.log"
    match what:
        case "folder":
            path.mkdir()
        case "full":
            path.symlink_to("/dev/full")
        case "fifo":
            os.mkfifo(path)
    log = AuditLog(path)
    with pytest.raises(AuditError, match=r"audit\.log"):
        log.write(entry(1))
    path.rmdir() if what == "folder" else path.unlink()
    log.write(entry(2))
    assert everything(log, 5) == [2]


def test_reading_is_bounded_and_goes_on_with_the_next_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_READ_BYTES", 2_000)
    log = AuditLog(tmp_path / "audit.log")
    for n in range(40):
        log.write(entry(n, size=200))
    first, cursor = numbers(log, 40)
    assert len(first) < 10 and cursor is not None
    assert everything(log, 40) == list(range(39, -1, -1))
    with log.path.open("wb") as file:
        file.write(b"x" * (200 << 10) + b"\n")
    assert log.newest(5) == ([], None), "what is no line of ours is not taken into memory"


def test_others_may_read_it_and_the_world_may_not(tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    before = os.umask(0)
    try:
        log.write(entry(1))
    finally:
        os.umask(before)
    assert log.path.stat().st_mode & 0o777 == 0o640
    log.close()
    log.write(entry(2))
    assert everything(log, 5) == [2, 1]
