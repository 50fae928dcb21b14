"""What ``/metrics`` says, against promtool, the contract and the documentation."""

import re
from pathlib import Path

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from tests.harness.client import Client, chat_body
from tests.harness.node import Node, wait_for
from tests.harness.prometheus import promtool
from tests.monitoring.dashboard import queries
from tests.monitoring.rules import alerts, metrics_in

QA = {"X-Medical-Scene": "QA"}
CONTRACT = {
    "weir_requests_total": {"pool", "scene", "outcome"},
    "weir_decision_seconds": set(),
    "weir_streams": {"pool", "backend"},
    "weir_streams_limit": {"pool", "backend"},
    "weir_tokens": {"pool", "backend"},
    "weir_tokens_limit": {"pool", "backend"},
    "weir_leases_granted_total": set(),
    "weir_leases_ended_total": {"verdict", "witness"},
    "weir_lease_drift": set(),
    "weir_abort_seconds": set(),
    "weir_node_memory_bytes": {"node", "process"},
    "weir_tailer_lag_seconds": {"node"},
    "weir_build_info": {"version"},
}
"""Names and labels; what waits comes with the queue."""


@pytest.fixture(scope="module")
def text(node: Node) -> str:
    """What a node says to whom asks for it, once some streams have passed."""
    with Client(node.port) as client:
        assert client.request(chat_body(3), headers=QA)[0].status == 200
    left = Client(node.port).post(chat_body(100), headers=QA)
    assert left.head().status == 200
    left.fin()
    node.settled()
    wait_for(lambda: node.metric("weir_node_memory_used_bytes"))
    return scrape(node)


def scrape(node: Node) -> str:
    return requests.get(f"{node.admin}/metrics", timeout=10).text


def families(text: str) -> dict[str, set[str]]:
    """The labels of each metric, by the name that a query would use."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = labels - {"le"}
    return found


def test_promtool_finds_no_fault_in_names_units_and_help(text: str) -> None:
    assert promtool("check", "metrics", text=text) == ""


def test_the_contracts_metrics_are_there_with_their_labels(text: str) -> None:
    found = families(text)
    assert {name: found.get(name) for name in CONTRACT} == CONTRACT


def test_each_metric_has_a_help_that_says_more_than_its_name(text: str) -> None:
    for name, about in re.findall(r"^# HELP (weir_\S+) (.*)$", text, re.MULTILINE):
        assert len(about) > 15, name


def test_the_process_itself_is_measured(node: Node, text: str) -> None:
    assert node.metric("process_resident_memory_bytes") > 10_000_000
    assert node.metric("process_open_fds") > 5
    assert node.metric("process_start_time_seconds") > 1_000_000_000


def test_the_documentation_has_every_metric_and_no_other(text: str) -> None:
    page = (Path(__file__).parents[2] / "docs/monitoring.md").read_text()
    told = dict(re.findall(r"^\| `(weir_\w+)(\{[^}]*\})?`", page, re.MULTILINE))
    documented = {name: set(labels.strip("{}").split(",")) - {""} for name, labels in told.items()}
    real = {name: labels for name, labels in families(text).items() if name.startswith("weir_")}
    assert documented.keys() == real.keys()
    assert {name: labels for name, labels in real.items() if labels} == {
        name: documented[name] for name, labels in real.items() if labels
    }


def test_rules_ask_only_for_what_is_there(text: str) -> None:
    asked = {name: metrics_in(rule["expr"]) for name, rule in alerts().items()}
    there = families(text).keys()
    assert {name: metrics - there for name, metrics in asked.items() if metrics - there} == {}
    assert set().union(*asked.values()) > {"weir_lease_drift", "weir_decision_seconds"}


def test_the_dashboard_asks_only_for_what_is_there(text: str) -> None:
    asked = {(title, name) for title, query in queries() for name in metrics_in(query)}
    there = families(text).keys()
    assert {(title, name) for title, name in asked if name not in there} == set()


def test_the_dashboard_shows_every_metric_of_weirs(text: str) -> None:
    asked = {name for _, query in queries() for name in metrics_in(query)}
    unseen = {name for name in families(text) if name.startswith("weir_")} - asked
    # Told in other ways: the total of what is shown by verdict, and what alerts are for.
    assert unseen == {
        "weir_leases_granted_total", "weir_backend_state", "weir_config_info",
        "weir_config_loaded_timestamp_seconds", "weir_config_refused",
    }  # fmt: skip
