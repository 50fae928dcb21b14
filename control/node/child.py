"""One supervised process: started, watched, restarted with back-off, stopped."""

import ctypes
import signal
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

BACKOFF_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""Waits before the first, second, ... restart in a row; the last one repeats. What ran well and
died is needed back at once."""
STEADY_S = 30.0
"""A child that ran so long has recovered: its next death is a first one again."""
PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Spec:
    """What to run. ``log`` takes what it prints. ``graceful`` is the signal that lets it finish
    what it has begun, ``fast`` the one that does not. ``ready`` tells whether it serves."""

    name: str
    command: Sequence[str]
    log: Path
    graceful: signal.Signals
    fast: signal.Signals
    ready: Callable[[], bool]
    leftovers: Sequence[Path] = ()
    """What one that was killed leaves, and what keeps the next one from starting."""


class Child:
    """A :class:`Spec` that runs, or waits for its next start. Time is a parameter."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.process: subprocess.Popen[bytes] | None = None
        self.restart_at: float | None = None
        self._deaths = 0
        self._started_at = 0.0

    def start(self, now: float) -> None:
        """Start it. It dies with us, whatever we die of."""
        self.spec.log.parent.mkdir(parents=True, exist_ok=True)
        for file in self.spec.leftovers:
            file.unlink(missing_ok=True)
        with self.spec.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.spec.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 (this process has no threads)
            )
        self.restart_at = None
        self._started_at = now

    def died(self, now: float) -> str | None:
        """How it died since the last look, and plan its restart; None while it lives."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        self.process = None
        if now - self._started_at > STEADY_S:
            self._deaths = 0
        wait = BACKOFF_S[min(self._deaths, len(BACKOFF_S) - 1)]
        self._deaths += 1
        self.restart_at = now + wait
        how = f"signal {-code}" if code < 0 else f"exit {code}"
        return f"{how}, restart in {wait:g} s; its log is {self.spec.log}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, where it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.process is not None and self.process.poll() is None

    def tree(self) -> list[psutil.Process]:
        """Its process and all below it."""
        if self.process is None:
            return []
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _die_with_parent() -> None:
    """Between fork and exec. A mask is inherited; the supervisor's must not be."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
