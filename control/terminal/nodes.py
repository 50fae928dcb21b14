"""``weir nodes`` and ``weir sessions``: the machines, and nginx's workers on them."""

import argparse
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from control.client import AdminClient, Node
from control.terminal.screen import Rows, Screen, cell
from control.terminal.words import age, count, size


def show_nodes(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """All; or one, with its processes and what its agent has read."""
    if options.node:
        node = client.node(options.node)
        screen.show(node, node_table([node]), *_details(node))
    else:
        nodes = client.nodes()
        screen.show({"nodes": nodes}, node_table(nodes))
    return 0


def node_table(nodes: list[Node]) -> Rows:
    """A row a node."""
    made = Rows(
        ("NODE", "STREAMS", "WORKERS", "AGENT", "MEMORY", "OF", "STATE", "LOG BEHIND"),
        right=("STREAMS", "WORKERS", "MEMORY", "OF"),
        spare=("MEMORY", "LOG BEHIND", "OF", "WORKERS"),
    )
    for node in nodes:
        memory: dict[str, Any] = node["memory"] or {}
        tailer: dict[str, Any] = node["tailer"] or {}
        made.add(
            cell(node["name"]),
            cell(node["streams"]),
            cell(node["sessions"]),
            _agent(node),
            cell(size(memory.get("used_bytes"))),
            cell(size(memory.get("limit_bytes"))),
            cell(
                memory.get("state"),
                {"alarm": "yellow", "full": "red"}.get(memory.get("state", ""), ""),
            ),
            cell(f"{age(tailer['lag_seconds'])}, {size(tailer['lag_bytes'])}" if tailer else None),
        )
    return made


def _details(node: Node) -> Iterator[RenderableType]:
    memory: dict[str, Any] = node["memory"] or {}
    tailer: dict[str, Any] = node["tailer"] or {}
    if processes := memory.get("processes"):
        made = Rows(("PROCESS", "PID", "MEMORY"), right=("PID", "MEMORY"))
        for each in sorted(processes, key=lambda one: -one["uss_bytes"]):
            made.add(cell(each["role"]), cell(each["pid"]), cell(size(each["uss_bytes"])))
        yield cell("")
        yield made
    if memory.get("leak_suspected"):
        yield cell("memory grows while streams do not: a leak is suspected", "red")
    if tailer:
        read, gaps, broken = (count(tailer[name]) for name in ("lines", "gaps", "broken"))
        yield cell("")
        yield cell(f"the log's reader: {read} lines, {gaps} gaps, {broken} broken lines")


def _agent(node: Node) -> Text:
    if node["silent_s"] is None:
        return cell("never heard", "red")
    return cell(f"silent {age(node['silent_s'])}", "red") if node["silent"] else cell("heard")


def show_sessions(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """nginx's workers, of all nodes or one."""
    sessions = client.sessions(options.node)
    made = Rows(("SESSION", "LEASES", "HEARD", "CONFIG"), right=("LEASES", "HEARD"))
    for session in sessions:
        made.add(
            cell(session["id"]),
            cell(session["leases"]),
            cell(f"{age(session['silent_s'])} ago"),
            cell(session.get("config")),
        )
    screen.show({"sessions": sessions}, made)
    return 0
