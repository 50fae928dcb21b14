"""The ends of a node's logs: files of its state folder, or the journal that its units write to."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from control.config import Config
from control.pid_file import read_pid
from control.terminal.doctor.redact import Redactor

LOG_BYTES = 1 << 20
"""Of the end of each log."""
JOURNAL_TIMEOUT_S = 10.0

Keep = Callable[[str], str | None]
"""A line as it may be told, None where it may not."""


class Log(NamedTuple):
    """A log's last lines. ``missing``: why there are none."""

    name: str
    text: str
    missing: str | None = None


def node_logs(config: Config, redactor: Redactor, lines: int) -> Iterator[Log]:
    """Those of the node's parts, as far as they are on this machine."""
    folder = config.state / "log"
    for name, keep in (("access.log", redactor.access_line), ("error.log", redactor.error_line)):
        if _is_there(folder / name):
            yield Log(name, _tail(folder / name, lines, keep))
    for part in ("agent",) if config.is_apart else ("admission", "agent"):
        name = f"{part}.log"
        if _is_there(folder / name):
            yield Log(name, _tail(folder / name, lines, redactor.own_line))
            continue
        unit = _unit_of(config, part)
        text, error = _journal(unit, lines, redactor.own_line)
        missing = None
        if not text:
            said = f": {redactor.text(error)}" if error else ""
            missing = f"there is no {folder / name}, and no line of {unit} in the journal{said}"
        yield Log(name, text or f"[{missing}]", missing)


def _is_there(file: Path) -> bool:
    """Whether there is such a file; one that this user may not look for is."""
    try:
        return file.exists()
    except OSError:
        return True


def _unit_of(config: Config, part: str) -> str:
    """The unit that a part runs in; where it does not run, the playbook's: it names units as it
    names the state folder."""
    pid = read_pid(config.state / "run" / f"{part}.pid")
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text() if pid else ""
    except OSError:
        groups = ""
    found = re.search(rf"/([^/\n]*{part}[^/\n]*\.service)$", groups, re.MULTILINE)
    return found[1] if found else f"{config.state.name}-{part}.service"


def _journal(unit: str, lines: int, keep: Keep) -> tuple[str, str]:
    """A unit's last lines in the journal, and what kept them from being read."""
    command = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"--lines={lines}"]
    try:
        told = subprocess.run(
            [*command, f"_SYSTEMD_UNIT={unit}"],
            capture_output=True,
            timeout=JOURNAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        return "", getattr(exc, "strerror", None) or f"no answer in {JOURNAL_TIMEOUT_S:g} s"
    error = " ".join(told.stderr.decode("utf-8", "replace").split())
    return _kept(told.stdout[-LOG_BYTES:], lines, keep), error


def _tail(file: Path, lines: int, keep: Keep) -> str:
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LOG_BYTES))
            return _kept(opened.read(LOG_BYTES), lines, keep)
    except OSError as exc:
        return f"[cannot be read: {exc.strerror}]\n"


def _kept(log: bytes, lines: int, keep: Keep) -> str:
    """The last lines that may be told; how many were left out stands where they were."""
    kept: list[str] = []
    left_out = 0
    for line in [*log.decode("utf-8", "replace").splitlines()[-lines:], None]:
        told = keep(line) if line is not None else ""
        if told is None:
            left_out += 1
            continue
        if left_out:
            kept.append(f"[{left_out} lines of another shape left out]")
            left_out = 0
        kept.append(told)
    return "\n".join(kept)
