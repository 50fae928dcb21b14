"""``weir check``: what on this machine would keep a sound configuration from working."""

import contextlib
import json
import os
import pwd
import resource
import socket
import sys
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from control.config import Config, ConfigError, Fault, load
from control.config.extras import missing_extras
from control.config.faults import unusable
from control.config.secrets import read_node_tokens, read_own_token, read_tokens, weaknesses
from control.config.units import Address
from control.nginx import Nginx, NginxError, find_nginx
from control.pid_file import read_pid
from control.render import (
    CLIENT_SEND_BUFFER,
    PROXY_BUFFER,
    SPARE_DESCRIPTORS,
    render,
    worker_count,
)
from control.tls import client_faults, server_faults

UNIX_PATH_MAX = 107
"""Bytes of a Unix socket's path on Linux, without the closing zero."""
SOMAXCONN = Path("/proc/sys/net/core/somaxconn")
TCP_RMEM = Path("/proc/sys/net/ipv4/tcp_rmem")
TCP_WMEM = Path("/proc/sys/net/ipv4/tcp_wmem")
SYSCTLS = "ansible/roles/host/files/60-weir.conf"
VANISHED_S = 30.0
"""As in lua/weir/hook.lua: what is not acknowledged for so long, or for `stall`, has no reader."""
KEEPALIVE_IDLE_S = 15.0
"""As in `so_keepalive`: a connection at rest is asked after it."""
BACKLOG = 4096
"""What nginx and the service ask for; the kernel cuts it to somaxconn."""


def check(config: Config) -> int:
    """Print every fault, or that there is none. Returns the exit code."""
    faults = all_faults(config)
    for fault in faults:
        print(fault, file=sys.stderr)
    known = [*read_tokens(config)[0], *read_node_tokens(config)[0]]
    for weakness in weaknesses(config, known):
        print(f"weir check: {weakness}", file=sys.stderr)
    print(worst_case(config))
    if faults:
        return 1
    print("weir check: configuration and machine are sound")
    return 0


def check_json(file: Path) -> int:
    """Print the same of a file for scripts: ``{"file","version","sound","faults":[{"path",
    "problem"}]}``; no version where the file itself is at fault. Returns the exit code."""
    version, faults = None, []
    try:
        config = load(file)
        version, faults = config.version, all_faults(config)
    except ConfigError as exc:
        faults = list(exc.faults)
    told = {
        "file": str(file),
        "version": version,
        "sound": not faults,
        "faults": [{"path": fault.path, "problem": fault.message} for fault in faults],
    }
    print(json.dumps(told, indent=2))
    return 1 if faults else 0


def all_faults(config: Config) -> list[Fault]:
    """Every fault of this machine at once."""
    faults = list(fatal_faults(config, own_listeners(config)))
    nowhere = {"nginx.user", "state"} & {fault.path for fault in faults}
    if not nowhere:  # else nothing can be rendered
        faults += machine_faults(config)
    return faults


def worst_case(config: Config) -> str:
    """What a client that reads nothing makes this machine hold, and for how long, in numbers.

    Sockets grow to the third of the kernel's values; an engine on this machine or one with the
    same settings has its own on top.
    """
    from_engine = _largest(TCP_RMEM) + _largest(TCP_WMEM)
    stall_s = max(pool.stall for pool in config.pools.values())
    found_s = max(VANISHED_S, stall_s) + KEEPALIVE_IDLE_S
    for_client = 2 * CLIENT_SEND_BUFFER + PROXY_BUFFER
    return (
        f"weir check: a client that reads nothing holds up to {for_client >> 10} KB in nginx and "
        f"its socket; its engine is blocked after up to {(for_client + from_engine) >> 10} KB "
        f"(net.ipv4.tcp_rmem and tcp_wmem; with {SYSCTLS}: 256 KB). It is cut after `stall`; one "
        f"that vanished without a word is found within {found_s:g} s"
    )


def _largest(sysctl: Path) -> int:
    """The third of the kernel's values of a socket's buffer: what it may grow to."""
    return int(sysctl.read_text().split()[2]) if sysctl.exists() else 0


def machine_faults(config: Config) -> Iterator[Fault]:
    """What would hinder a node that can start."""
    yield from _limit_faults(config)
    yield from _nginx_faults(config)


def fatal_faults(config: Config, held: Container[Address] = ()) -> Iterator[Fault]:
    """What no node can start with, as far as it can be told without nginx. ``held`` is where the
    node itself listens already."""
    yield from _user_faults(config)
    yield from _state_faults(config)
    yield from _token_faults(config)
    yield from missing_extras(config)
    yield from _tls_faults(config)
    yield from _port_faults(config, held)


