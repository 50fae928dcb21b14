"""Clients that leave: the engine is told at once, and the room comes back once, after the drain.

Casebook 1, 2, 4, 8, 13.
"""

import os
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.harness.apart import Authority
from tests.harness.client import Client, chat_body
from tests.harness.h2client import H2Client
from tests.harness.node import AT_ONCE_S, IMPATIENT, Engine, Node, free_port, wait_for


def leave(client: Client | H2Client, how: str) -> float:
    if isinstance(client, H2Client):
        return client.cancel()
    return client.rst() if how == "rst" else client.fin()


def opened(node: Node, how: str, body: bytes, length: int | None = None) -> Client | H2Client:
    if how == "h2":
        return H2Client(node.h2_port).post(body, length=length)
    return Client(node.port).post(body, length=length)


def the_engine_saw(engine: Engine, tag: str) -> dict[str, object]:
    return dict(wait_for(lambda: engine.ended(tag))[0])


@contextmanager
def stopped_service(node: Node) -> Iterator[None]:
    [worker] = node.workers("admission")
    os.kill(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker, signal.SIGCONT)


@pytest.mark.parametrize("how", ["fin", "rst", "h2"])
def test_leaving_mid_stream(node: Node, engine: Engine, how: str) -> None:
    tag = f"mid-{how}"
    client = opened(node, how, chat_body(100, gap_ms=50, tag=tag))
    client.head()
    left = leave(client, how)
    ended = the_engine_saw(engine, tag)
    assert ended["how"] == "aborted"
    assert float(str(ended["at"])) - left < AT_ONCE_S
    node.settled()
    line = wait_for(lambda: [e for e in node.access_log() if e["id"] == ended["request_id"]])[0]
    # Casebook 1: the status of an abort is 200; what tells it is the completion.
    assert (line["status"], line["completion"], line["verdict"]) == ("200", "", "client_abort")


@pytest.mark.parametrize("how", ["fin", "rst", "h2"])
@pytest.mark.parametrize("late", [True, False], ids=["before-headers", "after-headers"])
def test_leaving_in_prefill(node: Node, engine: Engine, how: str, late: bool) -> None:
    tag = f"prefill-{how}-{late}"
    client = opened(node, how, chat_body(10, first_ms=5_000, late=late, tag=tag))
    wait_for(lambda: engine.stats()["active"] == 1)
    left = leave(client, how)
    ended = the_engine_saw(engine, tag)
    assert ended["how"] == "aborted"
    assert float(str(ended["at"])) - left < AT_ONCE_S
    node.settled()


@pytest.mark.parametrize("how", ["fin", "rst", "h2", "reused"])
@pytest.mark.parametrize("unread", [False, True], ids=["body-read", "body-unread"])
def test_leaving_while_asking_reaches_no_silent_engine(
    node: Node, engine: Engine, how: str, unread: bool
) -> None:
    """The client leaves while the decision is on its way, and the engine would be silent for
    long: it must not compute for nobody until its first byte."""
    tag = f"asking-{how}-{unread}"
    body = chat_body(10, first_ms=8_000, late=True, tag=tag)
    length = len(body) + (20_000 if unread else 0)
    began = time.time()
    if how == "reused":
        client: Client | H2Client = Client(node.port)
        assert isinstance(client, Client)
        client.request(chat_body(1, gap_ms=0))
    with stopped_service(node):
        if how == "reused":
            assert isinstance(client, Client)
            client.post(body, length=length)
        else:
            client = opened(node, how, body, length)
        time.sleep(0.05)
        leave(client, how)
        time.sleep(0.05)
    node.settled(6)
    wait_for(lambda: engine.stats()["active"] == 0, 2)
    assert time.time() - began < 7


def test_leaving_after_the_last_byte(node: Node) -> None:
    for _ in range(10):
        client = Client(node.port)
        client.request(chat_body(2, gap_ms=1))
        client.fin()
    node.settled()


