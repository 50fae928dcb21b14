"""How much of everything: enough to tell the sides apart, bounded in time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Counts of one run; per round and side where nothing else is said."""

    rounds: int = 7
    stream_rounds: int = 9
    """For short streams, whose rate is the noisiest figure."""
    alone: int = 1_000
    """Streams one at a time."""
    bursts: int = 40
    """Bursts of 50 streams."""
    short: int = 10_000
    """Short streams from the simulator."""
    stub: int = 30_000
    """Short streams from the stub."""
    frames: int = 200
    """Frames of each of 100 streams."""
    aborts: int = 200
    lease_aborts: int = 100
    """Aborts whose lease is looked at."""
    memory_rounds: int = 3
    open: tuple[int, ...] = (1_000, 10_000)
    """Open streams at which memory is read."""


FULL = Sizes()
QUICK = Sizes(
    rounds=3, stream_rounds=3, alone=100, bursts=3, short=500, stub=2_000, frames=40,
    aborts=20, lease_aborts=10, memory_rounds=1, open=(200, 1_000),
)  # fmt: skip
