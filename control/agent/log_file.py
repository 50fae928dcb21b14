"""One log file, read by whole lines from a descriptor: its name may change, or go."""

import os
from typing import NamedTuple

LINE_LIMIT = 64 << 10
"""Bytes of a line that are kept at all; a longer one is dropped alone, and counted."""
READ_BYTES = 256 << 10
"""Bytes of one read. More than a line, so that each read gets on."""
HEAD_BYTES = 128
"""How much of a file's beginning tells it from others: a time and an id, or a time and a pid."""


class Position(NamedTuple):
    """Up to where a file has been worked off: ``offset`` is always the beginning of a line.

    ``head`` is what the file begins with. Device and inode alone do not name a file: the inode
    of one that was deleted is given to the next, and a truncated one is another file under the
    same inode.
    """

    device: int
    inode: int
    offset: int
    head: bytes


class LogFile:
    """Reads on from an offset. A line ends at its newline; NULs, which a truncation under a
    writer or a power cut leaves behind, separate as well, for no line of ours holds one.

    What :meth:`read` returned counts as worked off from :meth:`commit` on. Nothing of a line is
    kept between reads: a fragment at the end is read again together with its rest.
    """

    def __init__(self, fd: int, offset: int = 0, head: bytes = b"", size: int = 0) -> None:
        """``size``: what the file is known to have had. Smaller than that, it was truncated."""
        self.fd = fd
        self.oversized = 0
        self.gaps = 0
        stat = os.fstat(fd)
        self.device, self.inode = stat.st_dev, stat.st_ino
        self._head = head
        self._size = size
        self._offset = self._next = self._scan = offset
        self._fragment = 0
        self._dropping = False
        self._pending = True
        self._seen = (-1, -1)

    @classmethod
    def from_within(cls, fd: int, offset: int) -> "LogFile":
        """Read on from the first line that begins at ``offset`` or after it."""
        head = os.pread(fd, min(HEAD_BYTES, offset), 0)
        file = cls(fd, max(0, offset - 1), head, offset)
        # From the byte before on: where that is a newline, nothing else is dropped.
        file._dropping = offset > 0
        return file

    def __repr__(self) -> str:
        return f"<LogFile {self.inode} at {self._offset}/{self._next} of {self._size}>"

    @property
    def position(self) -> Position:
        """Where to read on after a restart."""
        return Position(self.device, self.inode, self._offset, self._head)

    @property
    def pending(self) -> bool:
        """Whether the last read left bytes that it could have read."""
        return self._pending

    def read(self) -> list[bytes]:
        """The next whole lines, of at most :data:`READ_BYTES`. Blank lines are none."""
        stat = os.fstat(self.fd)
        now_seen = (stat.st_size, stat.st_mtime_ns)
        if now_seen == self._seen and not self._pending:
            return []
        self._seen = now_seen
        data = os.pread(self.fd, READ_BYTES, self._scan)
        # Looked at only now: what was read is of the file that it is taken for.
        size = os.fstat(self.fd).st_size
        if size < self._size or os.pread(self.fd, len(self._head), 0) != self._head:
            self._begin_anew()
            return []
        self._size = size
        self._pending = len(data) == READ_BYTES
        if self._scan < HEAD_BYTES:
            self._head = (self._head[: self._scan] + data)[:HEAD_BYTES]
        return self._lines(data.replace(b"\0", b"\n"))

    def commit(self) -> None:
        """All lines that were read have been worked off."""
        self._offset = self._next

    def unread(self) -> int:
        """Bytes that are not worked off. A fragment of a line is not counted: there is nothing
        to do about it before its newline is written."""
        fragment = self._scan - self._next if self._dropping else self._fragment
        return max(0, os.fstat(self.fd).st_size - self._offset - fragment)

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.fd)

    def _lines(self, data: bytes) -> list[bytes]:
        if self._dropping:
            end = data.find(b"\n") + 1
            if not end:
                self._scan += len(data)
                return []
            self._dropping = False
            self._next = self._scan + end
            data = data[end:]
        end = data.rfind(b"\n") + 1
        self._next += end
        self._scan = self._next
        self._fragment = len(data) - end
        if self._fragment > LINE_LIMIT:
            # Its beginning stays where it is until its end is found: a restart drops it again.
            self.oversized += 1
            self._dropping = True
            self._scan += self._fragment
        # Stripped first: a hole that a truncation left is read in no time.
        whole = data[:end].strip(b"\n")
        lines = [line for line in whole.split(b"\n") if line and not line.isspace()]
        kept = [line for line in lines if len(line) <= LINE_LIMIT]
        self.oversized += len(lines) - len(kept)
        return kept

    def _begin_anew(self) -> None:
        """It was truncated, and what it held beyond the offset is lost."""
        self.gaps += 1
        self._head = b""
        self._size = self._offset = self._next = self._scan = self._fragment = 0
        self._dropping = False
        self._pending = True
