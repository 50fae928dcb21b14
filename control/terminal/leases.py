"""``weir leases`` and ``weir kill``: the streams that run, and ending one."""

import argparse
import time
from collections.abc import Sequence
from itertools import islice

from control.client import AdminClient, Lease, ServiceError
from control.terminal.screen import Rows, Screen, cell, state
from control.terminal.words import age, count, size

SORTS = {"oldest": "-age", "youngest": "age"}
GONE_S = 5.0
"""A stream that is cut ends within about a second, wherever its nginx lives."""
ASK_AGAIN_S = 0.1


def show_leases(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Those that match, up to ``--limit``."""
    filters = {name: getattr(options, name) for name in ("pool", "backend", "state", "scene")}
    if options.session:
        filters["session"] = options.session
    limit = None if options.all else options.limit
    found = client.leases(page=min(limit or 1_000, 1_000), sort=SORTS[options.sort], **filters)
    leases = list(islice(found, limit))
    if options.pool and not leases:
        client.pool(options.pool)  # a name that nothing has is told, not shown as an empty table
    more = limit is not None and next(found, None) is not None
    screen.show({"leases": leases}, lease_table(leases))
    if more and not screen.as_json:
        screen.note(f"{count(len(leases))} are shown and there are more: --all, or --limit N")
    return 0


def lease_table(leases: Sequence[Lease]) -> Rows:
    """A row a lease."""
    made = Rows(
        ("ID", "POOL/BACKEND", "SCENE", "TOKENS", "AGE", "STATE", "PROGRESS", "SESSION"),
        right=("TOKENS", "AGE"),
        spare=("AGE", "POOL/BACKEND", "STATE", "TOKENS", "PROGRESS", "SCENE", "SESSION"),
    )
    for lease in leases:
        made.add(
            cell(lease["id"]),
            cell(f"{lease['pool']}/{lease['backend']}"),
            cell(lease["scene"]),
            cell(count(lease["tokens"])),
            cell(age(lease["age_s"])),
            state(lease["state"]),
            cell(progress(lease)),
            cell(lease["session"]),
        )
    return made


def progress(lease: Lease) -> str:
    """``stream, 120 events, quiet 0.3s``"""
    told = lease.get("progress")
    if not told:
        return "-"
    events = told["events"]
    came = size(told["bytes"]) if events is None else f"{count(events)} events"
    return f"{told['phase']}, {came}, quiet {age(told['idle_s'])}"


def kill(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """End streams, and see them gone. Exit code 1 where one is not, or was not there."""
    done = [_kill(client, screen, lease_id, options.cut) for lease_id in options.id]
    if screen.as_json:
        screen.write_json({"leases": done})
    return 0 if all(each["gone"] for each in done) else 1


def _kill(client: AdminClient, screen: Screen, lease_id: str, cut: bool) -> dict[str, object]:
    began = time.monotonic()
    try:
        outcome = client.end_lease(lease_id, cut=cut)
    except ServiceError as exc:
        if exc.status != 404:
            raise
        screen.note(f"weir: {exc.detail}")
        return {"id": lease_id, "outcome": exc.code, "gone": False}
    gone = outcome != "cutting" or _is_gone(client, lease_id, began + GONE_S)
    took = age(time.monotonic() - began)
    if not gone:
        screen.note(
            f"weir: {lease_id} still holds its room after {took}: its nginx is not heard; "
            f"weir kill --no-cut {lease_id} gives the room back and leaves the stream"
        )
    elif not screen.as_json:
        told = {
            "cutting": f"stream ended after {took}, room given back",
            "released": "room given back; its stream, if there is one, goes on",
        }
        screen.console.print(cell(f"{lease_id}: {told.get(outcome, 'had ended already')}"))
    return {"id": lease_id, "outcome": outcome, "gone": gone}


def _is_gone(client: AdminClient, lease_id: str, deadline: float) -> bool:
    """Whether the lease is over in time; one that drains is."""
    while time.monotonic() < deadline:
        try:
            if client.lease(lease_id)["state"] == "draining":
                return True
        except ServiceError as exc:
            if exc.status == 404:
                return True
            raise
        time.sleep(ASK_AGAIN_S)
    return False
