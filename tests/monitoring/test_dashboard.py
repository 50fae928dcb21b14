"""The dashboard is what Grafana takes, and its queries are what Prometheus takes."""

import itertools
import json
import re
from pathlib import Path

import yaml

from tests.harness.prometheus import promtool
from tests.monitoring.dashboard import DASHBOARD, PANELS, VARIABLES, queries


def test_every_query_is_sound_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"check:{n}", "expr": expression} for n, (_, expression) in enumerate(queries())
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", file)


def test_its_data_come_from_the_prometheus_that_is_chosen_and_from_nowhere_else() -> None:
    sources = [panel["datasource"] for panel in PANELS if "datasource" in panel]
    sources += [target["datasource"] for panel in PANELS for target in panel.get("targets", ())]
    sources += [each["datasource"] for each in VARIABLES if each["type"] == "query"]
    assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
    assert VARIABLES[0]["type"] == "datasource" and VARIABLES[0]["name"] == "datasource"
    assert not re.search(r"https?://", json.dumps(DASHBOARD))


def test_every_variable_that_is_used_is_there() -> None:
    expressions = [target["expr"] for panel in PANELS for target in panel.get("targets", ())]
    used = set(re.findall(r"\$\{?(\w+)", " ".join(expressions))) - {"__rate_interval"}
    assert used == {each["name"] for each in VARIABLES} - {"datasource"}


def test_panels_stand_beside_each_other_and_not_on_each_other() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for one, other in itertools.combinations([panel["gridPos"] for panel in PANELS], 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in PANELS)


def test_it_is_of_a_schema_that_grafana_10_and_later_read() -> None:
    assert DASHBOARD["schemaVersion"] == 39
    assert DASHBOARD["uid"] == "weir" and "id" not in DASHBOARD
    kinds = {panel["type"] for panel in PANELS}
    assert kinds == {"row", "stat", "timeseries", "heatmap", "state-timeline", "alertlist"}
