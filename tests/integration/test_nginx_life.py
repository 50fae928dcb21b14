"""nginx's own life: reloads, cut and killed workers. No part of it loses a stream's quota.

Casebook 5, 6, 7.
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.harness.client import Client, chat_body
from tests.harness.node import AT_ONCE_S, Engine, Node, reload, wait_for


def test_a_reload_cuts_no_stream_and_its_old_worker_gives_the_quota_back(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "3s"})
    client = Client(node.port)
    client.post(chat_body(200, gap_ms=50)).head()
    for _ in range(3):
        reload(node)
        time.sleep(1.2)
    assert node.in_use()[0] == 1, "the old worker's session is heard"
    assert client.rest().endswith(b"data: [DONE]\n\n")
    node.settled()
    assert node.metric("weir_leases_ended_total", verdict="completed") == 1
    wait_for(lambda: len(node.workers("nginx")) == 2)


QA = {"X-Medical-Scene": "QA"}


def streams(node: Node, count: int, frames: int) -> list[Client]:
    clients = [
        Client(node.port, timeout_s=60).post(chat_body(frames, gap_ms=50), headers=QA)
        for _ in range(count)
    ]
    for client in clients:
        assert client.head().status == 200
    return clients


def test_twenty_reloads_in_a_row_cut_and_leak_no_stream(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "2s"})
    clients = streams(node, 25, frames=700)
    for n in range(20):
        reload(node)
        time.sleep(0.5)
        assert node.in_use()[0] == 25, f"reload {n}"
    with Client(node.port) as rival:
        assert rival.request(chat_body(1), headers=QA)[0].status == 429
    for client in clients:
        assert client.rest().endswith(b"data: [DONE]\n\n")
        client.fin()
    node.settled()
    assert node.metric("weir_leases_ended_total", verdict="completed") == 25
    wait_for(lambda: len(node.workers("nginx")) == 2, 10)
    assert engine.stats()["peak"] == 25


def test_all_workers_killed_at_once_leave_nothing_in_use(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "60s"})
    node.tolerated = ("exited on signal",)
    clients = streams(node, 20, frames=2_000)
    for pid, number in zip(node.workers("nginx"), (signal.SIGKILL, signal.SIGSEGV), strict=True):
        os.kill(pid, number)
    wait_for(lambda: node.in_use()[0] == 0)
    assert node.metric("weir_leases_ended_total", verdict="lost", witness="session") == 20
    wait_for(lambda: engine.stats()["active"] == 0)
    clients += streams(node, 25, frames=2_000)
    assert engine.stats()["peak"] == 25
    for client in clients:
        client.fin()
    node.settled()


def test_a_fast_stop_of_nginx_leaves_nothing_in_use(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """No log line, no log phase: casebook 6 b."""
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "60s"})
    node.tolerated = ("left in connection", "aborting")
    clients = streams(node, 10, frames=2_000)
    os.kill(node.pid("nginx"), signal.SIGTERM)
    wait_for(lambda: node.in_use()[0] == 0, 15)
    for client in clients:
        client.fin()
    wait_for(node.serves, 20)
    node.settled()


def test_a_stream_three_times_as_long_as_a_silent_session_lives_keeps_its_rival_out(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 16 a, and a service that is stopped for a while."""
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "3s"}, limits={"max_streams": 1})
    [client] = streams(node, 1, frames=180)
    refused = 0
    while engine.stats()["active"] == 1:
        with Client(node.port) as rival:
            status = rival.request(chat_body(1), headers=QA)[0].status
        if engine.stats()["active"] == 1:
            assert status == 429
            refused += 1
        time.sleep(0.3)
    assert refused > 9 and client.rest().endswith(b"data: [DONE]\n\n")
    assert engine.stats()["peak"] == 1
    client.fin()
    node.settled()


def test_a_worker_without_connections_left_refuses_in_words(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 7: a stream takes two, and what cannot be had must not be a 500."""
    engine = start_engine()
    node = start_node([engine.url], limits={"max_streams": 100, "max_tokens": 1_000_000})
    node.tolerated = ("worker_connections are not enough",)
    conf = node.state / "nginx/nginx.conf"
    text = re.sub(r"worker_connections \d+", "worker_connections 64", conf.read_text())
    conf.write_text(text.replace("worker_processes 2", "worker_processes 1"))
    reload(node)
    wait_for(lambda: len(node.workers("nginx")) == 1)
    clients = [Client(node.port) for _ in range(40)]
    seen = Counter[int]()
    for client in clients:
        try:
            seen[client.post(chat_body(2_000, gap_ms=50), headers=QA).head().status] += 1
        except OSError:
            seen[0] += 1
    assert seen[200] > 15 and not set(seen) - {0, 200, 429, 503}, seen
    wait_for(lambda: node.in_use()[0] == seen[200] == engine.stats()["active"])
    for client in clients:
        client.fin()
    node.settled()


def test_an_abort_of_an_old_workers_stream_is_told(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url])
    client = Client(node.port)
    client.post(chat_body(400, gap_ms=50, tag="old")).head()
    reload(node)
    left = client.fin()
    ended = wait_for(lambda: engine.ended("old"))[0]
    assert ended["how"] == "aborted" and ended["at"] - left < AT_ONCE_S
    node.settled()


def test_a_stream_cut_by_the_shutdown_timeout_is_given_back_once(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url], nginx={"shutdown_timeout": "1s"})
    client = Client(node.port)
    client.post(chat_body(400, gap_ms=50)).head()
    reload(node)
    with pytest.raises(ConnectionError):
        client.rest()
    node.settled()
    assert node.metric("weir_leases_ended_total", verdict="killed") == 1
    with Client(node.port) as next_one:
        assert next_one.request(chat_body(1))[0].status == 200
    node.settled()


def test_a_killed_workers_leases_end_with_its_session_and_nobody_elses(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """The third witness alone: the agent is stopped."""
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "3s"})
    node.tolerated = ("exited on signal 9",)
    os.kill(node.pid("agent"), signal.SIGSTOP)
    clients = [Client(node.port).post(chat_body(2_000, gap_ms=50), headers=QA) for _ in range(24)]
    for client in clients:
        assert client.head().status == 200
    owners = {lease["session"].split("/")[1] for lease in node.leases()}
    assert len(owners) == 2, "both workers serve"
    victim = int(owners.pop())
    mine = sum(lease["session"].split("/")[1] == str(victim) for lease in node.leases())
    os.kill(victim, signal.SIGKILL)
    wait_for(lambda: node.in_use()[0] == 24 - mine)
    time.sleep(3.5)
    assert node.in_use()[0] == 24 - mine
    assert node.metric("weir_leases_ended_total", verdict="lost", witness="session") == mine
    os.kill(node.pid("agent"), signal.SIGCONT)
    for client in clients:
        client.fin()
    node.settled()


def test_streams_that_are_stopped_with_their_node_close_at_the_engine(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url])
    client = Client(node.port)
    client.post(chat_body(2_000, gap_ms=50, tag="stop")).head()
    # `[alert] … open socket left in connection`: how nginx says that it was told not to wait.
    node.tolerated = ("left in connection", "aborting")
    node.stop(patience_s=3)
    assert engine.ended("stop")[0]["how"] == "aborted"
    client.fin()
