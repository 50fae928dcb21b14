"""``weir events``: what happens, a line each, as it happens."""

import argparse

from control.client import AdminClient, Event, ServiceError
from control.terminal.screen import Screen, cell
from control.terminal.words import age, clock, count, plain

FIRST = ("id", "node", "alarm", "scene", "verdict", "witness", "reason", "state")
"""Members in the order in which they are said; the rest follows."""
STYLES = {
    "refused": "yellow", "alarm": "red", "limits": "cyan", "node": "cyan", "gap": "red",
    "dropped": "red",
}  # fmt: skip


def follow_events(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Until Ctrl-C."""

    def lost(exc: ServiceError) -> None:
        screen.note(f"weir: {exc}; trying again")

    kinds = [kind for given in options.kind for kind in given.split(",") if kind]
    try:
        for event in client.events(
            kinds=kinds, pool=options.pool, since=options.since_id, on_loss=lost
        ):
            if screen.as_json:
                told = {"id": event.id, "event": event.kind, "data": event.data}
                screen.write_json(told, indent=None)
            else:
                screen.console.print(cell(line(event), STYLES.get(event.kind, "")), soft_wrap=True)
    except KeyboardInterrupt:
        return 0
    return 0


def line(event: Event) -> str:
    """``12:03:04.123 granted   qwen/gpu-0 3f2a… scene=QA tokens=1,741``"""
    data = dict(event.data)
    at = data.pop("at", None)
    when = clock(at) if isinstance(at, int | float) else " " * 12
    pool, backend = data.pop("pool", None), data.pop("backend", None)
    where = "/".join(str(part) for part in (pool, backend) if part)
    names = [name for name in FIRST if name in data] + [n for n in data if n not in FIRST]
    members = " ".join(_member(name, data[name]) for name in names if data[name] is not None)
    return plain(f"{when} {event.kind:<9} {where} {members}".rstrip().replace("  ", " ", 0))


def _member(name: str, value: object) -> str:
    if isinstance(value, dict):
        value = "/".join(str(part) for part in value.values())
    elif name.endswith("_s") and isinstance(value, int | float):
        name, value = name.removesuffix("_s"), age(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        value = count(value)
    return str(value) if name == "id" else f"{name}={value}"
