"""Short streams per second, and the processor time that one costs."""

from tests.bench import h2load
from tests.bench.bed import STUB, Bed, short_stream
from tests.bench.processes import cpu_seconds
from tests.bench.report import Row, Say
from tests.bench.sizes import Sizes
from tests.harness.client import CHAT

AT_ONCE = 64


def measure(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """64 at once, from the simulator and from the stub: streams per second, us of CPU each."""
    rows: list[Row] = []
    for engine, path, count in (("simulator", CHAT, sizes.short), ("stub", STUB, sizes.stub)):
        rows += _rows(bed, sizes, say, engine, path, count)
    return rows


def _rows(bed: Bed, sizes: Sizes, say: Say, engine: str, path: str, count: int) -> list[Row]:
    body = short_stream()
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}
    for side in bed.sides:
        h2load.run(_url(side.port, path), body, AT_ONCE * 10, AT_ONCE, bed.folder)
    for number in range(sizes.stream_rounds):
        for side in bed.sides:
            say(f"streams, {engine}: round {number + 1} of {sizes.stream_rounds}, {side.name}")
            before = cpu_seconds(side.pids())
            load = h2load.run(_url(side.port, path), body, count, AT_ONCE, bed.folder)
            side.settle()  # what a stream leaves to be done is a part of its cost
            spent = cpu_seconds(side.pids()) - before
            if load.bad:
                say(f"warning: streams, {engine}, {side.name}: {load.bad} not answered 200")
            rates.setdefault(side.name, []).append(load.good / load.seconds)
            costs.setdefault(side.name, []).append(spent / load.good * 1e6)
    return [
        Row(f"short streams, {engine}", "/s", rates["plain"], rates["weir"], added=False),
        Row(f"CPU per short stream, {engine}", "us", costs["plain"], costs["weir"]),
    ]


def _url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"
