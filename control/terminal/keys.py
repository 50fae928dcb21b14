"""Keys as they are pressed, without waiting for a line's end."""

import os
import select
import sys
import termios
import tty
from types import TracebackType
from typing import Self


class Keys:
    """The terminal on stdin, which is put back as it was at the end."""

    def __enter__(self) -> Self:
        self._file = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, _: TracebackType | None
    ) -> None:
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def wait(self, seconds: float) -> str:
        """The keys that were pressed within a time, as soon as there are some; ``q`` where the
        terminal is gone."""
        ready, _, _ = select.select([self._file], [], [], seconds)
        if not ready:
            return ""
        return os.read(self._file, 64).decode("ascii", "replace") or "q"
