"""Memory that an open stream takes, at 1,000 and at 10,000 of them."""

import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.bench.bed import Bed, Side, make_bed
from tests.bench.processes import private_kb
from tests.bench.report import Row, Say
from tests.bench.sizes import Sizes
from tests.harness.client import Client, chat_body
from tests.harness.node import wait_for

WARM_UP = 20
STOP_TIMEOUT_S = 20
ROOT = Path(__file__).parents[2]


def measure(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """KB a stream, by growth of private memory: nginx's workers, and the admission service.

    Each round has sides and engines of its own: memory once taken is not given back to the
    system, so only a fresh process shows what the next stream takes.
    """
    counts = [count for count in sizes.open if _possible(count, say)]
    nginx: dict[tuple[str, int], list[float]] = {}
    service: dict[int, list[float]] = {}
    for number in range(sizes.memory_rounds):
        with ExitStack() as stack:
            folder = bed.folder / f"memory-{number}"
            fresh = stack.enter_context(make_bed(folder, bed.access_log))
            for side in fresh.sides:
                say(f"memory: round {number + 1} of {sizes.memory_rounds}, {side.name}")
                for count, workers, decider in _grow(fresh, side, counts, say):
                    nginx.setdefault((side.name, count), []).append(workers)
                    if side is fresh.weir:
                        service.setdefault(count, []).append(decider)
    rows = []
    for count in counts:
        at = f"memory per stream, {count:,} open"
        rows += [
            Row(f"{at}: nginx", "KB", nginx["plain", count], nginx["weir", count]),
            Row(f"{at}: admission service", "KB", [], service[count]),
        ]
    return rows


def _possible(count: int, say: Say) -> bool:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    # Two descriptors a stream in nginx, and one worker may get more than its half.
    if hard == resource.RLIM_INFINITY or hard >= 2 * count:
        return True
    say(f"warning: memory: {count:,} open streams need RLIMIT_NOFILE {2 * count:,}, not {hard:,}")
    return False


def _grow(bed: Bed, side: Side, counts: list[int], say: Say) -> list[tuple[int, float, float]]:
    """At each count of open streams: KB a stream of nginx's workers and of the service."""
    for _ in range(WARM_UP):
        with Client(side.port) as client:
            client.request(chat_body(1, gap_ms=0))
    side.settle()
    service = [bed.node.pid("admission"), *bed.node.workers("admission")]
    workers_before, service_before = private_kb(side.workers()), private_kb(service)
    found = []
    with _holder(side.port) as open_streams:
        for count in counts:
            opened = open_streams(count)
            if opened < count:
                say(f"warning: memory, {side.name}: {opened} of {count} streams open")
            workers = private_kb(side.workers()) - workers_before
            decider = private_kb(service) - service_before
            found.append((count, workers / opened, decider / opened))
    wait_for(lambda: bed.engine.stats()["active"] == 0, STOP_TIMEOUT_S)
    side.settle()
    return found


@contextmanager
def _holder(port: int) -> Iterator[Callable[[int], int]]:
    """A function that has so many streams open and returns how many really are."""
    command = [sys.executable, "-m", "tests.bench.hold", str(port)]
    holder = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    stdin, stdout = holder.stdin, holder.stdout
    assert stdin is not None and stdout is not None

    def open_streams(count: int) -> int:
        print(count, file=stdin, flush=True)
        opened = int(stdout.readline() or 0)
        if not opened:
            raise RuntimeError("memory: no stream could be opened")
        return opened

    try:
        yield open_streams
        stdin.close()
        holder.wait(STOP_TIMEOUT_S)
    finally:
        holder.kill()
        holder.wait()
        stdout.close()
