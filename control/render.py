"""nginx's configuration from the templates in ``nginx/``.

Ansible's role uses the same templates with the same variables: :func:`variables` is the one
place where they are computed.
"""

import grp
import hashlib
import json
import os
import pwd
import resource
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jinja2

from control.config import Backend, Config, Pool, Route
from control.config.units import clock_text
from control.nginx import Nginx, NginxError, test_configuration
from control.places import LUA, TEMPLATES, WWW
from control.tls import SYSTEM_CA

OWN_HEADERS = (
    "X-Weir-Backend", "X-Weir-Estimate", "X-Weir-Grant", "X-Weir-Lease", "X-Weir-Pool",
    "X-Weir-Reason", "X-Weir-Scene", "X-Weir-Session", "X-Weir-Tenant", "X-Weir-Tokens",
)  # fmt: skip
"""Headers in Weir's name, cleared on the way to an engine."""

LUA_VARIABLES = ("weir_grant", "weir_scene", "weir_seen", "weir_upstream", "weir_verdict")
"""Set by Lua, each used in the configuration: nginx gives no place to a variable that is not."""

SPARE_DESCRIPTORS = 256
"""For logs, listeners, Lua and the channel between workers."""
HEARTBEATS_A_TTL = 4
"""A session is heard so often within its time to live, so that a lost beat or two ends nothing."""
LONGEST_HEARTBEAT_S = 1.0
"""A stream that an operator cuts ends within it."""
REROUTED_S = 5.0
"""By so much a worker that a request was sent on to waits longer for its engine: it is the one that
holds the lease that is to find a silence."""
KEEPALIVE_CONNECTIONS = 64
"""Idle connections that a worker keeps to an engine: more than its usual limit of 25 streams."""


CLIENT_SEND_BUFFER = 24 << 10
"""Bytes that wait in the kernel for a client; it reserves twice as much for them."""
STAMP = "stamp.conf"
"""The one file that is no template: it names the others."""
PROXY_BUFFER = 8 << 10
"""nginx's own buffer between an engine and a client; an engine's response head must fit."""
CLIENT_RECEIVE_BUFFER = 1 << 20
"""20 MB in 2 s over a link of 100 ms."""


class Rendered(NamedTuple):
    """``stamp`` names all that nginx loads with ``conf``, its main file; the nginx that has
    loaded it says the same stamp at ``/_weir/loaded`` of ``run/reroute.sock``. ``changed``:
    whether a file in the folder is another now."""

    conf: Path
    stamp: str
    changed: bool


def render(
    config: Config, nginx: Nginx, folder: Path | None = None, demo: bool = False
) -> Rendered:
    """Write nginx's configuration to a folder, by default the state directory's ``nginx``. With
    ``demo`` it serves the chat page.

    The new files are tested with ``nginx -t`` beside the old ones and take their place only
    when they are sound, so a broken template never reaches a running nginx. A file that would
    be the same stays as it is.
    """
    for name in ("run", "log", "tmp"):
        (config.state / name).mkdir(parents=True, exist_ok=True)
    target = (folder or config.state / "nginx").absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    try:
        _write(staged, variables(config, nginx, staged, demo))
        if fault := test_configuration(nginx, staged / "nginx.conf"):
            raise NginxError(f"nginx refuses the rendered configuration: {fault}")
        stamp = _write(staged, variables(config, nginx, target, demo))
        target.mkdir(exist_ok=True)
        changed = False
        for file in staged.iterdir():
            if not _same(file, target / file.name):
                file.replace(target / file.name)
                changed = True
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return Rendered(target / "nginx.conf", stamp, changed)


def _same(file: Path, other: Path) -> bool:
    return other.is_file() and file.read_bytes() == other.read_bytes()


def variables(config: Config, nginx: Nginx, conf: Path, demo: bool = False) -> dict[str, Any]:
    """What the templates are rendered with; ``conf`` is the folder they will stand in."""
    nofile = _descriptor_limit()
    pools = {name: _pool(pool) for name, pool in config.pools.items()}
    return {
        "version": config.version,
        "user": _user(config),
        "workers": worker_count(config),
        "nofile": nofile,
        "worker_connections": nofile - SPARE_DESCRIPTORS,
        "shutdown_timeout": clock_text(config.nginx.shutdown_timeout),
        "error_level": config.nginx.error_level,
        "request_error_level": _request_error_level(config),
        "access_log": config.nginx.access_log,
        "longest_stall": clock_text(max(pool.stall for pool in config.pools.values())),
        "max_body": config.nginx.max_body,
        "upload_grace": clock_text(config.nginx.upload_grace),
        "modules": [str(module) for module in nginx.modules],
        "conf": str(conf),
        "run": str(config.state / "run"),
        "log": str(config.state / "log"),
        "tmp": str(config.state / "tmp"),
        "lua": str(LUA),
        "www": str(WWW) if demo else None,
        "variables": LUA_VARIABLES,
        "own_headers": OWN_HEADERS,
        "keepalive_connections": KEEPALIVE_CONNECTIONS,
        "listens": _listens(config, nginx),
        "http2_directive": nginx.has_http2_directive,
        "tls": config.tls
        and {
            "certificate": config.tls.certificate.absolute(),
            "key": config.tls.key.absolute(),
        },
        "backends": [
            _backend(pool_name, backend)
            for pool_name, pool in config.pools.items()
            for backend in pool.backends
        ],
        "proxy_buffer": PROXY_BUFFER,
        "routes": [
            {"path": r.path, "pool": pools[r.pool], "heartbeat": r.heartbeat is not None}
            for r in config.routes
        ],
        "secrets": _secrets(config),
        "lua_config": _lua_config(config),
        "trusted": _trusted(config),
    }


def _secrets(config: Config) -> list[Path]:
    """Certificates, keys and the token that nginx's master reads."""
    own = config.admission if config.is_apart else None
    files = [
        config.tls and config.tls.certificate,
        config.tls and config.tls.key,
        own and own.ca,
        own and own.certificate,
        own and own.key,
        own and own.token and own.token.file,
    ]
    return [file for file in files if file]


def worker_count(config: Config) -> int:
    """nginx workers: one a core, at least two, so that one that dies does not take all."""
    if config.nginx.workers == "auto":
        return max(2, os.cpu_count() or 1)
    return config.nginx.workers


def _write(folder: Path, values: Mapping[str, Any]) -> str:
    """Write all files; returns their stamp."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for template in sorted(TEMPLATES.glob("*.conf.j2")):
        try:
            text = environment.get_template(template.name).render(values)
        except jinja2.TemplateError as exc:
            raise NginxError(f"{template} cannot be rendered: {exc}") from exc
        (folder / template.name.removesuffix(".j2")).write_text(text)
    lua_config = json.dumps(values["lua_config"], ensure_ascii=False, indent=2)
    (folder / "weir.json").write_text(lua_config)
    stamp = _stamp(folder, values["secrets"])
    (folder / STAMP).write_text(f'# What this nginx has loaded.\nreturn 200 "{stamp}";\n')
    return stamp


def _stamp(folder: Path, secrets: Sequence[Path]) -> str:
    """12 hex digits that change with any rendered file, with Weir's Lua, and with certificates
    and tokens that are exchanged under their names."""
    rendered = (file for file in sorted(folder.iterdir()) if file.name != STAMP)
    digest = hashlib.sha256()
    for file in [*rendered, *sorted((LUA / "weir").glob("*.lua")), *secrets]:
        # One that cannot be read is for `nginx -t` to tell of.
        content = file.read_bytes() if os.access(file, os.R_OK) else b""
        digest.update(b"%s\0%d\0%s" % (file.name.encode(), len(content), content))
    return digest.hexdigest()[:12]


def _lua_config(config: Config) -> dict[str, Any]:
    shortest_ttl = min(pool.session_ttl for pool in config.pools.values())
    return {
        "version": config.version,
        "node": config.node_name,
        "admission": _admission(config),
        "budget_s": config.admission.budget,
        "heartbeat_s": min(LONGEST_HEARTBEAT_S, shortest_ttl / HEARTBEATS_A_TTL),
        "session_ttl_s": max(pool.session_ttl for pool in config.pools.values()),
        "drain_s": max(pool.drain for pool in config.pools.values()),
        "max_body": config.nginx.max_body,
        "slowest_upload": config.nginx.slowest_upload,
        "upload_grace_s": config.nginx.upload_grace,
        "lua_release": config.nginx.lua_release,
        "trace": config.tracing is not None,
        "unknown_size": config.estimate.unknown_size,
        "tokens_per_char": config.estimate.tokens_per_char,
        "expected_output": config.scenes.expected_output,
        "default_scene": config.scenes.default,
        "scene_variable": "http_" + config.scenes.header.lower().replace("-", "_"),
        "message": config.refusal.message,
        "routes": {r.path: _lua_route(r) for r in config.routes},
        "pools": {name: _lua_pool(name, pool) for name, pool in config.pools.items()},
    }


def _admission(config: Config) -> dict[str, Any]:
    """Where Lua reaches the service, and how they know each other. Secrets are named, and read by
    nginx's master."""
    admission = config.admission
    if admission.url is None:
        return {"host": config.admission_address}
    place = _place(admission.url, "the admission service's name")
    if admission.certificate and admission.key:
        place |= {
            "certificate": str(admission.certificate.absolute()),
            "key": str(admission.key.absolute()),
        }
    if token := admission.token:
        named = (
            {"env": token.env} if token.env else {"file": str(token.file and token.file.absolute())}
        )
        place["token"] = named
    return place


