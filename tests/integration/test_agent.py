"""The agent on a real node: the log alone frees everything, dead workers are found at once.

Casebook 1, 6, 7, 26.
"""

import json
import math
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import psutil

from tests.harness.client import Client, chat_body
from tests.harness.h2client import H2Client
from tests.harness.node import IMPATIENT, Engine, Node, reload, wait_for

QA = {"X-Medical-Scene": "QA"}
TAILER_S = 0.5
"""What only the log has told is free within it (docs/design.md), on a machine with time."""

StartEngine = Callable[..., Engine]
StartNode = Callable[..., Node]


def open_streams(node: Node, count: int, frames: int = 2_000, **sim: Any) -> list[Client]:
    clients = [
        Client(node.port).post(chat_body(frames, gap_ms=50, **sim), headers=QA)
        for _ in range(count)
    ]
    for client in clients:
        assert client.head().status == 200
    return clients


def ended(node: Node) -> Counter[tuple[str, str]]:
    """Ended leases by verdict and witness."""
    text = node.metric
    verdicts = ("completed", "client_abort", "upstream_error", "upstream_truncated", "lost")
    found = {
        (verdict, witness): text("weir_leases_ended_total", verdict=verdict, witness=witness)
        for verdict in verdicts
        for witness in ("lua", "log", "session")
    }
    return Counter({key: int(count) for key, count in found.items() if count})


def agent_said(node: Node) -> str:
    return (node.state / "log/agent.log").read_text()


# -- the log tailer ----------------------------------------------------------------------------


