"""The processes of one node, in the order in which they depend on each other."""

import fcntl
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import requests

from control.check import engine_address, fatal_faults, simulator_faults
from control.client import ServiceClient
from control.config import Config, ConfigError
from control.config.units import Address
from control.nginx import Nginx, find_nginx
from control.node.child import Spec
from control.node.supervisor import StartError, Supervisor, say
from control.render import render

PROBE_TIMEOUT_S = 1.0
COMPLETIONS = "/v1/chat/completions"


def up(config: Config, config_file: Path, simulate: bool, demo: bool = False) -> int:
    """Run the node until told to stop; prints ``weir: ready URL`` when it would serve. With
    ``demo`` it has the chat page at ``/``."""
    if faults := [*fatal_faults(config), *(simulator_faults(config) if simulate else ())]:
        raise ConfigError(str(config_file), faults)
    nginx = find_nginx(config.nginx.binary)
    with _alone_in(config.state):
        return _up(config, config_file, simulate, demo, nginx)


@contextmanager
def _alone_in(state: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel lets go of however we end."""
    state.mkdir(parents=True, exist_ok=True)
    with (state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise StartError(f"state: {state} is in use by another weir up") from exc
        yield


def _up(config: Config, config_file: Path, simulate: bool, demo: bool, nginx: Nginx) -> int:
    conf = render(config, nginx, demo=demo).conf
    specs = [
        *(_simulators(config) if simulate else []),
        *([] if config.is_apart else [_admission(config, config_file)]),
        # Stopped after nginx, whose last lines it tells of, and before the service.
        _agent(config, config_file),
        _nginx(config, nginx.binary, conf),
    ]
    url = f"http://{_reachable(config.listen)}"

    def ready() -> None:
        print(f"weir: ready {url}", flush=True)
        print(_first_request(url, config), file=sys.stderr, flush=True)
        if demo:
            print(f"page: {url}/", file=sys.stderr, flush=True)

    return Supervisor(specs, say).run(ready)


def _simulators(config: Config) -> list[Spec]:
    specs = []
    for pool_name, pool in config.pools.items():
        for backend in pool.backends:
            place = engine_address(backend.url)
            name = f"simulator-{pool_name}-{backend.name}"
            specs.append(
                Spec(
                    name,
                    [sys.executable, "-m", "control", "simulate", "--listen", str(place),
                     "--kv-tokens", str(round(backend.max_tokens * 1.25))],
                    config.state / "log" / f"{name}.log",
                    graceful=signal.SIGTERM,
                    fast=signal.SIGTERM,
                    ready=partial(_answers, f"http://{place}/health"),
                )
            )  # fmt: skip
    return specs


def _admission(config: Config, config_file: Path) -> Spec:
    return Spec(
        "admission",
        [sys.executable, "-m", "control.service", str(config_file)],
        config.state / "log" / "admission.log",
        graceful=signal.SIGTERM,
        fast=signal.SIGQUIT,
        ready=ServiceClient(config.admission_address).is_ready,
        leftovers=(config.state / "run" / "admission.pid",),
    )


def _agent(config: Config, config_file: Path) -> Spec:
    pid_file = config.state / "run" / "agent.pid"
    return Spec(
        "agent",
        [sys.executable, "-m", "control", "agent", "-c", str(config_file)],
        config.state / "log" / "agent.log",
        graceful=signal.SIGTERM,
        fast=signal.SIGTERM,
        ready=pid_file.exists,
        leftovers=(pid_file,),
    )


def _nginx(config: Config, binary: Path, conf: Path) -> Spec:
    log = config.state / "log" / "error.log"
    url = f"http://{_reachable(config.listen)}/healthz"
    return Spec(
        "nginx",
        [str(binary), "-p", str(conf.parent), "-c", str(conf), "-e", str(log),
         "-g", "daemon off;"],
        log,
        graceful=signal.SIGQUIT,
        fast=signal.SIGTERM,
        ready=partial(_answers, url),
        leftovers=tuple(
            config.state / "run" / name for name in ("reroute.sock", "relay.sock", "nginx.pid")
        ),
    )  # fmt: skip


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=PROBE_TIMEOUT_S).ok
    except requests.RequestException:
        return False


def _reachable(address: Address) -> Address:
    """Where this machine reaches what listens there."""
    if address.host in ("0.0.0.0", "::"):
        return Address("127.0.0.1" if address.host == "0.0.0.0" else "::1", address.port)
    return address


def _first_request(url: str, config: Config) -> str:
    # Every engine has this one; others are the site's own.
    paths = [route.path for route in config.routes]
    path = COMPLETIONS if COMPLETIONS in paths else paths[0]
    return (
        f"try: curl -N {url}{path} -H 'Content-Type: application/json' \\\n"
        '  -d \'{"stream":true,"messages":[{"role":"user","content":"发热三天"}]}\''
    )
