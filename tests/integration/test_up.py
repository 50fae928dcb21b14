"""The ``weir`` command: ``up`` as a process with children, and the commands beside it."""

import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
import yaml

from control.check import BACKLOG, SOMAXCONN
from tests.harness.client import Client, chat_body
from tests.harness.node import WEIR, Engine, Node, free_port, wait_for

WORKER_KILLED = re.compile(r"\[alert\] \d+#\d+: worker process \d+ exited on signal 9$")
ENDS_S = 15.0
"""What is told to stop, or has lost its parent, is gone within it."""


class Bruised(Node):
    """A node whose processes a test kills: nginx's master says of a worker that it was."""

    def errors(self) -> str:
        lines = super().errors().splitlines()
        return "\n".join(line for line in lines if not WORKER_KILLED.search(line))


@pytest.fixture
def start_bruised(tmp_path: Path) -> Iterator[Callable[..., Bruised]]:
    nodes: list[Bruised] = []

    def start(engines: list[str], **settings: Any) -> Bruised:
        nodes.append(Bruised(tmp_path / f"b{len(nodes)}", engines, **settings))
        return nodes[-1]

    yield start
    for node in nodes:
        node.stop()


def serves(node: Node) -> bool:
    """Whether a whole stream passes."""
    try:
        with Client(node.port, timeout_s=5) as client:
            response, body = client.request(chat_body(2, gap_ms=1))
    except OSError:
        return False
    return response.status == 200 and body.endswith(b"data: [DONE]\n\n")


def said(node: Node) -> str:
    """What ``weir up`` has said on stderr."""
    return node.log.read_text()


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it."""
    head = psutil.Process(pid)
    return [head, *head.children(recursive=True)]


def living(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""

    def lives(process: psutil.Process) -> bool:
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    return [process for process in processes if lives(process)]


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def weir(*arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    return subprocess.run(
        [*WEIR, *arguments], capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip


class Command:
    """A command that goes on; its first line, and nothing left of it afterwards."""

    def __init__(self, *arguments: str, stderr: Any = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(
            [*WEIR, *arguments], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=stderr, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        self.family = family(self.process.pid) if self.line else []

    def stop(self) -> str:
        """End it; what it printed after its first line."""
        self.process.terminate()
        try:
            self.process.wait(ENDS_S)
        except subprocess.TimeoutExpired:
            for process in living(self.family):
                process.kill()
            raise
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            rest = stdout.read()
        assert living(self.family) == []
        return rest


@pytest.fixture
def start() -> Iterator[Callable[..., Command]]:
    commands: list[Command] = []

    def start(*arguments: str, **options: Any) -> Command:
        commands.append(Command(*arguments, **options))
        return commands[-1]

    yield start
    for command in commands:
        if command.process.poll() is None:
            command.stop()


# -- up and down -------------------------------------------------------------------------------


def test_ready_is_all_that_is_said_on_stdout_and_a_request_is_served_from_then_on(
    start_node: Callable[..., Node], engine: Engine
) -> None:
    node = start_node([engine.url])  # has read the first line and compared it
    assert serves(node), "at once, with no second try"
    node.process.send_signal(signal.SIGTERM)
    assert node.process.wait(ENDS_S) == 0
    assert node.process.stdout is not None
    assert node.process.stdout.read() == ""


def test_all_processes_are_descendants_and_no_daemons(node: Node) -> None:
    mine = {process.pid for process in family(node.process.pid)}
    assert {node.pid("nginx"), node.pid("admission")} <= mine
    assert set(node.workers("nginx")) | set(node.workers("admission")) <= mine
    assert len(node.workers("nginx")) >= 2 and len(node.workers("admission")) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_lets_a_running_stream_finish_and_leaves_nothing(
    start_node: Callable[..., Node], engine: Engine, number: signal.Signals
) -> None:
    node = start_node([engine.url])
    before = family(node.process.pid)
    with Client(node.port) as client:
        client.post(chat_body(40, gap_ms=50)).head()
        client.events(1)
        node.process.send_signal(number)
        wait_for(lambda: "weir: draining" in said(node))
        wait_for(lambda: not is_listening(node.port))
        body = client.rest()
    assert body.endswith(b"data: [DONE]\n\n")
    assert node.process.wait(ENDS_S) == 0
    assert living(before) == []
    for port in (node.port, node.h2_port, node.admin_port):
        assert not is_listening(port)


def test_a_stream_is_accounted_for_while_it_is_drained(
    start_node: Callable[..., Node], engine: Engine
) -> None:
    node = start_node([engine.url])
    with Client(node.port) as client:
        client.post(chat_body(100, gap_ms=50)).head()
        client.events(1)
        node.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not is_listening(node.port))
        assert node.in_use()[0] == 1
        client.rest()
    assert node.process.wait(ENDS_S) == 0
    [line] = [entry for entry in node.access_log() if entry["route"]]
    assert line["verdict"] == "completed"


def test_a_second_signal_ends_at_once(start_node: Callable[..., Node], engine: Engine) -> None:
    node = start_node([engine.url])
    before = family(node.process.pid)
    with Client(node.port) as client:
        client.post(chat_body(2_000, gap_ms=50)).head()
        client.events(1)
        node.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "weir: draining" in said(node))
        assert client.events(2), "the stream goes on"
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(ENDS_S) == 0
        with pytest.raises(ConnectionError):
            client.rest()
    assert living(before) == []


def test_a_signal_while_it_starts_leaves_nothing(tmp_path: Path, engine: Engine) -> None:
    state = tmp_path / "s"
    process = subprocess.Popen(
        [*WEIR, "up", "--engine", engine.url, "--listen", f"127.0.0.1:{free_port()}",
         "--admin", f"127.0.0.1:{free_port()}", "--state", str(state)],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    wait_for(lambda: psutil.Process(process.pid).children() and (state / "log").exists(), 20)
    wait_for((state / "log" / "admission.log").exists, 20)
    before = family(process.pid)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=ENDS_S)
    assert (process.returncode, out) == (0, b"")
    assert living(before) == []


def test_a_service_that_cannot_be_reached_does_not_keep_it_from_ending(
    start_bruised: Callable[..., Bruised], engine: Engine
) -> None:
    """Somebody has swept the folder: what nginx's workers have to tell, nobody will hear."""
    node = start_bruised([engine.url])
    before = family(node.process.pid)
    with Client(node.port) as client:
        client.post(chat_body(2_000, gap_ms=50)).head()
        client.events(1)
        (node.state / "run" / "admission.sock").unlink()
        os.kill(node.workers("admission")[0], signal.SIGKILL)
    node.process.send_signal(signal.SIGTERM)
    try:
        assert node.process.wait(40) == 0
    finally:
        node.process.send_signal(signal.SIGTERM)
        node.process.wait(ENDS_S)
    assert living(before) == []


# -- deaths ------------------------------------------------------------------------------------

VICTIMS: dict[str, Callable[[Node], int]] = {
    "nginx-master": lambda node: node.pid("nginx"),
    "nginx-worker": lambda node: node.workers("nginx")[0],
    "service-arbiter": lambda node: node.pid("admission"),
    "service-worker": lambda node: node.workers("admission")[0],
}


@pytest.mark.parametrize("victim", list(VICTIMS))
def test_what_is_killed_is_replaced_and_a_request_is_served_again(
    start_bruised: Callable[..., Bruised], engine: Engine, victim: str
) -> None:
    node = start_bruised([engine.url])
    assert serves(node)
    pid = VICTIMS[victim](node)
    before = family(pid)
    os.kill(pid, signal.SIGKILL)
    child = {"nginx-master": "nginx", "service-arbiter": "admission"}.get(victim)
    if child:
        wait_for(lambda: re.search(rf"^weir: {child} died \(signal 9", said(node), re.M))
        wait_for(lambda: f"weir: {child} restarted" in said(node))
    wait_for(lambda: not living(before), 15)
    wait_for(lambda: serves(node), 30, every_s=0.2)
    if child:
        assert said(node).count("weir: ") == 2, said(node)
    wait_for(lambda: len(node.workers("nginx")) >= 2 and node.workers("admission"))


def test_the_service_comes_back_before_a_waiting_client_gives_up(
    start_bruised: Callable[..., Bruised], engine: Engine
) -> None:
    """While it is away, requests are refused with a wait; none hangs."""
    node = start_bruised([engine.url])
    os.kill(node.pid("admission"), signal.SIGKILL)
    with Client(node.port, timeout_s=5) as client:
        response, _ = client.request(chat_body(1, gap_ms=1))
    assert response.status in (200, 503)
    if response.status == 503:
        assert response.headers["x-weir-reason"] == "admission_down"
        assert int(response.headers["retry-after"]) >= 1
    wait_for(lambda: serves(node), 30, every_s=0.2)