def test_without_luas_releases_the_log_alone_frees_every_kind_of_end(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    """Casebook 1: FIN, RST, an HTTP/2 cancel, and one in prefill; and ends of other kinds."""
    engine = start_engine()
    node = start_node([engine.url], nginx={"lua_release": False})
    body = chat_body(100, gap_ms=50)

    def leave(how: str) -> None:
        if how == "h2":
            H2Client(node.h2_port).post(body, headers={"x-medical-scene": "QA"}).head().cancel()
        elif how == "prefill":
            client = Client(node.port).post(chat_body(9, first_ms=5_000, late=True), headers=QA)
            wait_for(lambda: node.in_use()[0] == 1)
            time.sleep(0.1)
            client.fin()
        else:
            client = Client(node.port).post(body, headers=QA)
            client.head()
            client.events(3)
            client.rst() if how == "rst" else client.fin()

    took: list[float] = []
    for n, how in enumerate(("fin", "rst", "h2", "prefill"), 1):
        leave(how)
        began = time.monotonic()
        wait_for(lambda: node.in_use() == (0, 0))
        took.append(time.monotonic() - began)
        assert ended(node) == {("client_abort", "log"): n}, how
    with Client(node.port) as client:
        assert client.request(chat_body(2), headers=QA)[0].status == 200
    wait_for(lambda: ended(node)["completed", "log"] == 1)
    with Client(node.port) as client:
        client.post(chat_body(20, fail_after=2), headers=QA).head()
        with suppress(OSError):
            client.rest()
    wait_for(lambda: node.in_use() == (0, 0))
    assert min(took) < TAILER_S, took
    assert sum(ended(node).values()) == 6 and {witness for _, witness in ended(node)} == {"log"}
    node.settled()


def test_what_nginx_refused_by_itself_the_log_frees_where_the_service_granted_it_late(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    """The asking reached the service, which answered when the client had been refused."""
    share = {"when_down": "local", "local_share": 0.01}  # of 25 streams: none
    node = start_node(
        [start_engine().url], nginx={"lua_release": False}, pool=share, admission=IMPATIENT
    )
    [service] = node.workers("admission")

    def is_granted_late() -> bool:
        """Not where its worker's heartbeat was on its way: the asking never left then."""
        os.kill(service, signal.SIGSTOP)
        try:
            with Client(node.port) as client:
                response, _ = client.request(chat_body(1), headers=QA)
            assert response.headers["x-weir-reason"] == "streams_exhausted"
        finally:
            os.kill(service, signal.SIGCONT)
        with suppress(AssertionError):
            wait_for(lambda: node.in_use()[0] == 1, 3)
        return node.in_use()[0] == 1

    os.kill(node.pid("agent"), signal.SIGSTOP)
    try:
        wait_for(is_granted_late, 40)
    finally:
        os.kill(node.pid("agent"), signal.SIGCONT)
    wait_for(lambda: node.in_use()[0] == 0)
    assert node.metric("weir_leases_ended_total", verdict="killed", witness="log") == 1
    [*_, line] = node.access_log()
    assert (line["grant"], line["verdict"]) == ("", "killed")
    node.settled()


def test_with_luas_releases_the_log_frees_nothing_twice(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    engine = start_engine()
    node = start_node([engine.url])
    for _ in range(20):
        with Client(node.port) as client:
            assert client.request(chat_body(1), headers=QA)[0].status == 200
    left = open_streams(node, 5)
    for client in left:
        client.rst()
    node.settled()
    size = (node.state / "log/access.log").stat().st_size
    tailer = wait_for(lambda: (t := told(node)["tailer"])["offset"] == size and t)
    assert (tailer["lag_bytes"], tailer["broken"]) == (0, 0)
    assert tailer["lines"] == len(node.access_log()) >= 25
    # On a busy machine the log may be the first to tell.
    by_verdict: Counter[str] = Counter()
    for (verdict, _), count in ended(node).items():
        by_verdict[verdict] += count
    assert by_verdict == {"completed": 20, "client_abort": 5}
    assert tailer["released"] == sum(n for (_, who), n in ended(node).items() if who == "log") < 12


def test_a_rotation_of_nginxs_own_loses_no_line(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    """Casebook 26 a, with nginx: renamed, written to, USR1, written to."""
    engine = start_engine()
    node = start_node([engine.url], nginx={"lua_release": False}, limits={"max_streams": 50})
    log = node.state / "log/access.log"
    for n in range(5):
        clients = open_streams(node, 10)
        log.rename(log.with_name(f"access.log.{n}"))
        for client in clients[:5]:
            client.fin()
        wait_for(lambda: node.in_use()[0] == 5)
        os.kill(node.pid("nginx"), signal.SIGUSR1)
        wait_for(log.exists)
        for client in clients[5:]:
            client.fin()
        wait_for(lambda: node.in_use()[0] == 0)
    assert ended(node) == {("client_abort", "log"): 50}
    assert told(node)["tailer"]["gaps"] == 0
    node.settled()


def test_a_killed_agent_misses_nothing(start_engine: StartEngine, start_node: StartNode) -> None:
    engine = start_engine()
    node = start_node([engine.url], nginx={"lua_release": False})
    clients = open_streams(node, 10)
    old = node.pid("agent")
    os.kill(old, signal.SIGKILL)
    for client in clients:
        client.fin()
    wait_for(lambda: node.in_use()[0] == 0, 12)
    file = node.state / "run/agent.pid"
    wait_for(lambda: file.exists() and node.pid("agent") != old)
    assert ended(node) == {("client_abort", "log"): 10}
    node.settled()


def test_the_last_lines_are_told_before_the_node_is_gone(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    """nginx, the agent, the service: they stop in this order."""
    engine = start_engine()
    node = start_node([engine.url])
    clients = open_streams(node, 3, frames=20)
    node.process.send_signal(signal.SIGTERM)
    for client in clients:
        assert client.rest().endswith(b"data: [DONE]\n\n")
        client.fin()
    node.process.wait(10)
    checkpoint = json.loads((node.state / "agent/checkpoint.json").read_text())
    log = node.state / "log/access.log"
    assert sum(entry["verdict"] == "completed" for entry in node.access_log()) == 3
    assert checkpoint["logs"]["access.log"][-1]["offset"] == log.stat().st_size
    assert "agent_stopped" in agent_said(node)
    assert not (node.state / "run/agent.pid").exists()
    node.stop()


# -- the worker watch --------------------------------------------------------------------------


def test_a_killed_workers_fifty_streams_are_free_within_a_second(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    engine = start_engine()
    limits = {"max_streams": 200, "max_tokens": 1_000_000}
    node = start_node([engine.url], limits=limits, pool={"session_ttl": "5m"})
    node.tolerated = ("exited on signal 9",)
    lost, took = 0, [math.inf]
    while min(took) >= 1 and len(took) < 4:  # a machine that runs other tests holds anything up
        clients = open_streams(node, 120)
        owners = Counter(int(lease["session"].split("/")[1]) for lease in node.leases())
        victim, count = owners.most_common(1)[0]
        assert count >= 50
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        wait_for(lambda left=120 - count: node.in_use()[0] == left)
        took.append(time.monotonic() - began)
        time.sleep(0.5)
        assert node.in_use()[0] == 120 - count, "and nobody else's"
        lost += count
        assert ended(node)["lost", "session"] == lost
        wait_for(lambda pid=victim: f"worker_crashed pid={pid} signal=9" in agent_said(node))
        for client in clients:
            client.fin()
        node.settled()
    assert min(took) < 1, took


def test_a_worker_that_died_while_no_agent_ran_is_found_at_its_start(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "5m"})
    node.tolerated = ("exited on signal 9",)
    clients = open_streams(node, 10)
    agent = node.pid("agent")
    os.kill(agent, signal.SIGSTOP)
    for pid in node.workers("nginx"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(1)
    assert node.in_use()[0] == 10
    os.kill(agent, signal.SIGKILL)
    wait_for(lambda: node.in_use()[0] == 0, 10)
    assert ended(node) == {("lost", "session"): 10}
    for client in clients:
        client.fin()
    node.settled()


def test_workers_that_are_let_go_after_a_reload_lose_nothing(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "5m"})
    clients = open_streams(node, 6, frames=140)
    for _ in range(3):
        reload(node)
        time.sleep(0.3)
    roles = wait_for(lambda: (r := roles_of(node))["nginx"] > 2 and r)
    assert roles["nginx-master"] == roles["admission-master"] == roles["agent"] == 1
    for client in clients:
        assert client.rest().endswith(b"data: [DONE]\n\n")
        client.fin()
    node.settled()
    ends = ended(node)
    assert sum(ends.values()) == 6 and {verdict for verdict, _ in ends} == {"completed"}
    assert ends["completed", "lua"], "workers that leave tell of ends themselves"
    wait_for(lambda: len(node.get("/v1/sessions")["sessions"]) <= 3, 10)
    warned = [line for line in agent_said(node).splitlines() if "WARNING" in line]
    assert not [line for line in warned if "service_away" not in line], "a busy machine's second"


# -- the memory monitor ------------------------------------------------------------------------


def told(node: Node) -> dict[str, Any]:
    """What the node's agent said last."""
    [found] = node.get("/v1/nodes")["nodes"]
    return dict(found)


def roles_of(node: Node) -> Counter[str]:
    memory = told(node)["memory"] or {"processes": ()}
    return Counter(each["role"] for each in memory["processes"])


def test_the_report_names_the_nodes_processes_and_what_a_stream_costs(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    engine = start_engine()
    limits = {"max_streams": 200, "max_tokens": 1_000_000}
    node = start_node([engine.url], limits=limits)
    wait_for(lambda: roles_of(node)["nginx"] == 2, 15)  # seen at rest
    clients = open_streams(node, 100)

    def measured() -> Any:
        """A look after the report that counts all of them."""
        memory = told(node)["memory"]
        return memory if 1_000 < (memory["per_stream_bytes"] or 0) < 200_000 else None

    memory = wait_for(measured, 15)
    by_role: dict[str, list[int]] = {}
    for process in memory["processes"]:
        by_role.setdefault(process["role"], []).append(process["pid"])
        assert process["uss_bytes"] > 100_000
    assert sorted(by_role["nginx"]) == sorted(node.workers("nginx"))
    assert by_role["admission"] == node.workers("admission")
    assert by_role["nginx-master"] == [node.pid("nginx")]
    assert by_role["admission-master"] == [node.pid("admission")]
    assert by_role["agent"] == [node.pid("agent")]
    assert 0 < memory["used_bytes"] < memory["limit_bytes"] <= psutil.virtual_memory().total
    print(f"{memory['per_stream_bytes']:.0f} bytes a stream")
    assert memory["state"] == "ok" and memory["leak_suspected"] is False
    for client in clients:
        client.fin()
    node.settled()


def test_a_node_short_of_memory_refuses_in_words_and_calls_for_help(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    events: list[dict[str, Any]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    Thread(target=server.serve_forever, daemon=True).start()
    engine = start_engine()
    webhook = f"http://127.0.0.1:{server.server_port}/hook"
    node = start_node([engine.url], node="site", agent={"memory_limit": "20m", "webhook": webhook})
    with Client(node.port) as client:
        assert client.post(chat_body(1)).head().status in (200, 503)
    wait_for(lambda: (told(node)["memory"] or {}).get("state") == "full", 5)
    with Client(node.port) as client:
        response, _ = client.request(chat_body(1))
    assert response.status == 503 and response.headers["x-weir-reason"] == "node_memory"
    assert int(response.headers["retry-after"]) >= 1
    wait_for(lambda: events)
    assert (events[0]["event"], events[0]["node"], events[0]["state"]) == (
        "node_memory", "site", "full",
    )  # fmt: skip
    assert "node_memory state=full" in agent_said(node)
    node.settled()
    server.shutdown()
    server.server_close()


def test_a_service_that_holds_too_much_is_replaced_under_running_streams(
    start_engine: StartEngine, start_node: StartNode
) -> None:
    engine = start_engine()
    node = start_node([engine.url], agent={"service_memory": "1m"})
    clients = open_streams(node, 5, frames=100)
    wait_for(lambda: "service_recycled" in agent_said(node) and len(node.workers("admission")) == 1)
    assert "restarted" not in node.log.read_text(), "the arbiter went on"
    wait_for(lambda: node.in_use()[0] == 5, 5)
    for client in clients:
        assert client.rest().endswith(b"data: [DONE]\n\n")
        client.fin()
    node.settled()
    assert agent_said(node).count("service_recycled") == 1
