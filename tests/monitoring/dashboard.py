"""The shipped dashboard, and the queries that it makes."""

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.monitoring.rules import FILES

DASHBOARD: dict[str, Any] = json.loads((FILES / "weir.dashboard.json").read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
VARIABLES: list[dict[str, Any]] = DASHBOARD["templating"]["list"]


def queries() -> Iterator[tuple[str, str]]:
    """Each query as Prometheus would get it with all pools, backends and nodes chosen, and the
    title of its panel."""
    for panel in PANELS:
        for target in panel.get("targets", ()):
            yield panel["title"], chosen(target["expr"])
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def chosen(expression: str) -> str:
    expression = expression.replace("$__rate_interval", "15s")
    return re.sub(r"\$(pool|backend|node)\b", ".*", expression)
