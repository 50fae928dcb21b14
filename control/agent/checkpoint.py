"""Where the agent has come to in its logs, kept in one small file over any kind of end."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from control.agent.log_file import HEAD_BYTES, Position

log = logging.getLogger("weir.agent")

Positions = Mapping[str, Sequence[Position]]


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A :class:`Position`; ``head`` is in hexadecimal digits."""

    device: int
    inode: int
    offset: int
    head: str

    def position(self) -> Position:
        """The same, checked; :class:`ValueError` where it is none."""
        head = bytes.fromhex(self.head)
        if self.offset < 0 or len(head) > HEAD_BYTES or len(head) < min(self.offset, HEAD_BYTES):
            raise ValueError(f"offset {self.offset} with a head of {len(head)} bytes")
        return Position(self.device, self.inode, self.offset, head)


class _Stored(msgspec.Struct):
    """The file's content: positions by the log's name."""

    logs: dict[str, list[_Entry]]


class Checkpoint:
    """The positions in ``path``. The file is replaced as a whole, so a reader finds the old or
    the new one; it is not forced to the disk, for a power cut ends all leases anyway."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._saved: Positions | None = None
        self._failed = False

    def load(self) -> dict[str, list[Position]]:
        """What was saved last; nothing where there is no checkpoint, or a damaged one."""
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=_Stored)
            return {
                name: [entry.position() for entry in entries]
                for name, entries in stored.logs.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, msgspec.DecodeError, RecursionError) as exc:
            log.warning("checkpoint_damaged file=%s error=%s", self._path, exc)
            return {}

    def save(self, positions: Positions) -> None:
        """Keep these positions, where they are others than those that were saved last."""
        if positions == self._saved:
            return
        stored = _Stored(
            {
                name: [_Entry(p.device, p.inode, p.offset, p.head.hex()) for p in each]
                for name, each in positions.items()
            }
        )
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(stored))
            new.replace(self._path)
        except OSError as exc:
            # A full disk. What is not saved is only read once more after a restart.
            if not self._failed:
                log.warning("checkpoint_unsaved file=%s error=%s", self._path, exc)
            self._failed = True
            return
        self._saved = positions
        self._failed = False
