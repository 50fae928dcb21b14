"""`make bench` measures what it says; what it finds is nobody's to judge here.

It runs at a low priority, and without the short streams: others' tests have bounds of time.
"""

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", ["first-byte", "frames", "aborts", "memory"])
def test_a_quick_run_measures_its_rows(name: str) -> None:
    done = subprocess.run(
        ["nice", "-n", "5", sys.executable, "-m", "tests.bench", "--quick", "--json",
         "--only", name],
        capture_output=True, text=True, timeout=220, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2_000:]
    rows = json.loads(done.stdout)["rows"]
    assert len(rows) >= 2 and all(row["weir"] for row in rows)
