"""Real faults before a real Prometheus with the shipped rules: each alert fires, and clears.

All faults are staged at once on four sites, and mended at once. The rules are the shipped ones but
for their patience: ``for`` is a second, and ranges are eight.
"""

import math
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest

from tests.harness.node import wait_for
from tests.harness.prometheus import Prometheus
from tests.monitoring.dashboard import queries
from tests.monitoring.rules import RULES, alerts
from tests.monitoring.sites import Repeated, Sites

pytestmark = pytest.mark.timeout(240)
LONGEST_S = 60.0
NOT_STAGED = {"WeirLeaseDrift"}
"""A count that does not add up is a defect, and no honest means brings it about: promtool alone."""
EXPECTED = sorted(alerts().keys() - NOT_STAGED)
SITES = {
    "WeirDown": "down",
    "WeirAgentSilent": "lonely",
    "WeirNodeMemoryFull": "short",
    "WeirNodeMemoryAlarm": "busy",
    "WeirNoBackend": "lonely",
    "WeirJournalFailed": "short",
    "WeirStreamsTruncated": "busy",
}
"""Where some of them must fire, and nowhere else."""


class Seen(NamedTuple):
    """What fired before, while and after the faults lasted: alerts by name and site."""

    before: list[dict[str, Any]]
    fired: dict[str, dict[str, dict[str, Any]]]
    left: list[dict[str, Any]]


def impatient(rules: str) -> str:
    """The same rules for faults that last seconds."""
    quick = re.sub(r"\[\d+[smhd]\]", "[8s]", re.sub(r"for: \d+[smhd]", "for: 1s", rules))
    # A scrape, or an agent's start, that a busy machine holds up is no outage.
    return re.sub(r"(alert: (?:WeirDown|WeirAgentSilent)\n.*\n\s*for: )1s", r"\g<1>5s", quick)


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    sites = Sites(tmp_path_factory.mktemp("sites"))
    yield sites
    sites.stop()


@pytest.fixture(scope="module")
def prometheus(sites: Sites, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    rules = folder / "rules.yml"
    rules.write_text(impatient(RULES.read_text()))
    prometheus = Prometheus(folder / "p", rules, sites.targets)
    yield prometheus
    prometheus.stop()


@pytest.fixture(scope="module")
def seen(sites: Sites, prometheus: Prometheus) -> Seen:
    wait_for(lambda: len(prometheus.query("up == 1")) == len(sites.targets), 20)
    wait_for(lambda: len(prometheus.query("weir_tailer_lines_total")) == 3, 20)
    time.sleep(2)  # two evaluations
    with suppress(AssertionError):
        wait_for(lambda: not prometheus.alerts(), 20)  # one that a slow scrape has begun
    before = prometheus.alerts()
    fired: dict[str, dict[str, Any]] = {}

    def look() -> None:
        for alert in prometheus.alerts():
            if alert["state"] == "firing":
                labels = alert["labels"]
                fired.setdefault(labels["alertname"], {})[labels["site"]] = alert

    looking = Repeated(look, 0.2)  # also while the faults are being staged
    try:
        sites.stage()
        with suppress(AssertionError):
            wait_for(lambda: fired.keys() >= set(EXPECTED), LONGEST_S, every_s=0.1)
    finally:
        looking.stop()
    sites.mend()
    deadline = time.monotonic() + LONGEST_S
    while (left := prometheus.alerts()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return Seen(before, fired, left)


def test_nothing_fires_while_all_is_well(seen: Seen) -> None:
    assert seen.before == []


@pytest.mark.parametrize("name", EXPECTED)
def test_the_alert_fires_in_its_fault_and_clears_after_it(name: str, seen: Seen) -> None:
    assert name in seen.fired
    assert [alert for alert in seen.left if alert["labels"]["alertname"] == name] == []


@pytest.mark.parametrize(("name", "site"), SITES.items())
def test_it_fires_where_the_fault_is_and_nowhere_else(name: str, site: str, seen: Seen) -> None:
    assert seen.fired[name].keys() == {site}


@pytest.mark.parametrize("name", EXPECTED)
def test_what_it_says_is_whole(name: str, seen: Seen) -> None:
    for alert in seen.fired[name].values():
        for text in alert["annotations"].values():
            assert text and not re.search(r"<no value>|<error|%!|NaN|\{\{|\[\]|  ", text), text


@pytest.mark.parametrize(("title", "query"), sorted(set(queries())))
def test_every_query_of_the_dashboard_shows_something(
    title: str, query: str, seen: Seen, prometheus: Prometheus
) -> None:
    """In the minute in which everything went wrong."""
    if title == "Restarts of the service":
        query = query.replace("[1m]", "[5m]")
    series = prometheus.query_range(query, 90)
    values = [float(value) for each in series for _, value in each["values"]]
    assert any(not math.isnan(value) for value in values)
