"""``weir agent``: the agent as a process, alone on its state folder, until it is told to stop."""

import fcntl
import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from control.agent.agent import Agent
from control.agent.checkpoint import Checkpoint
from control.agent.crash_log import CrashLog
from control.agent.follower import Follower
from control.agent.memory_monitor import MemoryMonitor
from control.agent.processes import ProcessTable
from control.agent.recycler import Recycler
from control.agent.tailer import Tailer
from control.agent.watermark import Watermark
from control.agent.webhook import Webhook
from control.agent.worker_watch import WorkerWatch
from control.client import ServiceClient, ServiceError
from control.config import Config, ConfigError
from control.config.secrets import read_own_token
from control.pid_file import write_pid
from control.tls import SYSTEM_CA

TICK_S = 0.1
FINISH_S = 2.0
"""How long it tries to deliver what is left after it was told to stop."""
FIRST_BYTES = 16 << 20
"""Without a checkpoint: how much of the access log is read back, some 30,000 requests. Older
ones have surely ended, and been told of."""

log = logging.getLogger("weir.agent")


class AlreadyRunning(OSError):
    """Another agent has this state folder."""


def run(config: Config) -> int:
    """Watch the node until SIGTERM or SIGINT. Returns the exit code."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s", level="INFO")
    logging.getLogger("urllib3").setLevel(logging.ERROR)
    stop = _Stop()
    folder = config.state / "agent"
    folder.mkdir(parents=True, exist_ok=True)
    with _alone_in(folder):
        webhook = Webhook(config.agent.webhook) if config.agent.webhook else None
        if webhook:
            webhook.start()
        agent = build(config, Checkpoint(folder / "checkpoint.json"), webhook, time.time())
        try:
            _loop(agent, config.state / "run" / "agent.pid", stop)
        finally:
            if webhook:
                webhook.stop(FINISH_S)
    return 0


def build(config: Config, checkpoint: Checkpoint, webhook: Webhook | None, started: float) -> Agent:
    """The agent of a configuration, where its checkpoint left it."""
    pid = os.getpid()
    node, run_folder = config.node_name, config.state / "run"
    session = f"{node}/{pid}/{round(started * 1000)}"
    client = build_client(config)
    positions = checkpoint.load()
    access = config.state / "log" / "access.log"
    errors = config.state / "log" / "error.log"
    logs = {
        access.name: Follower(access, positions.get(access.name), FIRST_BYTES),
        errors.name: Follower(errors, positions.get(errors.name)),
    }
    limit, settings = config.agent.memory_limit, config.agent
    return Agent(
        node=node,
        client=client,
        checkpoint=checkpoint,
        logs=logs,
        tailer=Tailer(logs[access.name], client, session),
        crash_log=CrashLog(logs[errors.name]),
        watch=WorkerWatch(client, node, session, run_folder / "nginx.pid"),
        memory=MemoryMonitor(
            node,
            ProcessTable(run_folder, pid),
            Watermark(settings.memory_alarm, settings.memory_full, settings.memory_resume),
            recycler=Recycler(settings.service_memory),
            webhook=webhook,
            limit_bytes=limit if isinstance(limit, int) else None,
        ),
        about={"pid": pid, "started": round(started, 3)},
    )


def build_client(config: Config) -> ServiceClient:
    """The service, where this node reaches it."""
    admission = config.admission
    token, faults = read_own_token(config)
    if faults:
        raise ConfigError("admission", faults)
    return ServiceClient(
        config.admission_address,
        token,
        ca=admission.ca or (SYSTEM_CA if config.is_apart else None),
        certificate=admission.certificate,
        key=admission.key,
    )


class _Stop:
    """Whether a signal has asked for the end."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True


def _loop(agent: Agent, pid_file: Path, stop: _Stop) -> None:
    try:
        more = agent.tick(time.monotonic(), time.time())
        write_pid(pid_file, os.getpid())
        log.info("agent_started pid=%d", os.getpid())
        while not stop.asked:
            if not more:
                time.sleep(TICK_S)
            more = agent.tick(time.monotonic(), time.time())
        _finish(agent, time.monotonic() + FINISH_S)
        log.info("agent_stopped pid=%d", os.getpid())
    finally:
        pid_file.unlink(missing_ok=True)


def _finish(agent: Agent, deadline: float) -> None:
    """What cannot be delivered in time, the next agent finds in the log."""
    more = True
    while more and time.monotonic() < deadline:
        try:
            more = agent.finish(time.monotonic())
        except ServiceError:
            time.sleep(TICK_S)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the kernel lets go of however we end."""
    with (folder / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            lock.seek(0)
            owner = lock.read().strip() or "unknown"
            raise AlreadyRunning(
                f"state: {folder.parent} has an agent already (pid {owner}): stop it first"
            ) from exc
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield
