"""What processes have used: processor time and memory, read from ``/proc``."""

import os
from collections.abc import Iterable
from pathlib import Path

import psutil

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
STOP_TIMEOUT_S = 5.0


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the processes so far, in seconds; a tick (10 ms) is the unit."""
    ticks = 0
    for pid in pids:
        # The name in brackets may hold spaces: fields are counted after it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * TICK_S


def private_kb(pids: Iterable[int]) -> float:
    """Memory that the processes share with nobody (USS), in KB."""
    return sum(psutil.Process(pid).memory_full_info().uss for pid in pids) / 1024


def end_descendants() -> None:
    """End what this process has started and not stopped: the last resort after an error.

    Only its own descendants are touched. ``weir up`` takes its own children along.
    """
    children = psutil.Process().children()
    everyone = psutil.Process().children(recursive=True)
    # Weir drains at the first signal; the second ends it at once.
    for _ in range(2):
        for child in children:
            if child.is_running():
                child.terminate()
        _, children = psutil.wait_procs(children, STOP_TIMEOUT_S)
    for process in everyone:
        if process.is_running():
            process.kill()
    psutil.wait_procs(everyone, STOP_TIMEOUT_S)
