"""Keeps a node's children running, and leaves none behind."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import psutil

from control.node.child import Child, Spec

PR_SET_CHILD_SUBREAPER = 36
WATCHED = (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
READY_TIMEOUT_S = 30.0
KILL_AFTER_S = 3.0
"""How long a fast stop may take before SIGKILL."""


class StartError(OSError):
    """A child that did not come up."""


class Supervisor:
    """Starts in the order given, each when the one before is ready; stops in reverse order,
    each when the one before has finished, so that the last streams can still be accounted for.
    """

    def __init__(self, specs: Sequence[Spec], say: Callable[[str], None]) -> None:
        self._children = [Child(spec) for spec in specs]
        self._say = say
        self._stops = 0

    def run(self, when_ready: Callable[[], None]) -> int:
        """Supervise until told to stop. Returns the exit code."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        try:
            for child in self._children:
                self._start(child)
                if self._stops:
                    break
            else:
                when_ready()
            while not self._stops:
                self._wait(self._until_restart(time.monotonic()))
                self._revive(time.monotonic())
            self._drain()
        except StartError as exc:
            self._say(str(exc))
            return 1
        finally:
            self._end_all()
        return 0

    # -- up --------------------------------------------------------------------------------

    def _start(self, child: Child) -> None:
        child.start(time.monotonic())
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._stops and not child.spec.ready():
            if not child.running or time.monotonic() > deadline:
                tail = child.spec.log.read_text(errors="replace").strip().splitlines()[-5:]
                told = "\n  ".join(tail)
                raise StartError(f"{child.spec.name} did not start ({child.spec.log}):\n  {told}")
            self._wait(0.02)

    def _until_restart(self, now: float) -> float:
        """Seconds to the next restart, 0.5 at most."""
        planned = [child.restart_at for child in self._children if child.restart_at is not None]
        return max(0.0, min([now + 0.5, *planned]) - now)

    def _revive(self, now: float) -> None:
        for child in self._children:
            if how := child.died(now):
                self._say(f"{child.spec.name} died ({how})")
                self._end_orphans()
            if child.restart_at is not None and now >= child.restart_at:
                child.start(now)
                self._say(f"{child.spec.name} restarted")

    # -- down ------------------------------------------------------------------------------

    def _drain(self) -> None:
        """Let each finish, the last one first. A second signal ends the patience."""
        for child in reversed(self._children):
            child.signal(child.spec.graceful)
            while child.running and self._stops < 2:
                self._wait(0.5)

    def _end_all(self) -> None:
        for child in reversed(self._children):
            child.signal(child.spec.fast)
        deadline = time.monotonic() + KILL_AFTER_S
        while time.monotonic() < deadline and any(child.running for child in self._children):
            self._wait(0.05)
        for process in psutil.Process().children(recursive=True):
            _kill(process)
        while _reap():
            pass

    def _end_orphans(self) -> None:
        """Workers whose master was killed come to us: they would serve beside the new ones."""
        known = {process.pid for child in self._children for process in child.tree()}
        for process in psutil.Process().children(recursive=True):
            if process.pid not in known:
                _kill(process)
        known_children = {c.process.pid for c in self._children if c.process is not None}
        for process in psutil.Process().children():
            if process.pid not in known_children:
                try:
                    os.waitpid(process.pid, os.WNOHANG)
                except ChildProcessError:
                    continue

    def _wait(self, timeout_s: float) -> None:
        got = signal.sigtimedwait(WATCHED, timeout_s)
        if got is not None and got.si_signo != signal.SIGCHLD:
            self._stops += 1
            if self._stops == 1:
                self._say("draining: running streams may finish; once more to stop at once")


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        return


def _reap() -> bool:
    """Collect one dead child; False where there is none left."""
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        return False
    return True


def say(message: str) -> None:
    """For people, on stderr."""
    print(f"weir: {message}", file=sys.stderr, flush=True)
