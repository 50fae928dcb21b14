"""A short run of ``make chaos``: faults at random, and nothing that they do not explain."""

from pathlib import Path

import pytest

from tests.chaos.run import run

SEED = 11
FAULTS_S = 11.0


@pytest.mark.load
def test_faults_at_random_leak_nothing_and_break_nothing_else(tmp_path: Path) -> None:
    report = run(SEED, FAULTS_S, tmp_path / "c", print)
    print(report.text())
    assert report.problems == []
    assert report.streams > 40 and report.faults.total() >= 6
