"""The shipped alert rules, and what they are made of."""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "ansible/roles/monitoring/files"
RULES = FILES / "weir.rules.yml"
TESTS = sorted(Path(__file__).parent.glob("*.test.yml"))


def alerts() -> dict[str, dict[str, Any]]:
    """The rules by their alerts' names."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def metrics_in(expression: str) -> set[str]:
    """The metrics that a query names."""
    without_labels = re.sub(r"\{[^}]*\}", "", expression)
    return {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in re.findall(r"\b(?:weir|process|python)_\w+", without_labels)
    }