def test_a_cancelled_stream_stays_counted_for_the_drain(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"drain": "3s"}, limits={"max_streams": 1})
    client = Client(node.port)
    client.post(chat_body(100)).head()
    left = client.fin()
    lease = wait_for(lambda: [e for e in node.leases() if e["state"] == "draining"])[0]
    assert lease["verdict"] == "client_abort" and lease["witness"] in ("lua", "log")
    backend = node.pool()["backends"][0]
    assert (backend["streams"], backend["draining"]) == (1, 1)
    with Client(node.port) as rival:
        assert rival.post(chat_body(1)).head().status == 429
    wait_for(lambda: node.in_use() == (0, 0))
    assert 2.9 < time.time() - left < 8
    with Client(node.port) as next_one:
        assert next_one.post(chat_body(1)).head().status == 200


def test_an_acquire_that_comes_after_its_release_takes_nothing(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 2: the service commits long after the client has gone and nginx given up."""
    node = start_node([start_engine().url], admission=IMPATIENT)
    with stopped_service(node):
        client = Client(node.port).post(chat_body(5))
        time.sleep(0.1)
        client.fin()
        time.sleep(0.5)
    node.settled()


@pytest.mark.parametrize("how", ["connection-close", "dripping"])
def test_a_finished_stream_frees_its_slot_before_a_lingering_close(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], how: str
) -> None:
    """Casebook 8 a and b: the client does not hang up, and the log phase waits for it."""
    engine = start_engine()
    node = start_node([engine.url], limits={"max_streams": 10})
    clients = []
    for _ in range(10):
        client = Client(node.port)
        client.request(chat_body(2, gap_ms=1), headers={"Connection": "close"})
        if how == "dripping":
            client.socket.sendall(b"x")
        clients.append(client)
    wait_for(lambda: node.in_use() == (0, 0), 1)
    with Client(node.port) as eleventh:
        assert eleventh.post(chat_body(1)).head().status == 200
    for client in clients:
        client.fin()


def test_an_engines_refusal_frees_the_slot_while_the_upload_still_hangs(node: Node) -> None:
    """Casebook 8 c: 100,000 bytes announced, 1,000 sent, and the engine answers at once."""
    client = Client(node.port)
    client.post(b'{"sim": 1}' + b" " * 990, length=100_000)
    wait_for(lambda: node.in_use()[0] == 1)
    left = client.fin()
    node.settled(4)
    assert time.time() - left < 4


def test_a_half_close_is_an_abort(node: Node, engine: Engine) -> None:
    """Casebook 13 d: nginx takes it for a client that has left; documented in docs/clients.md."""
    client = Client(node.port)
    client.post(chat_body(20, first_ms=3_000, late=True, tag="half"))
    wait_for(lambda: engine.stats()["active"] == 1)
    client.socket.shutdown(1)
    assert the_engine_saw(engine, "half")["how"] == "aborted"
    node.settled()
    client.fin()


@pytest.mark.parametrize("polite", [True, False])
def test_leaving_over_tls_with_a_word_or_without(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], tmp_path: Path,
    polite: bool,
) -> None:  # fmt: skip
    authority, port = Authority(tmp_path / "ca"), free_port()
    tls = {"listen": f"127.0.0.1:{port}", **authority.issue("node", "localhost")}
    node = start_node([start_engine().url], tls=tls)
    client = Client(port)
    context = ssl.create_default_context(cafile=str(authority.file))
    client.socket = context.wrap_socket(client.socket, server_hostname="localhost")
    client.post(chat_body(400, gap_ms=20)).head()
    client.events(1)
    if polite:
        with suppress(OSError):  # frames are under way, where the other side's word is waited for
            client.socket.unwrap()
    client.fin()
    node.settled()
    [line] = wait_for(lambda: [line for line in node.access_log() if line["verdict"]])
    assert line["verdict"] == "client_abort"


def test_320_streams_of_one_worker_closed_at_once_while_the_service_is_slow(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 4: releases in log-phase timers beyond lua_max_running_timers are dropped."""
    engine = start_engine("--kv-tokens", "3000000")
    node = start_node(
        [engine.url],
        nginx={"workers": 1},
        limits={"max_streams": 400, "max_tokens": 100_000_000},
    )
    clients = [Client(node.port).post(chat_body(2_000, gap_ms=200)) for _ in range(320)]
    for client in clients:
        assert client.head().status == 200
    assert node.in_use()[0] == 320
    with stopped_service(node):
        for client in clients:
            client.fin()
        time.sleep(1.5)
    node.settled(5)
    assert node.metric("weir_leases_ended_total", verdict="client_abort") == 320
