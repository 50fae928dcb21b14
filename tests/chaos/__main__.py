"""``python -m tests.chaos --seed N --duration 5m``: exit 0 where nothing was wrong."""

import argparse
import json
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import NoReturn

from control.config.units import seconds
from tests.bench.processes import end_descendants
from tests.chaos.report import Report
from tests.chaos.run import run


def main() -> int:
    """Run the seeds, one after the other. 0: no problem; 1: some; 130: interrupted."""
    options = _options()
    signal.signal(signal.SIGTERM, _terminated)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # workers are crashed on purpose
    progress = sys.stderr if options.json else sys.stdout
    began = time.monotonic()

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {line}", file=progress, flush=True)

    reports: list[Report] = []
    folder = Path(tempfile.mkdtemp(prefix="weir-chaos-"))
    try:
        for seed in options.seed:
            reports.append(run(seed, options.duration, folder / str(seed), say))
            print(reports[-1].text(), file=progress, flush=True)
            if not reports[-1].problems:
                shutil.rmtree(folder / str(seed))
    except KeyboardInterrupt:
        return 130
    finally:
        end_descendants()
        if any(report.problems for report in reports):
            say(f"logs and configuration are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        print(json.dumps([report.as_json() for report in reports], indent=1))
    return int(any(report.problems for report in reports))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Faults at random against a whole node"
    )
    parser.add_argument(
        "--seed", type=int, action="append", metavar="N", help="may be repeated; default 1"
    )
    parser.add_argument("--duration", type=_duration, default=300.0, metavar="DURATION")
    parser.add_argument("--json", action="store_true", help="the reports as JSON on stdout")
    options = parser.parse_args()
    options.seed = options.seed or [1]
    return options


def _duration(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} {exc}") from exc


def _terminated(*_: object) -> NoReturn:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main())
