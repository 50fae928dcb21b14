"""What a run has come to: for people, and as JSON."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

SHOWN = 40


@dataclass
class Report:
    """Figures of one run. ``explained``: by fault, the outcomes that it is the cause of."""

    seed: int
    duration_s: float
    local: bool
    schedule: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    explained: Counter[str] = field(default_factory=Counter)
    requests: int = 0
    streams: int = 0
    """Begun on the engines."""
    peaks: dict[str, dict[str, int]] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    """Leases by verdict and witness, as the service's last process counted them."""
    longest_without_s: float = 0.0
    """Between two streams that began."""
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {key: dict(v) if isinstance(v, Counter) else v for key, v in vars(self).items()}

    def text(self) -> str:
        """For people."""
        mode = "when_down: local" if self.local else "when_down: refuse"
        lines = [
            "",
            f"seed {self.seed}, {self.duration_s:g} s, {mode}",
            f"  {self.requests} requests, {self.streams} streams on the engines,"
            f" at most {self.longest_without_s:.1f} s without a new one",
            f"  peaks: {_pairs(self.peaks)}",
            f"  leases of the last service process: {_pairs(self.ends)}",
            "  outcomes:",
            *_table(self.outcomes),
            "  faults:",
            *_table(self.faults),
        ]
        if self.missed:
            lines += ["  faults that found nothing to hit:", *_table(self.missed)]
        lines += ["  outcomes that a fault explains:", *_table(self.explained)]
        lines.append(f"  problems: {len(self.problems)}")
        lines += [f"  - {problem}" for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"  ... and {len(self.problems) - SHOWN} more")
        return "\n".join(lines)


def _table(counts: Counter[str]) -> list[str]:
    return [f"    {count:6}  {name}" for name, count in counts.most_common()]


def _pairs(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
