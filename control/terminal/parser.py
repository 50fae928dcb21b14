"""The arguments of the commands that talk to a running service.

Imports no command: what runs one is imported when it does.
"""

import argparse
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from control.config.units import seconds

TARGET = re.compile(r"([^/\s]+)/([^/\s]+)\Z")
STATES = ("active", "draining")
SORTS = ("oldest", "youngest")
PAGE = 100
DRAIN_S = 600.0
MAX_DIGITS = 18
"""What all who take a number can count to."""

Commands = Any  # what argparse's add_subparsers gives has no public name


def add_commands(commands: Commands) -> None:
    """All of them."""
    _add_lists(commands)
    _add_changes(commands)
    _add_views(commands)


def _add_lists(commands: Commands) -> None:
    pools = _add(commands, "pools", "pools:show_pools", "what is in use of each backend")
    pools.add_argument("pool", nargs="?", metavar="POOL", help="one pool instead of all")

    leases = _add(commands, "leases", "leases:show_leases", "the streams that run")
    for name, about in (
        ("pool", "of one pool"),
        ("backend", "of the backends of this name"),
        ("scene", "of one scene"),
        ("session", "of one nginx worker: NODE/PID/START"),
    ):
        leases.add_argument(f"--{name}", metavar=name.upper(), help=about)
    leases.add_argument("--state", choices=STATES, help="in one state")
    leases.add_argument(
        "--sort", choices=SORTS, default="oldest", help="which come first; default: oldest"
    )
    many = leases.add_mutually_exclusive_group()
    many.add_argument("--limit", type=count, default=PAGE, metavar="N", help="default: 100")
    many.add_argument("--all", action="store_true", help="however many there are")

    nodes = _add(commands, "nodes", "nodes:show_nodes", "machines: agent, memory, log")
    nodes.add_argument("node", nargs="?", metavar="NODE", help="one node instead of all")
    sessions = _add(commands, "sessions", "nodes:show_sessions", "nginx's workers")
    sessions.add_argument("--node", metavar="NODE", help="of one node")


def _add_changes(commands: Commands) -> None:
    kill = _add(commands, "kill", "leases:kill", "end a stream, and its lease with it")
    kill.add_argument("id", nargs="+", metavar="ID", help="as `weir leases` lists them")
    kill.add_argument(
        "--cut",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="end the stream (default); --no-cut only gives its room back, for a stream that "
        "is gone",
    )
    for name, state, about in (
        ("drain", "draining", "let a backend's streams finish, and admit none"),
        ("activate", "active", "admit streams to a backend again"),
        ("disable", "disabled", "admit none to a backend, as one that is out of order"),
    ):
        command = _add(commands, name, "limits:set_state", about)
        _add_target(command)
        command.set_defaults(state=state)
        if name == "drain":
            command.add_argument("--wait", action="store_true", help="stay until it is empty")
            command.add_argument(
                "--timeout", type=duration, default=DRAIN_S, metavar="DURATION",
                help="of --wait; default: 10m",
            )  # fmt: skip

    limit = _add(commands, "limit", "limits:set_limits", "change a backend's limits")
    _add_target(limit)
    limit.add_argument("--streams", type=count, metavar="N", help="at most so many at once")
    limit.add_argument("--tokens", type=count, metavar="N", help="at most so many reserved")
    limit.add_argument("--reset", action="store_true", help="back to the limits of weir.yml")
    limit.add_argument(
        "--dry-run", action="store_true", help="say what would be, and change nothing"
    )
    limit.set_defaults(fault_of=_limit_fault)


def _limit_fault(options: argparse.Namespace) -> str | None:
    if options.reset == bool(options.streams or options.tokens):
        return "say --streams N, --tokens N or both; or --reset alone"
    return None


