"""Ending a running stream from the admin plane, and taking a backend or a worker out of use."""

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import requests

from tests.harness.client import Client, chat_body, error_of
from tests.harness.h2client import H2Client
from tests.harness.node import Engine, Node, wait_for

CUT_WITHIN_S = 5.0
"""A worker is told with its next batch, a second apart at most, on a machine with time."""


def delete(node: Node, path: str) -> requests.Response:
    return requests.delete(f"{node.admin}{path}", timeout=10)


def cut(node: Node) -> str:
    """Cut the one live lease; its id."""
    [lease] = node.leases()
    response = delete(node, f"/v1/leases/{lease['id']}?cut=true")
    assert (response.status_code, response.json()) == (202, {"outcome": "cutting"})
    return str(lease["id"])


def cut_is_done(
    node: Node, engine: Engine, tag: str, since: float, within_s: float = CUT_WITHIN_S
) -> None:
    [ended] = wait_for(lambda: engine.ended(tag), within_s)
    assert ended["how"] == "aborted" and ended["at"] - since < within_s
    node.settled()


def killed(node: Node) -> float:
    return node.metric("weir_leases_ended_total", verdict="killed")


def test_a_stream_is_cut_at_both_ends(node: Node, engine: Engine) -> None:
    before = killed(node)
    with Client(node.port) as client:
        client.post(chat_body(2_000, gap_ms=20, tag="cut-1")).head()
        client.events(3)
        at = time.time()
        cut(node)
        with pytest.raises(ConnectionError):
            client.rest()
        assert time.time() - at < CUT_WITHIN_S
    cut_is_done(node, engine, "cut-1", at)
    assert killed(node) == before + 1
    wait_for(lambda: node.access_log()[-1]["verdict"] == "killed")


def test_a_stream_over_http2_is_cut_and_its_connection_goes_on(node: Node, engine: Engine) -> None:
    client = H2Client(node.h2_port)
    client.post(chat_body(2_000, gap_ms=20, tag="cut-2")).head()
    client.read_until(lambda: client.body.count(b"\n\n") > 2)
    at = time.time()
    cut(node)
    client.rest()
    assert client.reset is not None, "it is told that this is not the end"
    cut_is_done(node, engine, "cut-2", at)
    client.ended, client.body, client.status = False, b"", 0
    client.post(chat_body(2, gap_ms=1)).rest()
    assert client.status == 200 and client.body.endswith(b"data: [DONE]\n\n")
    client.close()
    node.settled()


def test_a_stream_in_prefill_is_cut_and_its_client_told(node: Node, engine: Engine) -> None:
    with Client(node.port) as client:
        client.post(chat_body(2, first_ms=60_000, late=True, tag="cut-3"))
        wait_for(lambda: engine.stats()["active"] == 1)
        at = time.time()
        cut(node)
        response = client.head()
        error = error_of(client.rest())
        assert (response.status, error["code"]) == (503, "killed")
    cut_is_done(node, engine, "cut-3", at)


def test_a_stalled_stream_is_cut(start_engine: Callable[..., Engine], start_node: Any) -> None:
    """Nothing passes that a body filter could stop."""
    engine = start_engine()
    node = start_node([engine.url], pool={"stall": "60s"})
    client = Client(node.port, receive_buffer=4_096)
    client.post(chat_body(100_000, gap_ms=0, payload="x" * 2_000, tag="stalled"))
    wait_for(lambda: engine.stats()["bytes_sent"] > 100_000)
    time.sleep(0.5)
    at = time.time()
    cut(node)
    cut_is_done(node, engine, "stalled", at, 2 * CUT_WITHIN_S)
    assert killed(node) == 1
    client.fin()


def test_cutting_what_is_not_there_is_404_and_twice_says_so(node: Node, engine: Engine) -> None:
    assert delete(node, "/v1/leases/none?cut=true").status_code == 404
    assert delete(node, "/v1/leases/none?cut=yes").json()["code"] == "invalid_parameter"
    client = Client(node.port)
    client.post(chat_body(2_000, gap_ms=20, tag="twice")).head()
    lease = cut(node)
    wait_for(lambda: engine.ended("twice"), CUT_WITHIN_S)
    node.settled()
    again = delete(node, f"/v1/leases/{lease}?cut=true")
    assert (again.status_code, again.json()) == (200, {"outcome": "already_released"})
    client.fin()


