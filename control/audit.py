"""The audit log: who changed what, from where, and what it was before.

One JSON line for each change, written before the change is made and so before it is answered;
one too for each that was asked for by somebody known and not made, with the reason. A line
``done`` that is followed by one of the same target with a reason was begun, and could not be done.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

MODE = 0o640
BLOCK_BYTES = 64 << 10
MAX_READ_BYTES = 4 << 20
"""What one page costs at most, however long its lines are."""
MAX_LINE_BYTES = 16 << 10


class AuditError(Exception):
    """Nothing can be written; the message says why."""


class UnknownCursor(LookupError):
    """A cursor of a part of the log that is not there any more."""


class Cursor(NamedTuple):
    """What comes before a place in the log: the file's inode, and where."""

    inode: int
    start: int


class Entry(msgspec.Struct, frozen=True):
    """One line. ``at``: seconds since 1970. ``outcome``: ``done``, ``unchanged`` (it was so
    already), or the code of what it was refused for."""

    at: float
    who: str
    from_: str = msgspec.field(name="from")
    action: str
    target: str
    before: Any
    after: Any
    outcome: str


_entries = msgspec.json.Decoder(Entry)


class AuditLog:
    """One file, which may be rotated at any time. Written by the one process that decides."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.clock = clock
        self.failures = 0
        """Lines that could not be written; the changes were not made."""
        self._file: int | None = None

    def write(self, entry: Entry) -> None:
        """The line is in the file when this returns, else :class:`AuditError`."""
        line = msgspec.json.encode(entry) + b"\n"
        try:
            file = self._open()
            size = os.fstat(file).st_size
            if os.write(file, line) != len(line):
                os.ftruncate(file, size)
                raise OSError("no room for a whole line")
        except OSError as exc:
            self.failures += 1
            self.close()
            raise AuditError(f"{self.path}: {exc.strerror or exc}") from exc

    def newest(self, limit: int, cursor: Cursor | None = None) -> tuple[list[Entry], Cursor | None]:
        """At most ``limit`` lines, newest first, and the cursor of those before them; back into
        the file that was rotated away last. What is no line of ours is passed over."""
        entries: list[Entry] = []
        read = 0
        last: Cursor | None = None
        for inode, start, line in self._backwards(cursor):
            if len(entries) == limit or read > MAX_READ_BYTES:
                return entries, last
            read += len(line) + 1
            last = Cursor(inode, start)
            if (entry := _parse(line)) is not None:
                entries.append(entry)
        return entries, None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        """The file of that name, as it is now."""
        if self._file is not None:
            try:
                held, now = os.fstat(self._file), self.path.stat()
                if (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino):
                    return self._file
            except FileNotFoundError:
                pass
            self.close()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._file = os.open(self.path, flags, MODE)
        return self._file

    def _backwards(self, cursor: Cursor | None) -> Iterator[tuple[int, int, bytes]]:
        """Lines before the cursor, newest first: (the file's inode, where it starts, the line)."""
        inode = cursor.inode if cursor else None
        end = cursor.start if cursor else None
        for path in (self.path, self.path.with_name(self.path.name + ".1")):
            try:
                file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except FileNotFoundError:
                continue
            try:
                stat = os.fstat(file)
                if inode is not None and stat.st_ino != inode:
                    continue
                until = stat.st_size if end is None else min(end, stat.st_size)
                for start, line in _lines_backwards(file, until):
                    yield stat.st_ino, start, line
                inode = end = None  # what is older is read from its end
            finally:
                os.close(file)
        if inode is not None:
            raise UnknownCursor(f"{inode} is no file of the log")


def _lines_backwards(file: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The whole lines that end before ``end``, last first, each with where it starts."""
    tail = b""
    position = end
    while position > 0:
        size = min(BLOCK_BYTES, position)
        position -= size
        tail = os.pread(file, size, position) + tail
        first, *rest = tail.split(b"\n")
        start = position + len(tail)
        for line in reversed(rest):
            start -= len(line)
            if line:
                yield start, line
            start -= 1
        tail = first
        if len(tail) > MAX_LINE_BYTES:  # not a line of ours
            return
    if tail:
        yield 0, tail


def _parse(line: bytes) -> Entry | None:
    try:
        return _entries.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
