"""Pid files, by which the parts of a node find each other."""

from pathlib import Path

MAX_PID = 1 << 22
"""Linux's own limit."""


def write_pid(file: Path, pid: int) -> None:
    """Write it in one step, so that whoever sees the file can read the pid in it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(f"{pid}\n")
    new.replace(file)


def read_pid(file: Path) -> int | None:
    """The pid in a pid file; None where there is none."""
    try:
        text = file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    pid = int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
    return pid if 1 <= pid <= MAX_PID else None
