"""The follower: every whole line once, whatever becomes of the file. Casebook 25 and 26."""

import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Self

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from control.agent.follower import ENOUGH_LINES, MAX_FILES, QUIET_S, Follower
from control.agent.log_file import HEAD_BYTES, LINE_LIMIT, READ_BYTES, Position

NULS = b"\0" * (64 << 10)
_serial = count()


def line(name: str, size: int = 0) -> bytes:
    """A line as nginx writes it: no two have the same time."""
    fields = {"ts": 1_700_000_000_000 + next(_serial), "id": f"{name:0>32}", "pad": "x" * size}
    return json.dumps(fields).encode() + b"\n"


def name_of(found: bytes) -> str:
    return str(json.loads(found)["id"]).lstrip("0")


class Log:
    """A log's folder, what nginx does to it, and a follower that is polled by hand."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "access.log"
        self.now = 0.0
        self.follower = Follower(self.path, None)
        self._writer = -1
        self._followers = [self.follower]

    # -- nginx -----------------------------------------------------------------------------

    def usr1(self) -> Self:
        """nginx opens its log by name, as at its start."""
        self._close_writer()
        self._writer = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        return self

    def write(self, *chunks: bytes) -> Self:
        if self._writer < 0:
            self.usr1()
        for chunk in chunks:
            os.write(self._writer, chunk)
        return self

    def lines(self, *names: str) -> Self:
        return self.write(*(line(name) for name in names))

    def rename(self, number: int = 1) -> Self:
        """As logrotate does: the older ones make room first."""
        for n in range(number, 0, -1):
            older = self.rotated(n)
            if older.exists():
                older.rename(self.rotated(n + 1))
        self.path.rename(self.rotated(1))
        return self

    def rotated(self, number: int) -> Path:
        return self.path.with_name(f"access.log.{number}")

    # -- the agent -------------------------------------------------------------------------

    def poll(self, commit: bool = True, after_s: float = 0.1) -> list[str]:
        return [name_of(found) for found in self.raw(commit, after_s)]

    def raw(self, commit: bool = True, after_s: float = 0.1) -> list[bytes]:
        """All that is to be had now."""
        self.now += after_s
        found = self.follower.poll(self.now)
        while self.follower.pending:
            found += self.follower.poll(self.now)
        if commit:
            self.follower.commit()
        return found

    def restart(self, positions: Sequence[Position] | None = None) -> Self:
        """Another agent, from these positions or those that this one has committed."""
        left = self.follower.positions() if positions is None else positions
        self.follower.close()
        self.follower = Follower(self.path, left)
        return self

    def first_agent(self, first_bytes: int) -> Self:
        """An agent that finds no checkpoint."""
        self.follower.close()
        self.follower = Follower(self.path, None, first_bytes)
        return self

    def close(self) -> None:
        self._close_writer()
        self.follower.close()

    def _close_writer(self) -> None:
        if self._writer >= 0:
            os.close(self._writer)
        self._writer = -1


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    """A log that does not exist yet, followed from its first byte."""
    log = Log(tmp_path)
    assert log.poll() == []
    yield log
    log.close()


def test_lines_come_in_order_and_once(log: Log) -> None:
    log.lines("a", "b")
    assert log.poll() == ["a", "b"]
    assert log.poll() == []
    log.lines("c")
    assert log.poll() == ["c"]
    assert log.follower.gaps == 0


# -- casebook 25: half a line ------------------------------------------------------------------


def test_half_a_line_waits_for_its_newline_and_costs_no_other_line(log: Log) -> None:
    first, others = line("a"), [f"n{n}" for n in range(50)]
    log.write(first[:20])
    assert log.raw() == []
    assert log.follower.unread() == 0, "nothing can be done about it yet"
    assert log.follower.positions()[0].offset == 0, "and nothing of it is passed"
    log.write(first[20:] + b"".join(map(line, others)))
    assert log.poll() == ["a", *others]


def test_a_line_that_comes_byte_by_byte_comes_whole(log: Log) -> None:
    whole = line("a")
    for n in range(len(whole) - 1):
        log.write(whole[n : n + 1])
        assert log.raw() == []
    log.write(b"\n")
    assert log.poll() == ["a"]


@pytest.mark.parametrize("size", [LINE_LIMIT, READ_BYTES, 1 << 20])
def test_an_oversized_line_is_dropped_alone_and_counted(log: Log, size: int) -> None:
    log.write(line("a") + line("huge", size) + line("b"))
    assert log.poll() == ["a", "b"]
    assert log.follower.oversized == 1


def test_the_longest_line_that_is_kept(log: Log) -> None:
    log.write(line("a", LINE_LIMIT - len(line("a")) + 1))
    assert len(log.raw()[0]) == LINE_LIMIT
    assert log.follower.oversized == 0


def test_an_oversized_line_in_pieces_is_not_passed_before_its_end(log: Log) -> None:
    huge = line("huge", 1 << 20)
    log.lines("a").write(huge[: 512 << 10])
    assert log.poll() == ["a"]
    assert log.follower.positions()[0].offset == len(line("a"))
    log.restart()
    assert log.poll() == []
    log.write(huge[512 << 10 :]).lines("b")
    assert log.poll() == ["b"]
    assert log.follower.oversized == 1
    assert log.follower.unread() == 0


def test_blank_lines_are_none(log: Log) -> None:
    log.write(b" " * 1000 + b"\n\n\r\n\t\n").lines("a")
    assert log.poll() == ["a"]
    assert log.follower.oversized == 0


def test_bytes_that_are_not_utf8_are_given_as_they_are(log: Log) -> None:
    log.write(b'{"id":"\xff\xfe"}\n').lines("a")
    assert log.raw()[0] == b'{"id":"\xff\xfe"}'


# -- where it begins ---------------------------------------------------------------------------


def test_without_a_checkpoint_it_begins_near_the_end_at_a_whole_line(log: Log) -> None:
    log.lines(*[f"n{n}" for n in range(100)])
    log.first_agent(first_bytes=10 * len(line("n99")) + 7)
    assert log.poll() == [f"n{n}" for n in range(90, 100)]


def test_without_a_checkpoint_a_line_that_begins_just_there_is_not_dropped(log: Log) -> None:
    log.lines(*[f"n{n}" for n in range(10, 100)])
    log.first_agent(first_bytes=sum(len(line(f"n{n}")) for n in range(90, 100)))
    assert len(log.poll()) == 10


def test_without_a_checkpoint_a_short_log_is_read_from_its_first_line(log: Log) -> None:
    log.lines("a", "b")
    log.first_agent(first_bytes=1 << 20)
    assert log.poll() == ["a", "b"]


def test_without_a_checkpoint_only_what_follows_the_end_is_read_where_that_is_wanted(
    log: Log,
) -> None:
    half = line("half")
    log.lines("a").write(half[:30])
    log.first_agent(first_bytes=0)
    assert log.poll() == []
    log.write(half[30:]).lines("b")
    assert log.poll() == ["b"], "the line whose beginning was passed is not given in part"


def test_without_a_checkpoint_rotated_files_are_worked_off(log: Log) -> None:
    log.lines("old").rename().usr1().lines("new")
    log.first_agent(first_bytes=1 << 20)
    assert log.poll() == ["new"]


# -- casebook 26 -------------------------------------------------------------------------------


def test_26a_lines_written_to_the_renamed_file_before_usr1_are_not_lost(log: Log) -> None:
    log.lines("a")
    assert log.poll() == ["a"]
    log.rename().lines("b1", "b2", "b3", "b4", "b5")
    log.usr1().lines("c1", "c2", "c3", "c4", "c5")
    assert log.poll() == ["b1", "b2", "b3", "b4", "b5", "c1", "c2", "c3", "c4", "c5"]
    assert log.follower.gaps == 0


def test_26a_a_straggler_writes_to_the_old_file_after_usr1(log: Log) -> None:
    log.lines("a")
    log.poll()
    straggler = os.open(log.path, os.O_WRONLY | os.O_APPEND)
    log.rename().usr1().lines("b")
    assert log.poll() == ["b"]
    os.write(straggler, line("late"))
    assert log.poll(after_s=5) == ["late"]
    os.close(straggler)


def test_26b_copytruncate_is_survived_with_a_counted_gap(log: Log) -> None:
    log.lines("a", "b")
    assert log.poll() == ["a", "b"]
    log.lines("c")
    shutil.copy(log.path, log.rotated(1))
    log.lines("lost")
    os.truncate(log.path, 0)
    log.lines("d", "e")
    assert sorted(log.poll()) == ["c", "d", "e"], "what the copy still has is not lost either"
    assert log.follower.gaps == 1
    assert log.poll() == []


def test_26b_a_file_that_was_truncated_and_has_outgrown_the_offset_is_begun_anew(log: Log) -> None:
    log.lines("a")
    assert log.poll() == ["a"]
    os.truncate(log.path, 0)
    log.lines(*"bcdefg")
    assert log.poll() == list("bcdefg")
    assert log.follower.gaps == 1


def test_26b_a_file_that_lost_its_end_is_begun_anew(log: Log) -> None:
    first = line("a", HEAD_BYTES)
    log.write(first).lines("b")
    assert log.poll() == ["a", "b"]
    os.truncate(log.path, len(first))
    assert log.poll() == ["a"], "told once more, which is harmless"
    assert log.follower.gaps == 1


def test_26b_a_truncation_while_the_agent_was_down(log: Log) -> None:
    log.lines("a", "b")
    log.poll()
    os.truncate(log.path, 0)
    log.lines(*"cdefg")
    log.restart()
    assert log.poll() == list("cdefg")
    assert log.follower.gaps == 1


def test_26b_a_copy_is_not_read_again(log: Log) -> None:
    log.lines("a", "b", "c")
    log.poll()
    shutil.copy(log.path, log.path.with_name("access.log.bak"))
    assert log.poll() == []
    assert log.follower.positions()[-1].inode == log.path.stat().st_ino
    log.restart()
    assert log.poll() == []


def test_26b_a_copy_that_is_being_made_is_not_read_again(log: Log) -> None:
    log.lines(*[f"n{n}" for n in range(100)])
    log.poll()
    content = log.path.read_bytes()
    with log.rotated(1).open("wb", buffering=0) as copy:
        for part in (b"", content[:500], content[500:]):
            copy.write(part)
            assert log.poll() == []


def test_26b_copytruncate_while_the_agent_was_down(log: Log) -> None:
    log.lines("a", "b")
    log.poll()
    log.lines("c")
    shutil.copy(log.path, log.rotated(1))
    os.truncate(log.path, 0)
    log.lines("d")
    log.restart()
    assert sorted(log.poll()) == ["c", "d"]
    assert log.follower.gaps == 1


def test_26c_an_inode_that_comes_back_longer_is_read_from_its_first_line(log: Log) -> None:
    log.lines("a")
    log.poll()
    [position] = log.follower.positions()
    log.close()
    names = [f"n{n}" for n in range(20)]
    for _ in range(50):
        log.path.unlink()
        log.usr1().lines(*names)
        if log.path.stat().st_ino == position.inode:
            break
    else:
        # This file system gives no inode twice: the checkpoint then says it did.
        position = position._replace(inode=log.path.stat().st_ino)
    assert log.path.stat().st_size > position.offset
    log.restart([position])
    assert log.poll() == names
    assert log.follower.gaps == 1


def test_26d_what_was_not_committed_is_read_again_after_a_restart(log: Log) -> None:
    log.lines("a")
    assert log.poll() == ["a"]
    log.lines("b")
    assert log.poll(commit=False) == ["b"]
    log.restart()
    assert log.poll() == ["b"]


def test_26e_nuls_before_a_good_line_are_skipped(log: Log) -> None:
    log.write(NULS).lines("a")
    assert log.poll() == ["a"]
    log.write(NULS)
    assert log.poll() == []
    log.write(NULS).lines("b")
    assert log.poll() == ["b"]
    assert (log.follower.oversized, log.follower.gaps) == (0, 0)


def test_26e_two_files_that_begin_with_nuls_are_two(log: Log) -> None:
    log.write(NULS).lines("a")
    assert log.poll() == ["a"]
    log.rename().usr1().write(NULS).lines("b")
    assert log.poll() == ["b"]


def test_26e_nuls_within_a_torn_line_cost_only_that_line(log: Log) -> None:
    log.write(line("torn")[:25] + NULS).lines("a")
    found = log.raw()
    assert len(found) == 2 and name_of(found[1]) == "a"


def test_a_hole_left_by_a_writer_that_does_not_append_is_skipped(log: Log) -> None:
    log.lines("a", "b", "c")
    log.poll()
    with log.path.open("r+b") as writer:
        writer.seek(10 << 20)
        os.truncate(log.path, 0)
        writer.write(line("d"))
    assert log.poll() == ["d"]


# -- rotated and deleted -----------------------------------------------------------------------


def test_several_rotations_while_the_agent_was_down_are_read_in_order(log: Log) -> None:
    log.lines("a1")
    assert log.poll() == ["a1"]
    log.lines("a2")
    for n in range(1, 5):
        log.rename(n).usr1().lines(f"b{n}")
    log.restart()
    assert log.poll() == ["a2", "b1", "b2", "b3", "b4"]
    assert log.follower.gaps == 0


def test_rotations_by_date_are_followed_too(log: Log) -> None:
    log.lines("a")
    for day in ("20240501", "20240502"):
        log.path.rename(log.path.with_name(f"access.log-{day}"))
        log.usr1().lines(day)
    assert log.poll() == ["a", "20240501", "20240502"]


def test_rotated_files_that_were_finished_are_not_read_again(log: Log) -> None:
    log.lines("a").rename().usr1().lines("b")
    assert log.poll() == ["a", "b"]
    assert log.restart().poll() == []
    log.rename(2).usr1()
    assert log.restart().poll() == []


def test_of_very_many_rotated_files_the_newest_are_followed(log: Log) -> None:
    for n in range(100):
        log.lines(f"n{n}")
        os.utime(log.path, (n, n))
        log.path.rename(log.rotated(100 - n))
        log.usr1()
    log.restart()
    assert log.poll() == [f"n{n}" for n in range(100 - MAX_FILES + 1, 100)]
    assert len(log.follower.positions()) == MAX_FILES
    log.restart()
    assert log.poll() == [] and log.follower.gaps == 0
    log.lines("new").rename(100).usr1()
    assert log.poll() == ["new"]


def test_a_deleted_file_is_read_on_while_nginx_writes_to_it(log: Log) -> None:
    log.lines("a")
    assert log.poll() == ["a"]
    log.path.unlink()
    log.lines("b")
    assert log.poll() == ["b"]
    assert log.poll(after_s=10 * QUIET_S) == []
    assert log.poll(after_s=10 * QUIET_S) == []
    log.lines("c")
    assert log.poll() == ["c"], "as long as there is no new one"
    log.usr1().lines("d")
    assert log.poll() == ["d"]


def test_a_deleted_file_is_let_go_when_it_is_silent(log: Log) -> None:
    log.lines("a")
    log.poll()
    straggler = os.open(log.path, os.O_WRONLY | os.O_APPEND)
    log.path.unlink()
    log.usr1().lines("b")
    assert log.poll() == ["b"]
    os.write(straggler, line("late"))
    os.close(straggler)
    assert log.poll(after_s=QUIET_S - 1) == ["late"]
    assert log.poll(after_s=QUIET_S - 1) == []
    assert len(log.follower.positions()) == 2
    log.poll(after_s=1)
    assert len(log.follower.positions()) == 1


def test_a_deleted_file_is_not_let_go_with_lines_unread(log: Log) -> None:
    """The service was away for longer than that, and nothing was read meanwhile."""
    log.lines("a")
    log.poll()
    straggler = os.open(log.path, os.O_WRONLY | os.O_APPEND)
    log.path.unlink()
    log.usr1().lines("b")
    log.poll()
    os.write(straggler, line("late"))
    os.close(straggler)
    assert log.poll(after_s=2 * QUIET_S) == ["late"]


def test_an_empty_log_that_was_renamed_is_no_gap(log: Log) -> None:
    log.usr1()
    log.poll()
    log.rename().restart().poll()
    assert log.follower.gaps == 0
    log.lines("a").usr1().lines("b")
    assert log.poll() == ["a", "b"]


def test_a_file_that_was_moved_away_is_read_to_its_end(log: Log, tmp_path: Path) -> None:
    log.lines("a")
    log.poll()
    (tmp_path / "old").mkdir()
    log.path.rename(tmp_path / "old" / "access.log.1")
    log.lines("b").usr1().lines("c")
    assert log.poll() == ["b", "c"]


def test_a_log_that_appears_later_is_read_from_its_first_line(log: Log) -> None:
    log.restart().poll()
    log.lines("a")
    assert log.poll() == ["a"]


def test_a_checkpoint_whose_file_is_gone_counts_a_gap(log: Log) -> None:
    log.lines("a")
    log.poll()
    positions = log.follower.positions()
    log.path.with_name("elsewhere").hardlink_to(log.path)  # its inode is not given to the next
    log.path.unlink()
    log.usr1().lines("b").restart(positions)
    assert log.poll() == ["b"]
    assert log.follower.gaps == 1
    assert log.poll() == [] and log.follower.gaps == 1


def test_a_checkpoint_of_a_folder_that_is_empty_counts_one_gap(log: Log) -> None:
    log.lines("a")
    log.poll()
    positions = log.follower.positions()
    log.path.unlink()
    log.restart(positions)
    assert log.poll() == [] and log.poll() == []
    assert log.follower.gaps == 1


def test_a_device_that_changed_its_number_makes_no_new_file(log: Log) -> None:
    log.lines("a")
    log.poll()
    [position] = log.follower.positions()
    log.lines("b")
    log.restart([position._replace(device=position.device + 1)])
    assert log.poll() == ["b"]
    assert log.follower.gaps == 0


@pytest.mark.parametrize("name", ["access.log.2.gz", "access.log.1.zst", "access.logs", "a.log.1"])
def test_other_files_are_none_of_its_business(log: Log, name: str) -> None:
    log.lines("a")
    log.path.with_name(name).write_bytes(line("z"))
    assert log.poll() == ["a"]


def test_what_is_no_file_does_not_hold_it_up(log: Log) -> None:
    log.rotated(1).symlink_to(log.path.with_name("nowhere"))
    os.mkfifo(log.rotated(2))
    log.path.mkdir()
    assert log.poll() == []
    log.path.rmdir()
    log.lines("a")
    assert log.poll() == ["a"]


def test_a_backlog_is_read_in_rounds_older_files_first(log: Log) -> None:
    log.lines("a")
    straggler = os.open(log.path, os.O_WRONLY | os.O_APPEND)
    log.rename().usr1().lines("b")
    assert log.poll() == ["a", "b"]
    names = [f"n{n}" for n in range(2 * ENOUGH_LINES)]
    os.write(straggler, b"".join(map(line, names)))
    os.close(straggler)
    log.lines("c")
    found = [name_of(each) for each in log.follower.poll(1)]
    assert found == names and log.follower.pending, "the other file is for the next round"
    assert log.poll() == ["c"]
    assert not log.follower.pending


def test_the_unread_bytes_are_those_that_are_not_committed(log: Log) -> None:
    log.lines("a")
    assert log.poll(commit=False) == ["a"]
    assert log.follower.unread() == len(line("a"))
    log.follower.commit()
    assert log.follower.unread() == 0
    log.lines("b")
    assert log.follower.unread() == len(line("b"))


def test_the_head_of_a_file_is_what_is_kept_of_it(log: Log) -> None:
    whole = line("a", 2 * HEAD_BYTES)
    log.write(whole[:10])
    log.poll()
    log.write(whole[10:])
    log.poll()
    [position] = log.follower.positions()
    assert position.head == whole[:HEAD_BYTES]
    assert position.offset == len(whole)


# -- all of it together ------------------------------------------------------------------------


class AnyOrder(RuleBasedStateMachine):
    """Rotations, half lines, slow polls and killed agents, in any order: every whole line is
    given, none before its newline, and none twice but after a kill."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.log = Log(Path(self.folder.name))
        self.log.poll()
        self.log.usr1()
        self.half = b""
        self.written: list[str] = []
        self.given: Counter[str] = Counter()
        self.kills = 0
        self.rotations = 0

    @rule(lines=st.integers(1, 5))
    def write(self, lines: int) -> None:
        for _ in range(lines):
            name = f"n{len(self.written)}"
            whole = line(name)
            self.log.write(self.half or whole)
            if not self.half:
                self.written.append(name)
            self.half = b""

    @rule(cut=st.integers(1, 60))
    def write_half(self, cut: int) -> None:
        if not self.half:
            name = f"n{len(self.written)}"
            whole = line(name)
            self.log.write(whole[:cut])
            self.half = whole[cut:]
            self.written.append(name)

    @rule(reopen=st.booleans())
    def rotate(self, reopen: bool) -> None:
        if self.log.path.exists():
            self.rotations += 1
            self.log.rename(self.rotations)
        if reopen:
            self.reopen()

    @rule()
    def reopen(self) -> None:
        self.log.write(self.half)
        self.half = b""
        self.log.usr1()

    @rule()
    def compress(self) -> None:
        """The oldest one, long finished, becomes an archive. Not while there is no current one: of
        the last that was one, and is gone, nobody knows whether it was written to."""
        self.poll()
        if (
            self.rotations > 2
            and self.log.path.exists()
            and self.log.rotated(self.rotations).exists()
        ):
            self.log.rotated(self.rotations).rename(self.log.path.with_name("access.log.9.gz"))
            self.rotations -= 1

    @rule(after_s=st.sampled_from([0.1, 5.0, QUIET_S]))
    def poll(self, after_s: float = 0.1) -> None:
        self.given.update(self.log.poll(after_s=after_s))

    @rule()
    def kill(self) -> None:
        """After it delivered, before it saved."""
        self.given.update(self.log.poll(commit=False))
        self.log.restart()
        self.kills += 1

    @invariant()
    def none_is_given_too_early_or_too_often(self) -> None:
        whole = self.written[:-1] if self.half else self.written
        assert set(self.given) <= set(whole)
        assert all(times <= 1 + self.kills for times in self.given.values())

    def teardown(self) -> None:
        self.log.write(self.half)
        self.poll()
        assert set(self.given) == set(self.written)
        if not self.kills:
            assert set(self.given.values()) <= {1}
        assert self.log.follower.gaps == 0
        self.log.close()
        self.folder.cleanup()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
