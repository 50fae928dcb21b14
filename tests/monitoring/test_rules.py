"""The alert rules by promtool, and each one's way to its paragraph in the runbook."""

import re
import shlex
from typing import Any

import pytest

from control import cli
from tests.harness.prometheus import promtool
from tests.monitoring.rules import ROOT, RULES, TESTS, alerts

ALERTS = alerts()


def headings(page: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_promtool_finds_no_fault_in_the_rules() -> None:
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)


def test_each_alert_fires_in_its_fault_and_clears_after_it_by_promtool() -> None:
    promtool("test", "rules", *TESTS)


@pytest.mark.parametrize("name", ALERTS)
def test_each_alert_has_a_test_of_promtools(name: str) -> None:
    assert any(f'alertname="{name}",alertstate="firing"' in file.read_text() for file in TESTS)


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_an_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on(
    rule: dict[str, Any],
) -> None:
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    told = rule["annotations"]
    assert told.keys() == {"summary", "description", "runbook"}
    assert len(told["summary"]) <= 90 and not told["summary"].endswith(".")
    assert len(told["description"]) > 80 and told["description"].endswith(".")
    page, anchor = told["runbook"].split("#")
    assert anchor in headings(page)
    assert anchor == rule["alert"].lower()


def test_every_paragraph_of_an_alert_shows_and_mends() -> None:
    page = (ROOT / "docs/runbook.md").read_text()
    for name in ALERTS:
        paragraph = page.split(f"### {name}\n")[1].split("\n### ")[0]
        assert "**See:**" in paragraph and "**Mend:**" in paragraph, name


def test_every_command_of_the_runbook_is_one() -> None:
    """With its own name, options and order: somebody will copy it at three in the morning."""
    page = (ROOT / "docs/runbook.md").read_text()
    commands = {command for command in re.findall(r"`weir ([^`&]+)", page) if " " in command}
    assert len(commands) > 8
    for command in commands:
        words = [re.sub("^N$", "10", word) for word in shlex.split(command)]
        options = cli._parser().parse_args(words)
        assert callable(options.run), command