def test_cutting_one_stream_leaves_its_neighbours_alone(node: Node) -> None:
    clients = [Client(node.port) for _ in range(8)]
    for client in clients:
        client.post(chat_body(150, gap_ms=30), headers={"X-Medical-Scene": "QA"}).head()
    all_ids = {lease["id"] for lease in node.leases()}
    victims = node.leases()[::2]
    for lease in victims:
        delete(node, f"/v1/leases/{lease['id']}?cut=true")
    ends = []
    for client in clients:
        try:
            ends.append(client.rest().endswith(b"data: [DONE]\n\n"))
        except ConnectionError:
            ends.append(False)
        client.fin()
    assert ends.count(True) == 4
    cut_ids = {lease["id"] for lease in victims}
    wait_for(lambda: len([e for e in node.access_log() if e["id"] in all_ids]) == 8)
    ended = {line["id"]: line["verdict"] for line in node.access_log() if line["id"] in all_ids}
    assert {lease for lease, verdict in ended.items() if verdict == "killed"} == cut_ids
    assert list(ended.values()).count("completed") == 4
    node.settled()


def test_a_draining_backend_lets_its_streams_finish_and_takes_no_new_ones(
    start_engine: Callable[..., Engine], start_node: Any
) -> None:
    engines = [start_engine(), start_engine()]
    node = start_node([engine.url for engine in engines])
    clients = [Client(node.port).post(chat_body(60, gap_ms=30)) for _ in range(4)]
    for client in clients:
        assert client.head().status == 200
    url = f"{node.admin}/v1/pools/default/backends/gpu-0"
    assert requests.patch(url, json={"state": "draining"}, timeout=5).status_code == 200
    before = engines[0].stats()["total"]
    for _ in range(6):
        with Client(node.port) as client:
            assert client.request(chat_body(1, gap_ms=1))[0].status == 200
    assert engines[0].stats()["total"] == before
    for client in clients:
        assert client.rest().endswith(b"data: [DONE]\n\n")
        client.fin()
    node.settled()


def test_a_session_that_is_ended_by_mistake_has_its_streams_back(
    start_engine: Callable[..., Engine], start_node: Any
) -> None:
    engine = start_engine()
    node = start_node([engine.url])
    client = Client(node.port)
    client.post(chat_body(2_000, gap_ms=50)).head()
    [lease] = node.leases()
    response = delete(node, f"/v1/sessions/{lease['session']}")
    assert (response.status_code, response.json()) == (200, {"ended": [lease["id"]]})
    wait_for(lambda: [e["state"] for e in node.leases()] == ["active"], 3)
    assert node.leases()[0]["id"] == lease["id"]
    client.fin()
    node.settled()
    assert delete(node, "/v1/sessions/no/such/one").status_code == 404


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (b"{}", "nothing is changed"), (b'{"max_streams":0}', "max_streams"),
        (b'{"max_streams":true}', "max_streams"), (b'{"max_tokens":-1}', "max_tokens"),
        (b'{"max_tokens":1e400}', "max_tokens"), (b'{"state":"off"}', "state"),
        (b'{"max_stream":3}', "max_stream"), (b"[]", "object"), (b"\xff", "invalid"),
        (b"", "truncated"),
    ],
)  # fmt: skip
def test_a_change_that_cannot_be_is_400_in_words_and_changes_nothing(
    node: Node, body: bytes, fault: str
) -> None:
    before = node.pool()
    url = f"{node.admin}/v1/pools/default/backends/gpu-0"
    response = requests.patch(
        url, data=body, headers={"Content-Type": "application/json"}, timeout=5
    )
    assert response.status_code == 400 and fault in response.json()["detail"], response.text
    assert node.pool() == before


def test_a_backend_that_is_not_there_is_404_with_those_that_are(node: Node) -> None:
    for path in ("default/backends/x", "x/backends/gpu-0"):
        response = requests.patch(
            f"{node.admin}/v1/pools/{path}", json={"max_streams": 1}, timeout=5
        )
        assert response.status_code == 404 and "there are: " in response.json()["detail"]
    assert node.get("/v1/pools/default/backends/gpu-0")["name"] == "gpu-0"


def test_a_worker_that_is_killed_while_its_stream_is_being_cut(
    start_engine: Callable[..., Engine], start_node: Any
) -> None:
    engine = start_engine()
    node = start_node([engine.url], pool={"session_ttl": "2s"})
    node.tolerated = ("exited on signal 9",)
    client = Client(node.port)
    client.post(chat_body(2_000, gap_ms=50)).head()
    [lease] = node.leases()
    os.kill(int(lease["session"].split("/")[1]), signal.SIGSTOP)
    cut(node)
    os.kill(int(lease["session"].split("/")[1]), signal.SIGKILL)
    node.settled(4)
    client.fin()
