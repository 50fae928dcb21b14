"""The machine and the files of a node, as they are; nothing is changed."""

import os
import platform
import re
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import psutil

import control
from control.config import Config
from control.nginx import NginxError, find_nginx
from control.pid_file import read_pid

MAX_LISTED = 500
MAX_JOURNAL_BYTES = 1 << 30
SYSCTLS = (
    "fs.file-max", "fs.nr_open", "net.core.netdev_max_backlog", "net.core.rmem_max",
    "net.core.somaxconn", "net.core.wmem_max", "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem", "vm.overcommit_memory", "vm.swappiness",
)  # fmt: skip
PIDS = ("admission", "agent", "nginx")


def versions(config: Config | None) -> dict[str, Any]:
    """What runs here."""
    about: dict[str, Any] = {
        "weir": control.__version__,
        "python": sys.version,
        "executable": sys.executable,
        "kernel": " ".join(platform.uname()[::2]),
        "os": _os_name(),
        "at": round(time.time(), 3),
        "packages": sorted(f"{each.name}=={each.version}" for each in distributions()),
    }
    try:
        nginx = find_nginx(config.nginx.binary if config else "auto")
        told = subprocess.run(
            [str(nginx.binary), "-V"], capture_output=True, text=True, timeout=10, check=False
        )
        about["nginx"] = told.stderr.strip()
    except (NginxError, OSError, subprocess.SubprocessError) as exc:
        about["nginx"] = str(exc)
    return about


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return platform.platform()


def limits(config: Config | None) -> dict[str, Any]:
    """Memory, load, disk, descriptors and kernel settings."""
    memory = psutil.virtual_memory()
    about: dict[str, Any] = {
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "memory_bytes": {"total": memory.total, "available": memory.available},
        "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
        "sysctl": {name: _sysctl(name) for name in SYSCTLS},
    }
    if config and config.state.exists():
        disk = shutil.disk_usage(config.state)
        about["state_disk_bytes"] = {"total": disk.total, "free": disk.free}
        about["processes"] = {name: _process(read_pid(_pid_file(config, name))) for name in PIDS}
    return about


def _sysctl(name: str) -> str | None:
    try:
        return Path("/proc/sys", *name.split(".")).read_text().strip()
    except OSError:
        return None


def _pid_file(config: Config, name: str) -> Path:
    return config.state / "run" / f"{name}.pid"


def _process(pid: int | None) -> dict[str, Any] | None:
    """How a process and its children are; no command lines."""
    try:
        process = psutil.Process(pid) if pid else None
        if process is None:
            return None
        with process.oneshot():
            return {
                "pid": process.pid,
                "user": process.username(),
                "started": process.create_time(),
                "rss_bytes": process.memory_info().rss,
                "children": len(process.children()),
                "limits": _open_files(process.pid),
            }
    except (psutil.Error, OSError):
        return None


def _open_files(pid: int) -> str | None:
    try:
        text = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return None
    found = re.search(r"Max open files\s+(\S+)\s+(\S+)", text)
    return f"{found[1]} {found[2]}" if found else None


def environs(config: Config) -> Iterator[dict[str, str]]:
    """The variables of this process and of the node's, as far as they may be read: to know what
    to take out, never to tell."""
    yield dict(os.environ)
    for name in PIDS:
        try:
            pid = read_pid(_pid_file(config, name))
            if pid:
                yield psutil.Process(pid).environ()
        except (psutil.Error, OSError):
            continue


def files(config: Config) -> list[str]:
    """The state folder: mode, owner, size, age and name."""
    lines = []
    for path in [config.state, *sorted(config.state.rglob("*"))][:MAX_LISTED]:
        try:
            about = path.lstat()
        except OSError:
            continue
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(about.st_mtime))
        lines.append(
            f"{about.st_mode:o} {about.st_uid}:{about.st_gid} {about.st_size} {moment} {path}"
        )
    return lines


def journal(config: Config) -> dict[str, Any]:
    """The journal's size and whether a copy of it is sound. The service keeps the file locked."""
    path = config.journal
    about: dict[str, Any] = {"file": str(path)}
    try:
        about["exists"] = path.exists()
        if not about["exists"]:
            return about
        parts = [part for part in (path, path.with_name(path.name + "-wal")) if part.exists()]
        about["bytes"] = {part.name: part.stat().st_size for part in parts}
        damaged = path.with_name(path.name + ".damaged")
        about["put_aside"] = str(damaged) if damaged.exists() else None
    except OSError as exc:
        return {**about, "unreadable": exc.strerror}
    if sum(about["bytes"].values()) > MAX_JOURNAL_BYTES:
        return {**about, "check": "too large to be copied"}
    with tempfile.TemporaryDirectory(prefix="weir-doctor-") as folder:
        try:
            # The log first: what is folded in meanwhile is then in both, which changes nothing.
            for part in reversed(parts):
                shutil.copyfile(part, Path(folder, part.name))
            db = sqlite3.connect(Path(folder, path.name))
            try:
                about["check"] = db.execute("PRAGMA quick_check(5)").fetchone()[0]
                about["leases"] = db.execute("SELECT count(*) FROM leases").fetchone()[0]
                about["limits"] = db.execute("SELECT count(*) FROM limits").fetchone()[0]
            finally:
                db.close()
        except (sqlite3.Error, OSError) as exc:
            about["check"] = f"{type(exc).__name__}: {exc}"
    return about
