"""Load from h2load: many streams at once over HTTP/1.1, and how fast they went."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 60


class LoadError(Exception):
    """h2load is missing, or did not do what it was asked for; the message says what to do."""


@dataclass(frozen=True)
class Load:
    """What came of one run: streams answered with 200, those that were not, and seconds."""

    good: int
    bad: int
    seconds: float


def run(url: str, body: bytes, count: int, at_once: int, folder: Path) -> Load:
    """Ask for ``count`` streams, ``at_once`` at any time, each connection kept."""
    if not shutil.which("h2load"):
        raise LoadError("h2load is not installed: apt-get install nghttp2-client")
    file = folder / "h2load-body.json"  # h2load maps its -d: a real file
    file.write_bytes(body)
    done = subprocess.run(
        ["h2load", "--h1", "-t1", f"-c{at_once}", f"-n{count}", f"-d{file}",
         "-Hcontent-type: application/json", url],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    return parse(done.stdout + done.stderr, count)


def parse(text: str, count: int) -> Load:
    """What h2load printed."""
    finished = re.search(r"finished in ([\d.]+)(us|ms|s|m)\b", text)
    codes = re.search(r"status codes: (\d+) 2xx", text)
    requests = re.search(r"(\d+) succeeded, (\d+) failed", text)
    if not finished or not codes or not requests or int(codes[1]) == 0:
        raise LoadError(f"h2load got no answer:\n{text}")
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}[finished[2]]
    good = min(int(codes[1]), int(requests[1]))
    return Load(good, count - good, float(finished[1]) * unit)
