"""Runs one command against one service: errors become a line and an exit code."""

import argparse
import sys
from collections.abc import Callable

from control.client import AdminClient, ServiceError
from control.terminal.explain import ODD, explain, explain_odd
from control.terminal.place import PlaceError, find_place
from control.terminal.screen import Screen
from control.terminal.words import plain

Command = Callable[[AdminClient, Screen, argparse.Namespace], int]


def run(command: Command, options: argparse.Namespace) -> int:
    """Do it; its exit code."""
    try:
        place = find_place(options)
    except PlaceError as exc:
        return fail(str(exc))
    try:
        with place.client() as client:
            return command(client, Screen(options.json), options)
    except ServiceError as exc:
        return fail(explain(exc, place))
    except ODD as exc:
        return fail(explain_odd(exc, place.address))


def fail(why: str) -> int:
    """Say why on stderr, in one line."""
    print(f"weir: {plain(why)}", file=sys.stderr)
    return 1
