"""Rows of results: values by round, their spread, the table and the JSON."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Say = Callable[[str], None]
"""Takes a line of progress."""


@dataclass(frozen=True)
class Spread:
    """Values of several rounds: their median, and the least and greatest of them."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """One figure in ``unit``, one value a round and side; ``plain`` is empty where there is
    nothing to compare with. ``added``: whether Weir's minus plain's says something."""

    name: str
    unit: str
    plain: Sequence[float]
    weir: Sequence[float]
    added: bool = True

    @property
    def ratio(self) -> Spread | None:
        """Weir's by plain's, round by round."""
        if not self.plain or 0 in self.plain:
            return None
        return Spread.of([w / p for p, w in zip(self.plain, self.weir, strict=True)])

    @property
    def difference(self) -> Spread | None:
        """Weir's less plain's, round by round."""
        if not self.plain or not self.added:
            return None
        return Spread.of([w - p for p, w in zip(self.plain, self.weir, strict=True)])


def percentile(values: Sequence[float], percent: int) -> float:
    """The least value that so many percent of the values do not pass."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


HEAD = ("measurement", "unit", "plain", "weir", "weir/plain", "(min-max)", "added", "(min-max)")


def table(rows: Sequence[Row]) -> str:
    """The rows for people: medians over the rounds, and the spread of what is compared."""
    cells = [HEAD, *(_cells(row) for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(HEAD))]
    lines = [
        "  ".join(
            cell.ljust(width) if n < 2 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def document(
    rows: Sequence[Row], machine: dict[str, Any], options: dict[str, Any], warnings: Sequence[str]
) -> dict[str, Any]:
    """The results as plain data, with each round's values."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine,
        "options": options,
        "warnings": list(warnings),
        "rows": [_row(row) for row in rows],
    }


def save(results: dict[str, Any], folder: Path) -> Path:
    """Write the results to a file named after the moment they were made."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{str(results['at']).translate({ord('-'): None, ord(':'): None})}.json"
    file.write_text(json.dumps(results, indent=1) + "\n")
    return file


def _row(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "unit": row.unit,
        "plain": list(row.plain),
        "weir": list(row.weir),
        "plain_median": statistics.median(row.plain) if row.plain else None,
        "weir_median": statistics.median(row.weir),
        "ratio": row.ratio and vars(row.ratio),
        "added": row.difference and vars(row.difference),
    }


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.unit,
        _number(statistics.median(row.plain)) if row.plain else "-",
        _number(statistics.median(row.weir)),
        *_spread(row.ratio, "{:.2f}".format),
        *_spread(row.difference, _number),
    )


def _spread(spread: Spread | None, word: Callable[[float], str]) -> tuple[str, str]:
    if spread is None:
        return "-", ""
    return word(spread.median), f"({word(spread.least)} - {word(spread.greatest)})"


def _number(value: float) -> str:
    """Three digits that count."""
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}"
