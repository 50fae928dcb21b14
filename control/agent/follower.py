"""Follows one log through whatever becomes of its file, and gives its whole lines once each.

It follows all uncompressed files of the log's name (``access.log``, ``access.log.1``,
``access.log-20240501``), each from where it was left: so a rotation needs no notice. A file that
is not known begins at its first byte; the one that nginx still writes to after it was renamed or
deleted goes on being read.
"""

import logging
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from control.agent.log_file import HEAD_BYTES, LogFile, Position

QUIET_S = 60.0
"""A file without a name here is let go when it has been silent for so long: after USR1, nginx's
workers write their last lines to it within milliseconds."""
ENOUGH_LINES = 500
"""A poll that has so many begins with no further file."""
MAX_FILES = 32
"""The newest ones are followed; who keeps more of them uncompressed does not keep them open."""
ALIKE_BYTES = 64
"""Two files that begin with the same so many bytes are one, copied: each line has its time."""
SEPARATORS = (".", "-", "_")
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".lzma", ".Z", ".zip")

log = logging.getLogger("weir.agent")

Identity = tuple[int, int]


class Follower:
    """The lines of the log at ``path``, in order within a file, older files first.

    ``positions`` are those of an earlier follower. With None there was none: it begins with the
    lines of the last ``first_bytes`` of the log, and takes its rotated files for worked off.
    """

    def __init__(
        self, path: Path, positions: Sequence[Position] | None, first_bytes: int = 0
    ) -> None:
        self.path = path
        self.gaps = 0
        """How often lines may have been lost: a file was truncated, or gone before its end."""
        self._known = list(positions or ())
        self._fresh = positions is None
        self._first_bytes = first_bytes
        self._files: dict[Identity, LogFile] = {}
        self._nameless_since: dict[Identity, float] = {}
        self._refused: set[Identity] = set()
        self._current: Identity | None = None
        self._oversized = 0
        self._cut = False
        self._begun = False

    def poll(self, now: float) -> list[bytes]:
        """The next lines. They count as worked off from :meth:`commit` on."""
        self._discover(now)
        lines: list[bytes] = []
        self._cut = False
        for identity, file in self._files.items():
            if len(lines) >= ENOUGH_LINES:
                self._cut = True
                break
            try:
                found = file.read()
            except OSError as exc:
                self._tell_refusal(identity, exc)
                continue
            if found and identity in self._nameless_since:
                self._nameless_since[identity] = now
            lines += found
            self._collect(file)
        return lines

    def commit(self) -> None:
        """All lines that were given have been worked off."""
        for file in self._files.values():
            file.commit()

    def positions(self) -> list[Position]:
        """Where each file has been worked off to; that of the log's name is the last."""
        ordered = sorted(self._files, key=lambda identity: identity == self._current)
        return [self._files[identity].position for identity in ordered]

    def close(self) -> None:
        """Let go of all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    # -- what it tells of itself -----------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether the last poll left lines that it could have given."""
        return self._cut or any(file.pending for file in self._files.values())

    @property
    def oversized(self) -> int:
        """Lines that were dropped for their length."""
        return self._oversized

    @property
    def current(self) -> Position | None:
        """The position in the file that has the log's name."""
        file = self._files.get(self._current) if self._current else None
        return file.position if file else None

    def unread(self) -> int:
        """Bytes of all files that are not worked off."""
        return sum(file.unread() for file in self._files.values())

    # -- which files there are -------------------------------------------------------------

    def _discover(self, now: float) -> None:
        """Open what is new, let go of what is finished."""
        last = self._known[-1] if self._known and not self._begun else None
        named = dict(self._listing())
        self._current = next((i for i, name in named.items() if name == self.path.name), None)
        for identity, name in named.items():
            if identity not in self._files:
                self._admit(self.path.parent / name, identity)
        self._begun, self._fresh = True, False
        if last:
            self._account_for(last)
        self._let_go(named, now)

    def _listing(self) -> Iterator[tuple[Identity, str]]:
        """The log's files, that which was last written to last, and the current one after it."""
        found = []
        for entry in _entries(self.path.parent):
            if self._is_ours(entry.name):
                try:
                    about = entry.stat()
                except OSError:
                    continue  # renamed or deleted just now
                if stat.S_ISREG(about.st_mode):
                    is_current = entry.name == self.path.name
                    identity = (about.st_dev, about.st_ino)
                    found.append((is_current, about.st_mtime_ns, identity, entry.name))
        for _, _, identity, name in sorted(found)[-MAX_FILES:]:
            yield identity, name

    def _is_ours(self, name: str) -> bool:
        base = self.path.name
        if name == base:
            return True
        return (
            name.startswith(base)
            and name[len(base)] in SEPARATORS
            and not name.endswith(COMPRESSED)
        )

    def _admit(self, path: Path, identity: Identity) -> None:
        """Open a file that is not followed yet, where its lines have to be read on."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as exc:
            self._tell_refusal(identity, exc)
            return
        try:
            about = os.fstat(fd)
            # What it is opened as may not be what was listed: a rename came between.
            identity = (about.st_dev, about.st_ino)
            is_current = path.name == self.path.name
            # Of an empty file that is new it cannot be told yet whether it becomes a copy.
            is_known = any((p.device, p.inode) == identity for p in self._known)
            if identity not in self._files and (about.st_size or is_current or is_known):
                self._files[identity] = self._open(fd, about, is_current)
                return
        except OSError as exc:
            self._tell_refusal(identity, exc)
        os.close(fd)

    def _open(self, fd: int, about: os.stat_result, is_current: bool) -> LogFile:
        if self._fresh:
            begin = about.st_size - self._first_bytes if is_current else about.st_size
            return LogFile.from_within(fd, max(0, begin))
        head = os.pread(fd, HEAD_BYTES, 0)
        identity = (about.st_dev, about.st_ino)
        for position in self._known:
            if (position.device, position.inode) == identity and head.startswith(position.head):
                self._known.remove(position)
                return LogFile(fd, position.offset, position.head, position.offset)
        for position in [*self._known, *self.positions()]:
            if _is_alike(head, position.head):
                if position in self._known:
                    self._known.remove(position)
                return LogFile(fd, position.offset, position.head)
        return LogFile(fd)

    def _account_for(self, last: Position) -> None:
        """Tell whether the file that was written to is no more what it was: then what was
        written before it changed may be lost."""
        file = self._files.get((last.device, last.inode))
        if last in self._known or (file and file.position.head != last.head):
            self._count_gap("changed" if file else "gone", last.inode)

    def _let_go(self, named: dict[Identity, str], now: float) -> None:
        for identity, file in list(self._files.items()):
            if identity in named:
                self._nameless_since.pop(identity, None)
                continue
            since = self._nameless_since.setdefault(identity, now)
            # Without a current file nginx has not opened a new one: it writes to this one.
            if self._current and now - since >= QUIET_S and not file.unread():
                file.close()
                del self._files[identity], self._nameless_since[identity]

    # -- what went wrong -------------------------------------------------------------------

    def _collect(self, file: LogFile) -> None:
        self._oversized += file.oversized
        file.oversized = 0
        if file.gaps:
            file.gaps = 0
            self._count_gap("truncated", file.inode)

    def _count_gap(self, why: str, inode: int) -> None:
        self.gaps += 1
        log.warning("log_gap file=%s inode=%d why=%s", self.path.name, inode, why)

    def _tell_refusal(self, identity: Identity, exc: OSError) -> None:
        if identity not in self._refused:
            self._refused.add(identity)
            log.warning("log_unreadable file=%s error=%s", self.path.name, exc)


def _entries(folder: Path) -> Sequence["os.DirEntry[str]"]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []


def _is_alike(head: bytes, other: bytes) -> bool:
    """Whether two files begin with the same lines, as far as both can be seen."""
    common = min(len(head), len(other))
    return common >= ALIKE_BYTES and head[:common] == other[:common] and 0 not in head[:common]
