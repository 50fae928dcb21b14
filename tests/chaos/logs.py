"""What becomes of an access log: rotated, deleted, copied and truncated, as logrotate does."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

KEPT = 3


class AccessLog:
    """nginx's access log at ``path``; ``reopen`` has nginx open it anew. ``gone`` are the times
    (monotonic) at which a file was deleted: its reader may keep it open for a while."""

    def __init__(self, path: Path, reopen: Callable[[], None]) -> None:
        self._path = path
        self._reopen = reopen
        self.gone: list[float] = []

    def rotate(self, pause_s: float) -> None:
        """Rename it, and after a pause have a new one opened."""
        self._shift()
        self._path.replace(self._older(1))
        time.sleep(pause_s)
        self._reopen()

    def delete(self, pause_s: float) -> None:
        """Delete it, and after a pause have a new one opened."""
        self._path.unlink()
        self.gone.append(time.monotonic())
        time.sleep(pause_s)
        self._reopen()

    def truncate(self) -> None:
        """copytruncate."""
        self._shift()
        shutil.copyfile(self._path, self._older(1))
        with self._path.open("r+") as log:
            log.truncate(0)

    def files(self) -> int:
        """How many there are now."""
        return len(list(self._path.parent.glob(f"{self._path.name}*")))

    def _shift(self) -> None:
        for n in range(KEPT, 0, -1):
            file = self._older(n)
            if not file.exists():
                continue
            if n == KEPT:
                file.unlink()
                self.gone.append(time.monotonic())
            else:
                file.replace(self._older(n + 1))

    def _older(self, n: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{n}")
