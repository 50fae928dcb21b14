"""What ten open dashboards cost the data plane: short streams with and without them."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tests.bench import h2load
from tests.bench.bed import STUB, Bed, short_stream
from tests.bench.processes import cpu_seconds
from tests.bench.report import Row, Say
from tests.bench.sizes import Sizes
from tests.harness.node import wait_for

AT_ONCE = 64
DASHBOARDS = 10


def measure(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """Both sides are Weir here: ``plain`` is without dashboards, ``weir`` with ten of them."""
    body = short_stream()
    url = f"http://127.0.0.1:{bed.weir.port}{STUB}"
    rates: dict[bool, list[float]] = {False: [], True: []}
    costs: dict[bool, list[float]] = {False: [], True: []}
    h2load.run(url, body, AT_ONCE * 10, AT_ONCE, bed.folder)
    for number in range(sizes.stream_rounds):
        for watched in (False, True) if number % 2 else (True, False):
            say(f"dashboards: round {number + 1} of {sizes.stream_rounds}, {DASHBOARDS * watched}")
            with _dashboards(bed, DASHBOARDS * watched):
                before = cpu_seconds(bed.weir.pids())
                load = h2load.run(url, body, sizes.stub, AT_ONCE, bed.folder)
                spent = cpu_seconds(bed.weir.pids()) - before
            rates[watched].append(load.good / load.seconds)
            costs[watched].append(spent / load.good * 1e6)
    return [
        Row(f"short streams, {DASHBOARDS} dashboards open", "/s", *_both(rates), added=False),
        Row(f"CPU per short stream, {DASHBOARDS} dashboards open", "us", *_both(costs)),
    ]


def _both(values: dict[bool, list[float]]) -> tuple[list[float], list[float]]:
    return values[False], values[True]


@contextmanager
def _dashboards(bed: Bed, count: int) -> Iterator[None]:
    """So many are open, and have read what there is."""
    if not count:
        yield
        return
    admin = f"127.0.0.1:{bed.node.admin_port}"
    process = subprocess.Popen([sys.executable, "-m", "tests.bench.watchers", admin, str(count)])
    try:
        watching = psutil.Process(process.pid)
        wait_for(lambda: len(_connections(watching)) >= 2 * count, timeout_s=20)
        yield
    finally:
        process.kill()
        process.wait()


def _connections(process: psutil.Process) -> list[object]:
    return [each for each in process.net_connections("tcp") if each.status == "ESTABLISHED"]
