"""``weir config``, ``history``, ``audit`` and ``whoami``: what the service says of itself."""

import argparse
import json
from collections import Counter
from itertools import islice
from typing import Any

import yaml
from rich.syntax import Syntax

from control.client import AdminClient
from control.terminal.screen import Rows, Screen, cell
from control.terminal.words import clock, count, moment


def show_config(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """The configuration in force, and where live settings differ from it."""
    told = client.config()
    text = yaml.safe_dump(told["effective"], sort_keys=False, allow_unicode=True)
    lines = [
        f"version {told['version']} of {told['file']}, loaded {moment(told['loaded_at'])}",
        f"the service started {moment(told['started_at'])}",
    ]
    if told.get("reload_error"):
        why, *faults = told["reload_error"].splitlines()
        lines += [f"what the file says now is refused: {why}", *faults]
    lines += [f"changed live: {live}" for live in map(_live, told.get("live") or [])]
    screen.show(told, *map(cell, lines), Syntax(text, "yaml", background_color="default"))
    return 0


def _live(entry: dict[str, Any]) -> str:
    values = ", ".join(
        f"{name} {value['live']} (file: {value['file']})"
        for name, value in entry.items()
        if isinstance(value, dict)
    )
    return f"{entry['pool']}/{entry['backend']} {values}"


def show_history(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """A row a minute, the current one last."""
    told = client.history(options.minutes)
    screen.show(told, history_table(told["points"]))
    return 0


def history_table(points: list[dict[str, Any]]) -> Rows:
    """A row a minute; pools with the highest share of streams that they had in it."""
    made = Rows(("MINUTE", "GRANTED", "REFUSED", "ENDED", "STREAMS AT MOST"), right=("GRANTED",))
    for point in points:
        made.add(
            cell(clock(point["at"])[:5]),
            cell(count(point["granted"])),
            cell(_counts(point["refused"]), "yellow"),
            cell(_counts(point["ended"])),
            cell(
                ", ".join(
                    f"{name} {use['streams_max']}/{use['streams_limit']}"
                    for name, use in point["pools"].items()
                )
            ),
        )
    return made


def _counts(numbers: dict[str, int]) -> str:
    found = Counter(numbers).most_common()
    return ", ".join(f"{name} {count(number)}" for name, number in found if number)


def show_audit(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Who changed what."""
    entries = list(islice(client.audit(page=min(options.limit, 100)), options.limit))
    made = Rows(
        ("AT", "WHO", "FROM", "ACTION", "TARGET", "CHANGE", "OUTCOME"),
    )
    for entry in entries:
        made.add(
            cell(moment(entry["at"])),
            cell(entry["who"]),
            cell(entry["from"]),
            cell(entry["action"]),
            cell(entry["target"]),
            cell(_change(entry.get("before"), entry.get("after"))),
            cell(entry["outcome"]),
        )
    screen.show({"entries": entries}, made)
    return 0


def _change(before: Any, after: Any) -> str:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return json.dumps(after, ensure_ascii=False) if after is not None else ""
    return ", ".join(
        f"{name} {before[name]} -> {value}" if name in before else f"{name} {value}"
        for name, value in after.items()
        if before.get(name) != value
    )


def show_whoami(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Name and role."""
    told = client.whoami()
    text = f"{told['name']}: {told['role']}"
    if told["open"]:
        text = f"nobody in particular: the service asks for no tokens; role {told['role']}"
    screen.show(told, cell(text))
    return 0
