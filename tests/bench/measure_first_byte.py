"""Time to first byte: from sending a request to the first ``data:`` of its stream."""

import gc
import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter

from tests.bench.bed import Bed, Side, post, short_stream
from tests.bench.connection import TIMEOUT_S, Connection, Refused
from tests.bench.report import Row, Say, percentile
from tests.bench.sizes import Sizes
from tests.harness.client import CHAT

BLOCK = 50
"""Streams in a row on one side: short enough for noise to hit both, long enough that what a
stream leaves to be done falls on the next of the same side."""
AT_ONCE = 50


def measure(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """p50 and p99, one at a time and 50 at once, in milliseconds."""
    return [*_rows(bed, sizes, say, at_once=1), *_rows(bed, sizes, say, at_once=AT_ONCE)]


def _rows(bed: Bed, sizes: Sizes, say: Say, at_once: int) -> list[Row]:
    how = "one at a time" if at_once == 1 else f"{at_once} at once"
    blocks, bursts = (sizes.alone // BLOCK, BLOCK) if at_once == 1 else (sizes.bursts, 1)
    found: dict[tuple[str, int], list[float]] = {}
    for number in range(sizes.rounds):
        say(f"first byte, {how}: round {number + 1} of {sizes.rounds}")
        times: dict[str, list[float]] = {side.name: [] for side in bed.sides}
        with ExitStack() as stack, _no_collector():
            groups = {side.name: stack.enter_context(Group(side, at_once)) for side in bed.sides}
            for _ in range(blocks):
                for side in bed.sides:
                    try:
                        times[side.name] += groups[side.name].times(bursts)
                    except Refused as exc:
                        say(f"warning: first byte, {how}, {side.name}: {exc}")
                        groups[side.name] = stack.enter_context(Group(side, at_once))
                    side.settle()
        for name, values in times.items():
            for percent in (50, 99):
                found.setdefault((name, percent), []).append(percentile(values, percent) * 1e3)
    return [
        Row(f"first byte, {how}, p{p}", "ms", found["plain", p], found["weir", p]) for p in (50, 99)
    ]


class Group(ExitStack):
    """Kept-alive connections to one side, each past its first stream, which is not like those
    that follow."""

    def __init__(self, side: Side, count: int) -> None:
        super().__init__()
        self._connections = [self.enter_context(Connection(side.port)) for _ in range(count)]
        self._request = post(CHAT, short_stream())
        self.times(1)

    def times(self, bursts: int) -> list[float]:
        """Seconds to the first byte of each stream; the streams of a burst begin together."""
        return [
            seconds
            for _ in range(bursts)
            for seconds in (
                _burst(self._connections, self._request)
                if len(self._connections) > 1
                else [_one(self._connections[0], self._request)]
            )
        ]


def _burst(connections: list[Connection], request: bytes) -> list[float]:
    """One stream on each connection, all at once: the seconds to each one's first byte."""
    waiting = {connection.socket.fileno(): connection for connection in connections}
    sent: dict[int, float] = {}
    times = []
    with select.epoll() as poll:
        for descriptor in waiting:
            poll.register(descriptor, select.EPOLLIN)
        for descriptor, connection in waiting.items():
            sent[descriptor] = perf_counter()
            connection.send(request)
        while waiting:
            ready = poll.poll(TIMEOUT_S)
            at = perf_counter()
            if not ready:
                raise Refused(f"silent for {TIMEOUT_S:g} s")
            for descriptor, _ in ready:
                connection = waiting[descriptor]
                begun = connection.answer.begun
                connection.answer.feed(connection.read())
                if connection.answer.begun and not begun:
                    times.append(at - sent[descriptor])
                if connection.answer.done:
                    poll.unregister(descriptor)
                    del waiting[descriptor]
    return times


def _one(connection: Connection, request: bytes) -> float:
    sent = perf_counter()
    connection.send(request)
    answer = connection.answer
    first = 0.0
    while not answer.done:
        data = connection.read()
        at = perf_counter()
        answer.feed(data)
        if answer.begun and not first:
            first = at
    return first - sent


@contextmanager
def _no_collector() -> Iterator[None]:
    """Without Python's own pauses in between."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
