"""``weir pools``: what is in use of each backend."""

import argparse

from control.client import AdminClient, Backend, Pool
from control.terminal.screen import Rows, Screen, cell, share, state


def show_pools(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """All, or one."""
    if options.pool:
        pool = client.pool(options.pool)
        screen.show(pool, pool_table([pool]))
    else:
        pools = client.pools()
        screen.show({"pools": pools}, pool_table(pools))
    return 0


def pool_table(pools: list[Pool]) -> Rows:
    """A row a backend."""
    made = Rows(
        ("POOL/BACKEND", "STATE", "STREAMS", "TOKENS", "DRAINING", "ENGINE", "FILE SAYS"),
        right=("STREAMS", "TOKENS", "DRAINING"),
        spare=("TOKENS", "FILE SAYS", "DRAINING", "ENGINE"),
    )
    for pool in pools:
        for backend in pool["backends"]:
            made.add(
                cell(f"{pool['name']}/{backend['name']}"),
                state(state_of(backend)),
                share(backend["streams"], backend["max_streams"]),
                share(backend["tokens"], backend["max_tokens"]),
                cell(backend["draining"]),
                cell(backend["url"]),
                cell(file_says(backend), "yellow"),
            )
    return made


def state_of(backend: Backend) -> str:
    """What is wanted of it; of one that should take streams, whether it can."""
    is_lost = backend["state"] == "active" and backend.get("unreachable", False)
    return "unreachable" if is_lost else backend["state"]


def file_says(backend: Backend) -> str:
    """Where live settings differ from the file's: the file's."""
    configured = backend.get("configured")
    if not configured:
        return ""
    names = {"max_streams": "streams", "max_tokens": "tokens", "state": "state"}
    return ", ".join(
        f"{word} {configured[name]}"  # type: ignore[literal-required]
        for name, word in names.items()
        if configured[name] != backend[name]  # type: ignore[literal-required]
    )