def _add_views(commands: Commands) -> None:
    top = _add(commands, "top", "top:top", "a live table; q quits")
    top.add_argument("--every", type=period, default=1.0, metavar="DURATION", help="default: 1s")
    top.add_argument("--once", action="store_true", help="print it once, as for a pipe")

    events = _add(commands, "events", "events:follow_events", "what happens, as it happens")
    events.add_argument(
        "--kind", action="append", default=[], metavar="KIND",
        help="granted, ended, refused, draining, moved, limits, node or alarm; repeatable",
    )  # fmt: skip
    events.add_argument("--pool", metavar="POOL", help="of one pool")
    events.add_argument("--since-id", type=count, metavar="ID", help="after this event")

    history = _add(commands, "history", "service:show_history", "the last hour, by minute")
    history.add_argument("--minutes", type=count, default=60, metavar="N", help="default: 60")
    _add(commands, "config", "service:show_config", "the configuration in force")
    audit = _add(commands, "audit", "service:show_audit", "who changed what, newest first")
    audit.add_argument("--limit", type=count, default=50, metavar="N", help="default: 50")
    _add_doctor(commands)
    _add(commands, "whoami", "service:show_whoami", "the name and role of your token")


def _add_doctor(commands: Commands) -> None:
    about = "what is wrong, and a file for a bug report: no secrets, no prompts"
    doctor: argparse.ArgumentParser = commands.add_parser("doctor", help=about, description=about)
    add_file(doctor, "-o", "--output", metavar="FILE", help="default: weir-doctor-TIME.tar.gz here")
    doctor.add_argument(
        "--lines", type=count, default=500, metavar="N", help="of each log; default: 500"
    )
    doctor.add_argument("--json", action="store_true", help="what was found, for scripts")
    add_place(doctor)
    doctor.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    code: int = importlib.import_module("control.terminal.doctor.doctor").doctor(options)
    return code


def _add(commands: Commands, name: str, run: str, about: str) -> argparse.ArgumentParser:
    """A command that talks to a service."""
    command: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    command.set_defaults(run=_late(run))
    command.add_argument("--json", action="store_true", help="what the API said, for scripts")
    add_place(command)
    return command


def add_place(command: argparse.ArgumentParser) -> None:
    """Where the service is, and who asks."""
    place = command.add_argument_group("the service")
    place.add_argument(
        "--admin", metavar="URL",
        help="its admin plane; else -c, WEIR_ADMIN, ./weir.yml, /etc/weir/weir.yml, or "
        "http://127.0.0.1:8081",
    )  # fmt: skip
    add_file(place, "-c", "--config", metavar="FILE", help="the weir.yml that names it")
    add_file(
        place, "--token-file", metavar="FILE",
        help="has the token; else WEIR_ADMIN_TOKEN, or those of weir.yml that can be read here",
    )  # fmt: skip
    add_file(place, "--ca", metavar="FILE", help="vouches for its certificate (PEM)")
    add_file(place, "--cert", metavar="FILE", help="your own certificate (PEM)")
    add_file(place, "--key", metavar="FILE", help="and its key (PEM)")


def add_file(group: Any, *names: str, **settings: Any) -> None:
    """An argument that names a file, which shells complete."""
    group.add_argument(*names, type=Path, **settings).complete = COMPLETE_FILE


COMPLETE_FILE = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""shtab's names for it."""


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "target", type=target, metavar="POOL/BACKEND", help="as `weir pools` lists"
    )


def _late(place: str) -> Callable[[argparse.Namespace], int]:
    module, _, function = place.partition(":")

    def run(options: argparse.Namespace) -> int:
        command = importlib.import_module("control.terminal.command")
        found = importlib.import_module(f"control.terminal.{module}")
        code: int = command.run(getattr(found, function), options)
        return code

    return run


def target(text: str) -> tuple[str, str]:
    """``POOL/BACKEND``"""
    match = TARGET.match(utf8(text))
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} must be POOL/BACKEND, as `weir pools` lists")
    return match[1], match[2]


def utf8(text: str) -> str:
    """Text as UTF-8, whatever the locale has taken it for."""
    try:
        return os.fsencode(text).decode()
    except UnicodeError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} must be UTF-8") from exc


def count(text: str) -> int:
    """A whole number, at least 1."""
    if not (text.isascii() and text.isdigit() and int(text[:MAX_DIGITS]) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least 1")
    if len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} must have at most {MAX_DIGITS} digits")
    return int(text)


def duration(text: str) -> float:
    """``250ms``, ``10s``, ``5m``, in seconds."""
    try:
        return seconds(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} {exc}") from exc


def period(text: str) -> float:
    """A duration that is not nothing, in seconds."""
    found = duration(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} must be more than 0s")
    return found
