"""The admission service's process: gunicorn with one gevent worker, built from ``weir.yml``.

Run as ``python -m control.service weir.yml``, in a process of its own: gevent patches in the
worker, and only then is imported what opens sockets.
"""

import gc
import logging
import os
import pwd
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter

from control.config import Config, ConfigError, Loaded, load_with_tokens
from control.config.faults import unusable
from control.config.secrets import weaknesses
from control.listeners import check_move, listeners
from control.pid_file import write_pid
from control.succession import DecisionLock

TICK_S = 0.05
"""How late a drain may end where nobody asks."""

log = logging.getLogger("weir.service")


class AdmissionService(BaseApplication):  # type: ignore[misc]
    """gunicorn's settings and application for the configuration in a file."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        self.listeners = listeners(loaded.config, str(loaded.file))
        super().__init__()

    @property
    def config(self) -> Config:
        """The configuration in force."""
        return self.loaded.config

    def load_config(self) -> None:
        """Also called for SIGHUP: what the file says now goes to the next worker, or what it
        was refused for."""
        try:
            loaded = load_with_tokens(self.loaded.file, self.loaded.started_at)
            made = listeners(loaded.config, str(loaded.file))
            check_move(self.listeners, made, str(loaded.file))
            self.listeners, self.loaded = made, loaded
        except ConfigError as exc:
            log.error("reload_refused error=%s", exc)
            self.loaded = replace(self.loaded, reload_error=str(exc))
        for weakness in weaknesses(self.config, [*self.loaded.tokens, *self.loaded.node_tokens]):
            log.warning("token_weak %s", weakness)
        settings = {
            "bind": [listener.bind for listener in self.listeners],
            "workers": self.config.admission.workers,
            "worker_class": "control.gateway_worker.GatewayWorker",
            "worker_tmp_dir": "/dev/shm" if os.access("/dev/shm", os.W_OK) else None,
            "control_socket_disable": True,
            "proc_name": "weir-admission",
            "umask": 0o007,
            "backlog": 4096,
            "graceful_timeout": 5,
            "loglevel": "warning",
            "post_worker_init": start_ticking,
            "worker_exit": step_down,
            "when_ready": self.open_to_nginx,
            "on_reload": self.open_to_nginx,
            "on_exit": self.retire,
        }
        for name, value in settings.items():
            self.cfg.set(name, value)

    def open_to_nginx(self, _arbiter: Any) -> None:
        """gunicorn's ``when_ready`` and ``on_reload``, which may have bound the socket anew:
        nginx's workers may be of another user."""
        if self.config.nginx.user and os.geteuid() == 0:
            user = pwd.getpwnam(self.config.nginx.user)
            os.chown(self.config.admission_socket, user.pw_uid, user.pw_gid)

    def retire(self, _arbiter: Any) -> None:
        """gunicorn's ``on_exit``."""
        pid_file(self.config).unlink(missing_ok=True)

    def load(self) -> Any:
        """Called in the worker, after gevent has patched; returns when it is its turn to decide."""
        from control.chronicle.subscribers import Subscribers  # noqa: PLC0415
        from control.stores import StoreError  # noqa: PLC0415
        from control.wiring import build_admission, build_app, build_collector  # noqa: PLC0415

        self.lock = DecisionLock(run_folder(self.config) / "decision.lock", gevent.sleep)
        self.lock.take()
        self.collector = build_collector(self.config)
        try:
            self.admission = build_admission(self.config, self.lock.was_held, self.collector)
        except StoreError as exc:
            log.critical("store_failed error=%s", exc)
            sys.exit(Arbiter.WORKER_BOOT_ERROR)
        self.subscribers = Subscribers(self.admission.events)
        app = build_app(self.loaded, self.admission, self.subscribers)
        # What is loaded by now lives for good: the collector need not walk over it, nor stop
        # the world as often while thousands of leases come and go.
        gc.collect()
        gc.freeze()
        gc.set_threshold(20_000, 20, 50)
        return app


def start_ticking(worker: Any) -> None:
    """gunicorn's ``post_worker_init``: time passes also when nobody asks."""
    admission, subscribers = worker.app.admission, worker.app.subscribers

    def tick() -> None:
        for lease in admission.tick():
            log.warning("lease_lost id=%s session=%s", lease.id, lease.session)
        subscribers.tick()

    def forever() -> None:
        while True:
            gevent.sleep(TICK_S)
            try:
                tick()
            except Exception:  # time must go on
                log.exception("tick_failed")

    worker.lock = worker.app.lock
    worker.ticker = gevent.spawn(forever)


def step_down(_arbiter: Any, worker: Any) -> None:
    """gunicorn's ``worker_exit``: write what there is to write, and let the next one decide."""
    if hasattr(worker, "ticker"):  # else it never came to decide
        worker.ticker.kill()
        worker.app.admission.close()
        worker.app.lock.leave()
        if worker.app.collector is not None:
            worker.app.collector.close()


def run_folder(config: Config) -> Path:
    """Where sockets, pid files and locks are."""
    run = config.state / "run"
    run.mkdir(parents=True, exist_ok=True)
    return run


def pid_file(config: Config) -> Path:
    """The arbiter's."""
    return run_folder(config) / "admission.pid"


def main() -> None:
    """Serve until told to stop."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level="INFO")
    try:
        service = AdmissionService(load_with_tokens(Path(sys.argv[1])))
    except ConfigError as exc:
        sys.exit(f"weir: {exc}")
    config = service.config
    # Before the socket is bound: a second service must not take it from the first. Held by all
    # processes of this one, to the last.
    try:
        lock = DecisionLock(run_folder(config) / "service.lock")
        lock.take()
        # Not gunicorn's own pid file: that one is gone for a moment with each SIGHUP.
        write_pid(pid_file(config), os.getpid())
    except OSError as exc:
        sys.exit(f"weir: state: {unusable(exc)}")
    service.run()


if __name__ == "__main__":
    main()
