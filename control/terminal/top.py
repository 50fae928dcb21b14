"""``weir top``: pools, nodes and the oldest streams, again and again."""

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text

from control.client import AdminClient, Lease, Node, Pool, ServiceError
from control.terminal.keys import Keys
from control.terminal.leases import lease_table
from control.terminal.nodes import node_table
from control.terminal.pools import state_of
from control.terminal.screen import Rows, Screen, cell, share, state
from control.terminal.words import age, clock, streams

ROWS_ONCE = 20
"""Leases that are printed where there is no screen to fill."""
HELP = "q quit   o oldest   n newest   p next pool   d draining only   space pause"
BAR = 16


@dataclass(frozen=True, slots=True)
class View:
    """What the keys have chosen."""

    sort: str = "-age"
    pool: str | None = None
    draining: bool = False
    paused: bool = False

    def pressed(self, key: str, pools: list[str]) -> "View":
        """The view after a key; unknown ones change nothing."""
        match key:
            case "o":
                return replace(self, sort="-age")
            case "n":
                return replace(self, sort="age")
            case "d":
                return replace(self, draining=not self.draining)
            case " ":
                return replace(self, paused=not self.paused)
            case "p":
                after = [None, *pools]
                at = after.index(self.pool) if self.pool in after else 0
                return replace(self, pool=after[(at + 1) % len(after)])
            case _:
                return self


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the service said at one moment."""

    at: float
    pools: list[Pool]
    nodes: list[Node]
    leases: list[Lease]
    fault: str = ""


def top(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Until ``q``; once where there is no terminal."""
    view = View()
    if screen.as_json or options.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        seen = _take(client, view, ROWS_ONCE)
        answer = {"pools": seen.pools, "nodes": seen.nodes, "leases": seen.leases}
        screen.show(answer, *_shown(seen, view, client.address))
        return 0
    try:
        _watch(client, screen.console, options.every, view)
    except KeyboardInterrupt:
        return 0
    return 0


def _watch(client: AdminClient, console: Console, every_s: float, view: View) -> None:
    seen = _take(client, view, console.height)  # what cannot be asked at all is an error
    with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            shown = Group(*_shown(seen, view, client.address), cell(HELP, "dim"))
            live.update(_Cropped(shown), refresh=True)
            pressed = keys.wait(every_s)
            if "q" in pressed or "Q" in pressed:
                return
            for key in pressed:
                view = view.pressed(key, [pool["name"] for pool in seen.pools])
            if view.paused:
                continue
            try:
                seen = _take(client, view, console.height)
            except ServiceError as exc:
                seen = replace(seen, fault=str(exc).rsplit(": ", 1)[-1])


def _take(client: AdminClient, view: View, rows: int) -> Snapshot:
    pools, nodes = client.pools(), client.nodes()
    leases, _ = client.lease_page(
        limit=max(1, min(rows, 1_000)), sort=view.sort, pool=view.pool,
        state="draining" if view.draining else None,
    )  # fmt: skip
    return Snapshot(time.time(), pools, nodes, leases)


def _shown(seen: Snapshot, view: View, address: str) -> Iterator[RenderableType]:
    running = sum(pool["streams"] for pool in seen.pools)
    head = Text.assemble(("weir ", "bold"), f"{address}  {clock(seen.at)[:8]}  {streams(running)}")
    if seen.fault:
        head.append(f"  no answer for {age(time.time() - seen.at)}: {seen.fault}", "bold red")
    elif view.paused:
        head.append("  paused", "yellow")
    yield head
    yield Text()
    yield bars(seen.pools)
    yield Text()
    yield node_table(seen.nodes) if seen.nodes else cell("no node has been heard", "red")
    yield Text()
    order = "oldest" if view.sort == "-age" else "newest"
    chosen = f"{order} streams" + (f" of {view.pool}" if view.pool else "")
    yield cell(chosen + (", draining" if view.draining else ""), "bold")
    yield lease_table(seen.leases)


def bars(pools: list[Pool]) -> Rows:
    """A row a backend, with how full it is."""
    made = Rows(
        ("POOL/BACKEND", "STATE", "", "STREAMS", " ", "TOKENS"),
        right=("STREAMS", "TOKENS"),
        spare=("TOKENS", " ", ""),
    )
    for pool in pools:
        for backend in pool["backends"]:
            made.add(
                cell(f"{pool['name']}/{backend['name']}"),
                state(state_of(backend)),
                _bar(backend["streams"], backend["max_streams"]),
                share(backend["streams"], backend["max_streams"]),
                _bar(backend["tokens"], backend["max_tokens"]),
                share(backend["tokens"], backend["max_tokens"]),
            )
    return made


def _bar(used: int, limit: int) -> ProgressBar:
    style = share(used, limit).style
    return ProgressBar(
        total=limit, completed=min(used, limit), width=BAR, complete_style=style or "dim",
        finished_style=style or "dim",
    )  # fmt: skip


class _Cropped:
    """What fits the screen, and the last line always."""

    def __init__(self, shown: Group) -> None:
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        *body, last = self._shown.renderables
        room = max(1, console.height - 1)
        for line in console.render_lines(Group(*body), options, pad=False)[:room]:
            yield from line
            yield Segment.line()
        yield last