def _trusted(config: Config) -> str | None:
    """The authorities that Lua verifies the service by."""
    if not config.is_apart:
        return None
    return str((config.admission.ca or SYSTEM_CA).absolute())


def _lua_route(route: Route) -> dict[str, Any]:
    beat = {"heartbeat_s": route.heartbeat} if route.heartbeat else {}
    return {"pool": route.pool, "stream": route.stream, **beat}


def _lua_pool(name: str, pool: Pool) -> dict[str, Any]:
    share = {"local_share": pool.local_share} if pool.when_down == "local" else {}
    return {
        "drain_s": pool.drain,
        "connect_ms": round(pool.connect * 1_000),
        "silence_s": pool.silence,
        "stall_s": pool.stall,
        "backends": {
            backend.name: {
                "upstream": _target(name, backend),
                "max_streams": backend.max_streams,
                "max_tokens": backend.max_tokens,
                "address": _place(backend.url, "the engine's name"),
            }
            for backend in pool.backends
        },
        **share,
    }


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "silence": clock_text(pool.silence),
        "longer_silence": clock_text(pool.silence + REROUTED_S),
        "connect": clock_text(pool.connect),
        "stall": clock_text(pool.stall),
        "strip_headers": pool.strip_headers,
    }


def _backend(pool_name: str, backend: Backend) -> dict[str, Any]:
    return {
        "pool": pool_name,
        "name": backend.name,
        "upstream": _upstream(pool_name, backend),
        "target": _target(pool_name, backend),
        "address": urlsplit(backend.url).netloc,
        "keepalive": clock_text(backend.keepalive),
    }


def _request_error_level(config: Config) -> str:
    """The error log's level where requests go to an engine. nginx's own lines there quote the
    query: by default none are written, unless nginx itself cannot go on."""
    level = config.nginx.error_level
    return "emerg" if level == "crit" else level


def _target(pool_name: str, backend: Backend) -> str:
    """What ``proxy_pass`` is given for a backend."""
    return f"{urlsplit(backend.url).scheme}://{_upstream(pool_name, backend)}"


def _upstream(pool_name: str, backend: Backend) -> str:
    return f"weir.{pool_name}.{backend.name}"


def _place(url: str, what: str) -> dict[str, Any]:
    """Where Lua connects to: like nginx, it looks a name up once."""
    parts = urlsplit(url)
    name = str(parts.hostname)
    return {
        "host": _look_up(name, what),
        "port": parts.port,
        "name": name,
        "tls": parts.scheme == "https",
    }


def _look_up(name: str, what: str) -> str:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as exc:  # the latter of a name that none can have
        why = exc.strerror if isinstance(exc, OSError) else "no such name can be"
        raise NginxError(f"{what} {name} cannot be looked up: {why}") from exc
    family, *_, place = min(found, key=lambda each: each[0])  # IPv4 where it has both
    return f"[{place[0]}]" if family == socket.AF_INET6 else str(place[0])


def _listens(config: Config, nginx: Nginx) -> list[str]:
    # reuseport: the kernel spreads connections evenly; else one worker may take most of a burst
    # and run out of descriptors while the other idles.
    # sndbuf: what a client does not read must not gather in the kernel, but press back to the
    # engine (mission 002). rcvbuf: uploads over a slow link need a window of their own.
    # so_keepalive: a client that has vanished in a pause is found after 30 s.
    options = (
        f"reuseport backlog=4096 sndbuf={CLIENT_SEND_BUFFER >> 10}k "
        f"rcvbuf={CLIENT_RECEIVE_BUFFER >> 10}k so_keepalive=15s:5s:3"
    )
    http2 = "" if nginx.has_http2_directive else " http2"
    listens = [f"{config.listen} {options}"]
    if config.listen_h2c:
        listens.append(f"{config.listen_h2c}{http2} {options}")
    if config.tls:
        listens.append(f"{config.tls.listen} ssl{http2} {options}")
    return listens


def _descriptor_limit() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return 65_536 if hard == resource.RLIM_INFINITY else min(hard, 65_536)


def _user(config: Config) -> str | None:
    """Whom root's nginx runs its workers as, with the user's own group: nginx would look for a
    group of the user's name. They must reach the state directory, so root itself by default."""
    if os.geteuid() != 0:
        return None
    user = pwd.getpwnam(config.nginx.user or "root")
    return f"{user.pw_name} {grp.getgrgid(user.pw_gid).gr_name}"
