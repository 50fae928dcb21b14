"""What the figures were measured on."""

import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import psutil

from control.nginx import find_nginx


def facts() -> dict[str, Any]:
    """The machine and its programs; memory in MB."""
    return {
        "cores": os.cpu_count(),
        "cpu": _field(Path("/proc/cpuinfo"), "model name", ":"),
        "memory_mb": psutil.virtual_memory().total >> 20,
        "system": _field(Path("/etc/os-release"), "PRETTY_NAME", "="),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "nginx": ".".join(str(part) for part in find_nginx("auto").version),
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        "commit": _commit(),
        "load": [round(load, 2) for load in os.getloadavg()],
    }


def _commit() -> str:
    """What is measured: the checkout's commit, with ``-dirty`` where it has been changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()


def _field(file: Path, name: str, mark: str) -> str:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith(name):
            return line.partition(mark)[2].strip().strip('"')
    return ""