def _user_faults(config: Config) -> Iterator[Fault]:
    if config.nginx.user:
        try:
            pwd.getpwnam(config.nginx.user)
        except KeyError:
            yield Fault("nginx.user", f"there is no user {config.nginx.user} on this machine")


def _state_faults(config: Config) -> Iterator[Fault]:
    path = len(os.fsencode(config.state / "run" / "admission.sock"))
    if path > UNIX_PATH_MAX:
        over = path - UNIX_PATH_MAX
        yield Fault("state", f"{config.state} is {over} bytes too long for a Unix socket")
    folder = config.state
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        yield Fault("state", f"{folder} cannot be written to by this user: choose another folder")


def _token_faults(config: Config) -> Iterator[Fault]:
    if config.is_apart:
        yield from read_own_token(config)[1]
    else:
        yield from read_tokens(config)[1]
        yield from read_node_tokens(config)[1]


def _tls_faults(config: Config) -> Iterator[Fault]:
    yield from client_faults(config) if config.is_apart else server_faults(config)
    if config.tls is None:
        return
    for key, file in (("certificate", config.tls.certificate), ("key", config.tls.key)):
        if not os.access(file, os.R_OK):
            yield Fault(f"tls.{key}", f"{file} cannot be read: name a PEM file")


def _port_faults(config: Config, held: Container[Address]) -> Iterator[Fault]:
    places = {
        "listen": config.listen,
        "listen_h2c": config.listen_h2c,
        "tls.listen": config.tls and config.tls.listen,
    }
    if not config.is_apart:
        places |= {"admin.listen": config.admin.listen, "admission.listen": config.admission.listen}
    for path, address in places.items():
        if address and address not in held and (why := _cannot_bind(address)):
            yield Fault(path, f"{address} cannot be listened on ({why}): choose another")


def simulator_faults(config: Config) -> Iterator[Fault]:
    """Engines in whose place no simulator can listen."""
    for name, pool in config.pools.items():
        for n, backend in enumerate(pool.backends):
            if why := _cannot_bind(place := engine_address(backend.url)):
                yield Fault(
                    f"pools.{name}.backends[{n}].url",
                    f"no simulator can listen on {place} ({why}): choose another, as with "
                    "--engine http://127.0.0.1:8001",
                )


def engine_address(url: str) -> Address:
    """Where an engine of this URL listens."""
    engine = urlsplit(url)
    return Address(engine.hostname or "127.0.0.1", engine.port or 80)


def own_listeners(config: Config) -> set[Address]:
    """Where this node listens already, as far as this user may see it."""
    found: set[Address] = set()
    for name in ("nginx", "admission"):
        pid = read_pid(config.state / "run" / f"{name}.pid")
        with contextlib.suppress(psutil.Error):
            sockets = psutil.Process(pid).net_connections("inet") if pid else []
            found |= {Address(*each.laddr) for each in sockets if each.status == "LISTEN"}
    return found


def _cannot_bind(address: Address) -> str | None:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as exc:
            return exc.strerror or str(exc)
    return None


def _limit_faults(config: Config) -> Iterator[Fault]:
    streams = sum(b.max_streams for pool in config.pools.values() for b in pool.backends)
    workers = worker_count(config)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    needed = 2 * streams // workers + SPARE_DESCRIPTORS
    if hard not in (resource.RLIM_INFINITY,) and needed > hard:
        enough = -(-2 * streams // (hard - SPARE_DESCRIPTORS))
        yield Fault(
            "nginx.workers",
            f"{streams} streams on {workers} workers need {needed} descriptors each, {hard} are "
            f"allowed (ulimit -Hn): raise the limit or use {enough} workers",
        )
    if SOMAXCONN.exists() and (somaxconn := int(SOMAXCONN.read_text())) < BACKLOG:
        yield Fault(
            "listen",
            f"net.core.somaxconn is {somaxconn}: bursts of connections are dropped; "
            f"sysctl -w net.core.somaxconn={BACKLOG}",
        )


def _nginx_faults(config: Config) -> Iterator[Fault]:
    try:
        nginx = find_nginx(config.nginx.binary)
        yield from _rendered_faults(config, nginx)
    except NginxError as exc:
        yield Fault("nginx.binary", str(exc))
    except OSError as exc:
        yield Fault("state", f"cannot be rendered into: {unusable(exc)}")


def _rendered_faults(config: Config, nginx: Nginx) -> Iterator[Fault]:
    # Beside what a running nginx may read, never in its place.
    with tempfile.TemporaryDirectory(prefix="weir-check-") as folder:
        conf = render(config, nginx, Path(folder, "nginx")).conf
        log = (conf.parent / "log.conf").read_text()
    if "buffer=" in log:
        yield Fault(
            "nginx", "the access log is buffered: an abort would be read minutes late; "
            "remove buffer= from nginx/log.conf.j2"
        )  # fmt: skip
