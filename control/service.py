"""The admission service's process: gunicorn with one gevent worker, built from ``weir.yml``.

Run as ``python -m control.service weir.yml``, in a process of its own: gevent patches in the
worker, and only then is imported what opens sockets.
"""

import gc
import logging
import os
import pwd
import random
import sys
from pathlib import Path
from typing import Any

import gevent
from gunicorn.app.base import BaseApplication

from control.admission import Admission
from control.config import Config, load
from control.core.estimate import Estimate
from control.core.pool import Backend, Pool
from control.stores import MemoryStore, Store

KEEPALIVE_S = 75
"""Longer than nginx keeps its connections (60 s), so that it is nginx that closes first."""
TICK_S = 0.05
"""How late a drain may end where nobody asks."""
JITTER = 0.25
"""Clients that were refused together come back spread over this part of their wait."""

log = logging.getLogger("weir.service")


class AdmissionService(BaseApplication):  # type: ignore[misc]
    """gunicorn's settings and application for one configuration."""

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__()

    def load_config(self) -> None:
        run = self.config.state / "run"
        run.mkdir(parents=True, exist_ok=True)
        settings = {
            "bind": [f"unix:{self.config.admission_socket}", str(self.config.admin.listen)],
            "workers": self.config.admission.workers,
            "worker_class": "control.gateway_worker.GatewayWorker",
            "keepalive": KEEPALIVE_S,
            "pidfile": str(run / "admission.pid"),
            "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else str(run),
            "control_socket_disable": True,
            "proc_name": "weir-admission",
            "umask": 0o007,
            "backlog": 4096,
            "graceful_timeout": 5,
            "loglevel": "warning",
            "post_worker_init": start_ticking,
            "when_ready": self.open_to_nginx,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def open_to_nginx(self, _arbiter: Any) -> None:
        """gunicorn's ``when_ready``: nginx's workers may be of another user."""
        if self.config.nginx.user and os.geteuid() == 0:
            user = pwd.getpwnam(self.config.nginx.user)
            os.chown(self.config.admission_socket, user.pw_uid, user.pw_gid)

    def load(self) -> Any:
        """Called in the worker, after gevent has patched."""
        from control.api.app import create_app  # noqa: PLC0415

        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level="INFO")
        config = self.config
        tokens = {token.name: os.environ[token.env] for token in config.admin.tokens}
        admission = Admission(
            store=build_store(config),
            routes={route.path: route.pool for route in config.routes},
            estimate=build_estimate(config),
        )
        self.admission = admission
        # What is loaded by now lives for good: the collector need not walk over it, nor stop
        # the world as often while thousands of leases come and go.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        urls = {
            (name, backend.name): backend.url
            for name, pool in config.pools.items()
            for backend in pool.backends
        }
        return create_app(admission, urls, tokens)


def build_store(config: Config) -> Store:
    """The configured store with the configured pools."""
    pools = [
        Pool(
            name,
            {b.name: Backend(b.name, b.url, b.max_streams, b.max_tokens) for b in pool.backends},
            session_ttl=pool.session_ttl,
            drain=pool.drain,
            pass_over=pool.pass_over,
        )
        for name, pool in config.pools.items()
    ]
    spread = random.Random()
    return MemoryStore(pools, jitter=lambda: spread.uniform(1 - JITTER, 1 + JITTER))


def build_estimate(config: Config) -> Estimate:
    """The configured estimate."""
    return Estimate(
        config.estimate.tokens_per_char,
        config.scenes.expected_output,
        config.scenes.default,
    )


def start_ticking(worker: Any) -> None:
    """gunicorn's ``post_worker_init``: time passes also when nobody asks."""
    admission = worker.app.admission

    def forever() -> None:
        while worker.alive:
            gevent.sleep(TICK_S)
            for lease in admission.tick():
                log.warning("lease_lost id=%s session=%s", lease.id, lease.session)

    gevent.spawn(forever)


def main() -> None:
    """Serve until told to stop."""
    AdmissionService(load(Path(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