@pytest.mark.parametrize("streaming", [False, True], ids=["idle", "streaming"])
def test_nothing_outlives_a_killed_weir_up(
    start_bruised: Callable[..., Bruised], engine: Engine, streaming: bool
) -> None:
    node = start_bruised([engine.url])
    before = family(node.process.pid)
    with Client(node.port) as client:
        if streaming:
            client.post(chat_body(2_000, gap_ms=50)).head()
            client.events(1)
        node.process.kill()
        node.process.wait(5)
        wait_for(lambda: not living(before), ENDS_S)
    assert not is_listening(node.port)


@pytest.mark.parametrize("what", ["weir-up", "everything"])
def test_after_a_crash_the_same_node_comes_up_in_the_same_folder(
    start_bruised: Callable[..., Bruised], engine: Engine, what: str
) -> None:
    """``everything`` is a power cut, or an out-of-memory kill of the whole group."""
    node = start_bruised([engine.url])
    before = family(node.process.pid)
    for process in before if what == "everything" else before[:1]:
        process.kill()
    node.process.wait(5)
    assert node.process.stdout is not None
    node.process.stdout.close()
    wait_for(lambda: not living(before), ENDS_S)
    node.process = node._start()
    assert serves(node)


def test_a_stale_pid_that_belongs_to_another_process_now_does_not_keep_it_down(
    start_bruised: Callable[..., Bruised], engine: Engine
) -> None:
    """In a container pids are small and come again after each start."""
    node = start_bruised([engine.url])
    node.process.send_signal(signal.SIGTERM)
    node.process.communicate(timeout=ENDS_S)
    for name in ("admission.pid", "nginx.pid"):
        (node.state / "run" / name).write_text(f"{os.getpid()}\n")
    node.process = node._start()
    assert serves(node)


# -- side by side ------------------------------------------------------------------------------


def unix_sockets(processes: list[psutil.Process]) -> set[str]:
    found = {
        str(connection.laddr)
        for process in processes
        for connection in process.net_connections(kind="unix")
    }
    return {path for path in found if path and path != "None"}


def test_two_instances_side_by_side_share_nothing(
    start_node: Callable[..., Node], engine: Engine
) -> None:
    """Casebook 43e."""
    one, two = start_node([engine.url]), start_node([engine.url])
    assert serves(one) and serves(two)
    families = [family(node.process.pid) for node in (one, two)]
    files = [{f.path for p in each for f in p.open_files()} for each in families]
    assert files[0] and files[0].isdisjoint(files[1])
    sockets = [unix_sockets(each) for each in families]
    assert sockets[0] and sockets[0].isdisjoint(sockets[1])
    for node, paths in zip((one, two), sockets, strict=True):
        assert all(path.startswith(str(node.state)) for path in paths), paths
    assert one.metric("weir_leases_granted_total") == two.metric("weir_leases_granted_total") == 1
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(ENDS_S) == 0
    assert serves(two)


def second(first: Node, folder: Path, **changes: Any) -> "subprocess.CompletedProcess[str]":
    """``weir up`` beside a running node, with a setting in common. It is to fail."""
    folder.mkdir()
    config = {
        **first.config,
        "state": str(folder / "s"),
        "listen": f"127.0.0.1:{free_port()}",
        "listen_h2c": None,
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
        **changes,
    }
    file = folder / "weir.yml"
    file.write_text(yaml.safe_dump(config))
    with subprocess.Popen(
        [*WEIR, "up", "-c", str(file)], stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=12)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=ENDS_S)
            pytest.fail(f"it went on, and said {out + err!r}")
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.mark.parametrize("common", ["listen", "admin", "state"])
def test_a_second_instance_with_a_port_or_folder_of_the_first_does_not_start(
    node: Node, tmp_path: Path, common: str
) -> None:
    """Two ledgers behind one port would each admit up to the limits (casebook 18)."""
    done = second(node, tmp_path / "second", **{common: node.config[common]})
    assert done.returncode == 1
    assert "ready" not in done.stdout
    assert done.stderr.startswith("weir: ")
    assert serves(node), "the first is not disturbed"


