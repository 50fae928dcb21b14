"""Processor time that one frame of a long stream costs."""

import json

from tests.bench import h2load
from tests.bench.bed import BEATS, Bed
from tests.bench.processes import cpu_seconds
from tests.bench.report import Row, Say
from tests.bench.sizes import Sizes
from tests.harness.client import CHAT

STREAMS = 100
GAP_MS = 5
"""Between two frames of a stream. 100 streams ask for 20,000 frames a second; where the machine
is slower, the engine sends later, but still frame by frame."""


def measure(bed: Bed, sizes: Sizes, say: Say) -> list[Row]:
    """100 streams at once: microseconds a frame, a stream's beginning and end shared out. A route
    with heartbeats is compared with one without."""
    body = json.dumps(
        {
            "stream": True,
            "sim": {"frames": sizes.frames, "gap_ms": GAP_MS, "first_ms": GAP_MS},
            "messages": [{"role": "user", "content": "hi"}],
        }
    ).encode()
    costs: dict[str, list[float]] = {}
    for number in range(sizes.rounds):
        for name, side, path in (
            ("plain", bed.plain, CHAT),
            ("weir", bed.weir, CHAT),
            ("heartbeats", bed.weir, BEATS),
        ):
            say(f"frames: round {number + 1} of {sizes.rounds}, {name}")
            url = f"http://127.0.0.1:{side.port}{path}"
            before = cpu_seconds(side.pids())
            load = h2load.run(url, body, STREAMS, STREAMS, bed.folder)
            side.settle()
            spent = cpu_seconds(side.pids()) - before
            if load.bad:
                say(f"warning: frames, {name}: {load.bad} streams not answered 200")
            costs.setdefault(name, []).append(spent / (load.good * sizes.frames) * 1e6)
    return [
        Row("CPU per frame", "us", costs["plain"], costs["weir"]),
        Row("CPU per frame, direct | heartbeats", "us", costs["weir"], costs["heartbeats"]),
    ]
