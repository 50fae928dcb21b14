"""Where a command's answer goes: tables for people, JSON for scripts; notes to stderr."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from control.terminal.words import count, plain

PIPED_WIDTH = 1_000
"""Columns where no terminal sets a bound: nothing is cut for a pipe."""
GAP = 2
"""Between two columns."""
FULL = 0.9
BUSY = 0.7


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """As for any other writer: ``weir`` itself knows what to do."""
        raise BrokenPipeError


class Screen:
    """Standard output. With ``as_json`` an answer is what the API said, else a table."""

    def __init__(self, as_json: bool = False) -> None:
        self.as_json = as_json
        is_bound = sys.stdout.isatty() or "COLUMNS" in os.environ
        self.console = _Console(
            highlight=False, markup=False, emoji=False, soft_wrap=False,
            width=None if is_bound else PIPED_WIDTH,
        )  # fmt: skip

    def show(self, answer: Any, *shown: RenderableType) -> None:
        """The API's answer, or what is made of it for people."""
        if self.as_json:
            self.write_json(answer)
            return
        for each in shown:
            self.console.print(each)

    def write_json(self, answer: Any, indent: int | None = 2) -> None:
        """JSON that any terminal's encoding can carry."""
        is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
        print(json.dumps(answer, ensure_ascii=not is_unicode, indent=indent), flush=True)

    def note(self, text: str) -> None:
        """What is no part of the answer: progress, hints."""
        print(plain(text), file=sys.stderr, flush=True)


@dataclass(slots=True)
class Rows:
    """An open table; the columns of ``right`` hold numbers. Where it is too wide, columns of
    ``spare`` are left out, the last first."""

    columns: Sequence[str]
    right: Sequence[str] = ()
    spare: Sequence[str] = ()
    rows: list[tuple[RenderableType, ...]] = field(default_factory=list)

    def add(self, *cells: RenderableType) -> None:
        """One more row."""
        self.rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(self.columns)
        for name in reversed(self.spare):
            if self._width(console, kept) <= options.max_width:
                break
            kept.remove(name)
        made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        for name in kept:
            made.add_column(
                name, justify="right" if name in self.right else "left", overflow="fold"
            )
        for row in self.rows:
            made.add_row(*(each for name, each in self._named(row) if name in kept))
        yield made

    def _named(self, row: tuple[RenderableType, ...]) -> Iterator[tuple[str, RenderableType]]:
        return zip(self.columns, row, strict=True)

    def _width(self, console: Console, kept: Sequence[str]) -> int:
        wide = console.options.update(max_width=PIPED_WIDTH)
        widths = {name: len(name) for name in kept}
        for row in self.rows:
            for name, each in self._named(row):
                if name in widths:
                    needed = console.measure(each, options=wide).maximum
                    widths[name] = max(widths[name], needed)
        return sum(widths.values()) + GAP * (len(kept) - 1)


def cell(value: object, style: str = "") -> Text:
    """One cell; nothing in it is markup or steers the terminal."""
    return Text("-" if value is None else plain(value), style)


def share(used: int, limit: int) -> Text:
    """``18/25``, coloured by how full it is."""
    part = used / limit if limit else 1.0
    style = "red" if part >= FULL else "yellow" if part >= BUSY else "green" if used else ""
    return Text(f"{count(used)}/{count(limit)}", style)


def state(name: str) -> Text:
    """A backend's or lease's state."""
    styles = {"active": "", "draining": "yellow", "disabled": "red", "unreachable": "red"}
    return Text(plain(name), styles.get(name, "yellow"))
