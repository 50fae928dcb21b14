"""``python -m tests.bench``: measures, prints a table, keeps the figures in ``bench-results/``."""

import argparse
import json
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from tests.bench import (
    measure_aborts,
    measure_dashboards,
    measure_first_byte,
    measure_frames,
    measure_memory,
    measure_streams,
    report,
)
from tests.bench.bed import Bed, make_bed
from tests.bench.machine import facts
from tests.bench.processes import end_descendants
from tests.bench.report import Row, Say
from tests.bench.sizes import FULL, QUICK, Sizes

RESULTS = Path(__file__).parents[2] / "bench-results"

MEASUREMENTS: dict[str, Callable[[Bed, Sizes, Say], list[Row]]] = {
    "first-byte": measure_first_byte.measure,
    "streams": measure_streams.measure,
    "frames": measure_frames.measure,
    "aborts": measure_aborts.measure,
    "memory": measure_memory.measure,
    "dashboards": measure_dashboards.measure,
}


def main() -> int:
    """Run what was asked for. 0: measured; 1: not all of it; 130: interrupted."""
    options = _options()
    signal.signal(signal.SIGTERM, _terminated)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # for engines and both sides
    names = [name for name in MEASUREMENTS if not options.only or name in options.only]
    progress = sys.stderr if options.json else sys.stdout
    warnings: list[str] = []
    began = time.monotonic()

    def say(line: str) -> None:
        if line.startswith("warning: "):
            warnings.append(line.removeprefix("warning: "))
        print(f"[{time.monotonic() - began:5.1f} s] {line}", file=progress, flush=True)

    machine = facts()
    rows: list[Row] = []
    failed = False
    try:
        for row in _measure(names, QUICK if options.quick else FULL, options.access_log, say):
            rows.append(row)
    except KeyboardInterrupt:
        return 130
    except Exception as exc:  # noqa: BLE001 (what was measured before it is worth telling)
        failed = True
        traceback.print_exc()
        say(f"warning: not all was measured: {exc!r}")
    finally:
        end_descendants()
    took = round(time.monotonic() - began, 1)
    asked = {"measurements": names, "quick": options.quick, "access_log": options.access_log}
    results = report.document(rows, machine, {**asked, "seconds": took}, warnings)
    file = report.save(results, RESULTS)
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        print(f"\n{report.table(rows)}\n")
    for warning in warnings:
        print(f"warning: {warning}", file=progress)
    print(f"{took:.0f} s in all; each round's figures are in {file}", file=progress)
    return int(failed)


def _measure(names: list[str], sizes: Sizes, access_log: bool, say: Say) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as folder:
        say("starting a simulator, a stub engine, plain nginx and Weir")
        with make_bed(Path(folder) / "bed", access_log) as bed:
            for name in names:
                yield from MEASUREMENTS[name](bed, sizes, say)
            say("stopping")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Weir and plain nginx, side by side"
    )
    parser.add_argument(
        "--only", action="append", choices=MEASUREMENTS, help="one measurement (may be repeated)"
    )
    parser.add_argument("--quick", action="store_true", help="small counts, to try it out")
    parser.add_argument("--json", action="store_true", help="the figures as JSON on stdout")
    parser.add_argument(
        "--no-access-log",
        dest="access_log",
        action="store_false",
        help="without Weir's access log, which plain nginx never writes here",
    )
    return parser.parse_args()


def _terminated(*_: object) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
