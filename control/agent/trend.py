"""Whether memory grows that should not: more of it while there are not more streams."""

from collections import deque
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

WINDOW_S = 600.0
"""Long enough for streams of 3 to 45 s to come and go many times, and for a collector to run."""
PARTS = 5
LEAST_PART = 10
"""Samples in a part of the window below which nothing is said."""
LEAST_BYTES = 16 << 20
LEAST_SHARE = 0.10
"""A growth below these, over the window, is a warm-up: pools and caches that fill."""
MORE_STREAMS = 1.1
"""Streams that rise by more than this explain more memory."""


class Sample(NamedTuple):
    """A group of processes at one time (seconds, monotonic)."""

    at: float
    used_bytes: int
    streams: int


def leaks(samples: Sequence[Sample]) -> bool:
    """Whether the samples of one window look like a leak.

    The window is cut into equal parts. What a process needs at least in a part is its floor;
    peaks, which follow the load, do not count. A leak is a floor that rises from each part to
    the next, by a tenth of the whole least growth or more, while the most streams of the last
    part are not more than those of the first. One step, as after a reload, is none.
    """
    if not samples:
        return False
    begin, end = samples[0].at, samples[-1].at
    parts: list[list[Sample]] = [[] for _ in range(PARTS)]
    for sample in samples:
        share = (sample.at - begin) / (end - begin) if end > begin else 0.0
        parts[min(PARTS - 1, int(share * PARTS))].append(sample)
    if any(len(part) < LEAST_PART for part in parts):
        return False
    floors = [min(sample.used_bytes for sample in part) for part in parts]
    peaks = [max(sample.streams for sample in part) for part in parts]
    least = max(LEAST_BYTES, LEAST_SHARE * floors[0])
    rises = [after - before for before, after in pairwise(floors)]
    return (
        floors[-1] - floors[0] >= least
        and all(rise >= least / 10 for rise in rises)
        and peaks[-1] <= peaks[0] * MORE_STREAMS
    )


class Trend:
    """The samples of the last window of one group of processes."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque()

    def add(self, sample: Sample) -> bool:
        """Take one in; whether there is a leak to be suspected. Nothing is said before a whole
        window has passed."""
        self._samples.append(sample)
        while self._samples[0].at < sample.at - WINDOW_S:
            self._samples.popleft()
        whole = sample.at - self._samples[0].at >= WINDOW_S * 0.9
        return whole and leaks(list(self._samples))
