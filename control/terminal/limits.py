"""``weir drain``, ``activate``, ``disable`` and ``limit``: live changes of one backend."""

import argparse
import time

from control.client import KEEP, AdminClient, Backend, ServiceError
from control.terminal.command import fail
from control.terminal.pools import file_says
from control.terminal.screen import Screen, cell
from control.terminal.words import age, count, streams

LOOK_S = 0.3


def set_state(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Set what ``options.state`` says; with ``--wait`` stay until nothing is in use."""
    pool, name = options.target
    after = client.set_state(pool, name, options.state)
    label = f"{pool}/{name}"
    if not screen.as_json:
        screen.console.print(cell(f"{label}: {state_told(after)}"))
    if getattr(options, "wait", False):
        emptied = _wait_until_empty(client, screen, pool, name, options.timeout)
        after, _ = client.backend(pool, name)
        if not emptied:
            screen.show(after)
            left = streams(after["streams"])
            return fail(f"{label} still has {left} after {age(options.timeout)}: see weir leases")
    screen.show(after)
    return 0


def state_told(backend: Backend) -> str:
    """What a backend's new state means for what runs on it."""
    running = streams(backend["streams"])
    match backend["state"]:
        case "draining":
            return f"draining: {running} may finish, none is admitted; `weir activate` undoes it"
        case "disabled":
            return f"disabled: none is admitted; {running} left alone; `weir activate` undoes it"
        case _:
            return (
                f"active: admits up to {streams(backend['max_streams'])} and "
                f"{count(backend['max_tokens'])} tokens; {running} now"
            )


def _wait_until_empty(
    client: AdminClient, screen: Screen, pool: str, name: str, timeout_s: float
) -> bool:
    deadline = time.monotonic() + timeout_s
    told = None
    while True:
        try:
            backend, _ = client.backend(pool, name)
        except ServiceError as exc:
            # A restart meanwhile: the drain is kept, and goes on.
            if exc.status is not None or time.monotonic() >= deadline:
                raise
            time.sleep(LOOK_S)
            continue
        if backend["state"] == "active" and told is not None:
            raise ServiceError(
                "drain", 409, "", f"{pool}/{name} was made active by somebody else meanwhile"
            )
        left = backend["streams"]
        if left != told:
            screen.note(f"{pool}/{name}: {streams(left)} left" if left else f"{pool}/{name}: empty")
            told = left
        if not left:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(LOOK_S)


def set_limits(client: AdminClient, screen: Screen, options: argparse.Namespace) -> int:
    """Change what is given, against what was read a moment ago; ``--dry-run`` only says so."""
    pool, name = options.target
    before, etag = client.backend(pool, name)
    if options.dry_run:
        after = _expected(before, options)
    elif options.reset:
        after = client.set_limits(pool, name, max_streams=None, max_tokens=None, etag=etag)
    else:
        asked_streams, asked_tokens = options.streams or KEEP, options.tokens or KEEP
        after = client.set_limits(
            pool, name, max_streams=asked_streams, max_tokens=asked_tokens, etag=etag
        )
    lines = [f"{pool}/{name}: {line}" for line in limits_told(before, after)]
    if options.dry_run:
        lines.append("nothing was changed: --dry-run")
    screen.show(after, *map(cell, lines))
    return 0


def _expected(before: Backend, options: argparse.Namespace) -> Backend:
    """The backend as the change would leave it."""
    source = before.get("configured", before) if options.reset else before
    after = before.copy()
    after["max_streams"] = options.streams or source["max_streams"]
    after["max_tokens"] = options.tokens or source["max_tokens"]
    return after


def limits_told(before: Backend, after: Backend) -> list[str]:
    """What has changed, and what it means for what runs."""
    changed = [
        f"{name} {count(old)} -> {count(new)}"
        for name, old, new in (
            ("streams", before["max_streams"], after["max_streams"]),
            ("tokens", before["max_tokens"], after["max_tokens"]),
        )
        if old != new
    ]
    if not changed:
        lines = ["nothing to change: the limits are these already"]
    else:
        lines = [", ".join(changed)]
    over = [
        f"{count(used)} {unit} are in use of {count(limit)}"
        for unit, used, limit in (
            ("streams", after["streams"], after["max_streams"]),
            ("tokens", after["tokens"], after["max_tokens"]),
        )
        if used > limit
    ]
    if over:
        lines.append(f"{', '.join(over)}: nothing is cut, and nothing admitted until below")
    # The state is another command's.
    if says := file_says({**after, "state": after.get("configured", after)["state"]}):
        lines.append(f"kept over restarts; weir.yml says {says} (`--reset` goes back to it)")
    return lines