def test_a_port_that_somebody_else_has_is_named(tmp_path: Path, engine: Engine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = weir(
            "up", "--engine", engine.url, "--listen", f"127.0.0.1:{port}",
            "--admin", f"127.0.0.1:{free_port()}", "--state", str(tmp_path / "s"),
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert str(port) in done.stderr and "Address already in use" in done.stderr


# -- other users -------------------------------------------------------------------------------


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that every user reaches: pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="weir-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def nobody() -> pwd.struct_passwd:
    """An ordinary user to become, where this one is root and the other can read our code."""
    if os.geteuid() != 0:
        pytest.skip("not root: all other tests run as an ordinary user already")
    user = pwd.getpwnam("nobody")
    can_read = subprocess.run(
        [sys.executable, "-c", "import control.cli"], check=False, capture_output=True,
        user=user.pw_uid, group=user.pw_gid, extra_groups=[],
    )  # fmt: skip
    if can_read.returncode != 0:
        pytest.skip("nobody cannot read this checkout or its Python")
    return user


class Ordinary(Node):
    """A node that nobody started."""

    def _start(self) -> "subprocess.Popen[str]":
        user = nobody()
        os.chown(self.file.parent, user.pw_uid, user.pw_gid)
        with self.log.open("w") as log:
            process = subprocess.Popen(
                [*WEIR, "up", "-c", str(self.file)], stdout=subprocess.PIPE, stderr=log, text=True,
                user=user.pw_uid, group=user.pw_gid, extra_groups=[],
            )  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == f"weir: ready {self.url}\n", (line, self.log.read_text())
        return process


def test_it_comes_up_as_an_ordinary_user(public_folder: Path, engine: Engine) -> None:
    user = nobody()
    node = Ordinary(public_folder / "n", [engine.url])
    try:
        assert serves(node)
        assert {p.uids().effective for p in family(node.process.pid)} == {user.pw_uid}
    finally:
        node.stop()


def test_nginx_workers_of_another_user_reach_the_service(
    public_folder: Path, engine: Engine
) -> None:
    nobody()
    node = Node(public_folder / "n", [engine.url], nginx={"user": "daemon"})
    try:
        assert serves(node)
        assert {psutil.Process(pid).username() for pid in node.workers("nginx")} == {"daemon"}
    finally:
        node.stop()


# -- what it is started with -------------------------------------------------------------------


def test_without_a_file_one_pool_of_the_engines_is_served(
    start: Callable[..., Command], tmp_path: Path, engine: Engine
) -> None:
    port, admin = free_port(), free_port()
    said = tmp_path / "stderr"
    with said.open("w") as stderr:
        command = start(
            "up", "--engine", engine.url, "--listen", f"127.0.0.1:{port}",
            "--admin", f"127.0.0.1:{admin}", "--state", str(tmp_path / "s"), stderr=stderr,
        )  # fmt: skip
    assert command.line == f"weir: ready http://127.0.0.1:{port}\n"
    # The line to try is of the path that every engine has.
    wait_for(lambda: f"curl -N http://127.0.0.1:{port}/v1/chat/completions " in said.read_text())
    with Client(port) as client:
        assert client.request(chat_body(1))[0].status == 200
    [pool] = requests.get(f"http://127.0.0.1:{admin}/v1/pools", timeout=10).json()["pools"]
    [backend] = pool["backends"]
    assert (pool["name"], backend["url"]) == ("default", engine.url)
    assert (backend["max_streams"], backend["max_tokens"]) == (25, 80_000)
    assert command.stop() == ""


def test_simulate_brings_the_engines_with_it(start: Callable[..., Command], tmp_path: Path) -> None:
    port, engine = free_port(), f"http://127.0.0.1:{free_port()}"
    command = start(
        "up", "--simulate", "--engine", engine, "--listen", f"127.0.0.1:{port}",
        "--admin", f"127.0.0.1:{free_port()}", "--state", str(tmp_path / "s"),
    )  # fmt: skip
    assert command.line == f"weir: ready http://127.0.0.1:{port}\n"
    with Client(port) as client:
        response, body = client.request(chat_body(3))
    assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")
    assert requests.get(f"{engine}/stats", timeout=10).json()["total"] == 1
    assert command.stop() == ""


def test_a_simulator_whose_place_is_taken_keeps_it_from_starting(
    tmp_path: Path, engine: Engine
) -> None:
    done = weir(
        "up", "--simulate", "--engine", engine.url, "--listen", f"127.0.0.1:{free_port()}",
        "--admin", f"127.0.0.1:{free_port()}", "--state", str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1
    assert "pools.default.backends[0].url: no simulator can listen on" in done.stderr


@pytest.mark.parametrize("command", ["up", "check", "render", "admission"])
def test_a_wrong_file_is_refused_with_every_fault_on_stderr(tmp_path: Path, command: str) -> None:
    file = tmp_path / "weir.yml"
    file.write_text(
        "stat: ./var\nlisten: 8080\npools:\n  default:\n    backends:\n"
        "    - {name: a, url: 'http://x:1', max_tokens: 0}\n"
    )
    done = weir(command, "-c", str(file))
    assert (done.returncode, done.stdout) == (1, "")
    for path in ("stat", "listen", "pools.default.backends[0].max_tokens"):
        assert f"  {path}: " in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(child.name for child in tmp_path.iterdir()) == ["weir.yml"]


@pytest.mark.parametrize("command", ["up", "check", "render", "admission"])
def test_a_file_that_is_not_there_is_named(tmp_path: Path, command: str) -> None:
    done = weir(command, "-c", str(tmp_path / "none.yml"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "none.yml" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["up"], ["nonsense"], ["up", "--nonsense"], ["up", "-c"],
        ["up", "-c", "weir.yml", "--engine", "http://127.0.0.1:1"],
        ["up", "--engine", "nonsense"], ["up", "--simulate", "--listen", "nonsense"],
        ["up", "-c", "weir.yml", "--listen", "127.0.0.1:1"],
        ["simulate", "--listen", "nonsense"], ["simulate", "--listen", "127.0.0.1:70000"],
        ["simulate", "--kv-tokens", "0"], ["simulate", "--kv-tokens", "-1"],
        ["simulate", "--kv-tokens", "1e5"], ["simulate", "--step", "20"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_wrong_usage_is_exit_2_and_told_on_stderr(arguments: list[str]) -> None:
    done = weir(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.strip() and "Traceback" not in done.stderr


def test_a_missing_or_empty_token_keeps_it_from_starting(tmp_path: Path, engine: Engine) -> None:
    """Casebook 44: an empty password is no password."""
    for environ in ({}, {"WEIR_TEST_TOKEN": ""}):
        folder = tmp_path / f"t{len(environ)}"
        folder.mkdir()
        config = sound_config(folder, engine)
        config["admin"]["tokens"] = [{"name": "ops", "env": "WEIR_TEST_TOKEN"}]
        file = folder / "weir.yml"
        file.write_text(yaml.safe_dump(config))
        process = subprocess.Popen(
            [*WEIR, "up", "-c", str(file)], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environ},
        )  # fmt: skip
        try:
            out, err = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=ENDS_S)
            pytest.fail(f"with {environ} it started: {out + err!r}")
        assert (process.returncode, out) == (1, "")
        assert "WEIR_TEST_TOKEN" in err


# -- check and render --------------------------------------------------------------------------


def sound_config(folder: Path, engine: Engine) -> dict[str, Any]:
    return {
        "state": str(folder / "s"),
        "listen": f"127.0.0.1:{free_port()}",
        "admin": {"listen": f"127.0.0.1:{free_port()}"},
        "pools": {"default": {"backends": [{"name": "gpu-0", "url": engine.url}]}},
    }


def check(folder: Path, config: dict[str, Any]) -> tuple[int, str]:
    file = folder / "weir.yml"
    file.write_text(yaml.safe_dump(config))
    done = weir("check", "-c", str(file))
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_check_finds_nothing_wrong_with_a_sound_file_and_machine(
    tmp_path: Path, engine: Engine
) -> None:
    if SOMAXCONN.exists() and int(SOMAXCONN.read_text()) < BACKLOG:
        pytest.skip("this machine's net.core.somaxconn is a fault of its own")
    code, told = check(tmp_path, sound_config(tmp_path, engine))
    assert code == 0, told
    assert "sound" in told


def test_check_tells_every_fault_of_the_machine_at_once_with_its_path(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WEIR_TEST_TOKEN", raising=False)
    monkeypatch.setenv("WEIR_TEST_EMPTY", "")
    config = sound_config(tmp_path, engine)
    config["admin"]["tokens"] = [
        {"name": "ops", "env": "WEIR_TEST_TOKEN"},
        {"name": "night", "env": "WEIR_TEST_EMPTY"},
    ]
    config["tls"] = {
        "listen": f"127.0.0.1:{free_port()}",
        "certificate": str(tmp_path / "none.pem"),
        "key": str(tmp_path / "none.key"),
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config["listen"] = f"127.0.0.1:{taken.getsockname()[1]}"
        code, told = check(tmp_path, config)
    assert code == 1
    for path in (
        "listen: ", "admin.tokens[0].env: ", "admin.tokens[1].env: ", "tls.certificate: ",
        "tls.key: ",
    ):  # fmt: skip
        assert re.search(rf"^\s*{re.escape(path)}", told, re.M), (path, told)
    assert "WEIR_TEST_TOKEN" in told


def test_check_finds_a_state_folder_that_cannot_be(tmp_path: Path, engine: Engine) -> None:
    config = sound_config(tmp_path, engine)
    config["state"] = str(tmp_path / ("x" * 100))
    code, told = check(tmp_path, config)
    assert code == 1 and re.search(r"^\s*state: .*too long", told, re.M)
    (tmp_path / "file").write_text("")
    config["state"] = str(tmp_path / "file" / "s")
    code, told = check(tmp_path, config)
    assert code == 1 and re.search(r"^\s*state: ", told, re.M)


def test_check_finds_a_key_that_is_none(tmp_path: Path, engine: Engine) -> None:
    config = sound_config(tmp_path, engine)
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("nonsense")
    config["tls"] = {
        "listen": f"127.0.0.1:{free_port()}",
        "certificate": str(tmp_path / "a.pem"), "key": str(tmp_path / "a.key"),
    }  # fmt: skip
    code, told = check(tmp_path, config)
    assert code == 1 and "PEM" in told


def test_render_prints_where_it_wrote(tmp_path: Path, engine: Engine) -> None:
    file = tmp_path / "weir.yml"
    file.write_text(yaml.safe_dump(sound_config(tmp_path, engine)))
    done = weir("render", "-c", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert Path(line) == tmp_path / "s" / "nginx" / "nginx.conf"
    assert Path(line).is_file()


# -- the simulator -----------------------------------------------------------------------------


def test_the_simulator_prints_its_address_and_streams(start: Callable[..., Command]) -> None:
    command = start("simulate", "--listen", "127.0.0.1:0")
    match = re.fullmatch(r"weir simulate: ready (http://127\.0\.0\.1:\d+)\n", command.line)
    assert match
    url = match[1]
    answer = requests.post(f"{url}/v1/chat/completions", data=chat_body(3, gap_ms=1), timeout=10)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [line for line in answer.text.split("\n\n") if line]
    assert frames[-1] == "data: [DONE]"
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames[:-1]]
    assert len(chunks) == 4 and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    stats = requests.get(f"{url}/stats", timeout=10).json()
    assert {"active", "peak", "total", "aborted", "crashed", "bytes_sent"} <= set(stats)
    assert (stats["active"], stats["peak"], stats["total"]) == (0, 1, 1)
    assert (stats["aborted"], stats["crashed"]) == (0, 0)
    assert stats["bytes_sent"] > len(answer.content)
    assert command.stop() == ""


def test_the_simulator_counts_a_client_that_leaves(start: Callable[..., Command]) -> None:
    url = start("simulate", "--listen", "127.0.0.1:0").line.split()[-1]
    with Client(int(url.rsplit(":", 1)[1])) as client:
        client.post(chat_body(1_000, gap_ms=10)).head()
        client.events(1)
        client.rst()
    stats = wait_for(lambda: (s := _stats(url))["aborted"] and not s["active"] and s)
    assert (stats["aborted"], stats["completed"]) == (1, 0)


def test_the_simulator_crashes_past_its_kv_tokens(start: Callable[..., Command]) -> None:
    url = start("simulate", "--listen", "127.0.0.1:0", "--kv-tokens", "160").line.split()[-1]
    port = int(url.rsplit(":", 1)[1])
    with Client(port) as first, Client(port) as second:
        first.post(chat_body(2_000, gap_ms=20, prompt="x" * 100)).head()
        first.events(1)
        second.post(chat_body(2_000, gap_ms=20, prompt="x" * 200))
        with pytest.raises(ConnectionError):
            second.head()
        with pytest.raises(ConnectionError):
            first.rest()
    stats = _stats(url)
    assert (stats["crashed"], stats["active"], stats["kv_tokens_used"]) == (1, 0, 0)
    with Client(port) as client:
        assert client.request(chat_body(1, gap_ms=0))[0].status == 500, "while it starts again"


def _stats(url: str) -> dict[str, int]:
    return dict(requests.get(f"{url}/stats", timeout=10).json())
