"""Engines that die or fall silent, clients that do not read: one honest outcome on both sides.

Casebook 12, 13, 38.
"""

import json
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from h2.settings import SettingCodes

from tests.harness.client import Client, chat_body, events_in
from tests.harness.h2client import H2Client
from tests.harness.netns import in_namespace
from tests.harness.node import Engine, Node, wait_for
from tests.harness.scripted import HEAD, Scripted, chunk

Play = Callable[..., tuple[Node, Scripted]]
QA = {"X-Medical-Scene": "QA"}
EVENT = chunk(b'data: {"n":1}\n\n')


def verdict(node: Node) -> str:
    """Of the last request to an engine."""
    [*_, last] = wait_for(lambda: [line for line in node.access_log() if line["route"]])
    return str(last["verdict"])


def read_to_the_break(node: Node, http: int) -> bytes:
    """All that comes before the connection, or the HTTP/2 stream, is broken off."""
    if http == 2:
        with_h2 = H2Client(node.h2_port)
        got = with_h2.post(chat_body()).rest()
        assert with_h2.reset is not None, "no clean end"
        with_h2.close()
        return got
    client = Client(node.port)
    client.post(chat_body()).head()
    with pytest.raises(ConnectionError):
        client.rest()
    return client.body


@pytest.mark.parametrize("http", [1, 2])
def test_an_engine_that_dies_between_events_is_told_of_in_a_frame(play: Play, http: int) -> None:
    node, _ = play(HEAD, EVENT, 0.3)
    [event, frame] = events_in(read_to_the_break(node, http))
    assert event == '{"n":1}'
    assert json.loads(frame)["error"]["code"] == "upstream_truncated"
    assert verdict(node) == "upstream_truncated"
    node.settled()


@pytest.mark.parametrize("http", [1, 2])
def test_an_engine_that_dies_within_an_event_has_nothing_added(play: Play, http: int) -> None:
    node, _ = play(HEAD, EVENT, chunk(b'data: {"n":'), 0.3)
    assert read_to_the_break(node, http).endswith(b'data: {"n":')
    assert verdict(node) == "upstream_truncated"
    node.settled()


def test_an_engine_that_falls_silent_mid_stream_is_given_up(play: Play) -> None:
    node, engine = play(HEAD, EVENT, 60.0, pool={"silence": "1s"})
    [_, frame] = events_in(read_to_the_break(node, 1))
    assert json.loads(frame)["error"]["code"] == "timeout"
    assert verdict(node) == "timeout"
    wait_for(lambda: engine.left_at)
    node.settled()


@pytest.mark.parametrize(
    ("sim", "outcome"),
    [
        ({"error_after": 3}, "upstream_error"),  # an error event, then [DONE] and a clean end
        ({"error_after": 0}, "upstream_error"),  # 200, and a refusal as the first event
        ({"terminates": False}, "upstream_truncated"),
        ({}, "completed"),
    ],
)
def test_what_engines_pretend_is_told_apart(
    start_engine: Callable[..., Engine],
    start_node: Callable[..., Node],
    sim: dict[str, Any],
    outcome: str,
) -> None:
    engine = start_engine()
    node = start_node([engine.url])
    with Client(node.port) as client:
        response, _ = client.request(chat_body(5, gap_ms=1, **sim))
    assert response.status == 200
    assert verdict(node) == outcome
    node.settled()
    assert node.metric("weir_leases_ended_total", verdict=outcome) == 1


def endless(tag: str) -> bytes:
    """A request whose answer is more than all buffers hold."""
    return chat_body(100_000, gap_ms=0, payload="x" * 2_000, tag=tag)


def stalled(node: Node, http: int, tag: str) -> Any:
    """A client that asks for more than all buffers hold, and reads nothing."""
    body = endless(tag)
    if http == 2:
        return H2Client(node.h2_port).post(body, headers={"x-medical-scene": "QA"})
    return Client(node.port, receive_buffer=4_096).post(body, headers=QA)


@pytest.mark.parametrize("http", [1, 2])
def test_a_client_that_reads_nothing_is_cut_and_its_room_given_back(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], http: int
) -> None:
    engine = start_engine("--kv-tokens", "1000000")
    node = start_node([engine.url], pool={"stall": "2s"})
    began = time.monotonic()
    client = stalled(node, http, "stall")
    wait_for(lambda: engine.ended("stall"), 20)
    assert 1.9 < time.monotonic() - began < 15  # 30 s, were it not set
    node.settled()
    assert verdict(node) == "timeout"
    assert node.metric("weir_leases_ended_total", verdict="timeout") == 1
    client.close() if http == 2 else client.fin()


def stalled_with_a_large_window(node: Node, tag: str) -> H2Client:
    """It is the connection that takes nothing: what waits for it cannot be taken back."""
    client = H2Client(node.h2_port)
    client.connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 1 << 30})
    client.connection.increment_flow_control_window(1 << 30)
    return client.post(endless(tag), headers={"x-medical-scene": "QA"})


def test_an_http_2_client_with_a_large_window_that_reads_nothing_is_cut_as_soon(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine("--kv-tokens", "1000000")
    node = start_node([engine.url], pool={"stall": "2s"}, admission={"budget": "5s"})
    client = stalled_with_a_large_window(node, "wide")
    wait_for(lambda: engine.stats()["bytes_sent"] > 300_000)
    wait_for(lambda: engine.ended("wide"), 20)
    node.settled(20)
    assert verdict(node) == "timeout"
    client.close()


@pytest.mark.parametrize("then", ["reads", "closes"])
def test_what_an_http_2_client_does_after_it_was_cut_is_no_leaving(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], then: str
) -> None:
    """nginx logs the stream when its last frame has gone, or the connection has."""
    engine = start_engine("--kv-tokens", "1000000")
    pools = {
        name: {"backends": [{"name": "gpu-0", "url": engine.url}], "stall": stall}
        for name, stall in (("default", "2s"), ("other", "1m"))
    }
    node = start_node([], pools=pools, admission={"budget": "5s"})
    client = stalled_with_a_large_window(node, "wide")
    wait_for(lambda: engine.ended("wide"), 20)
    time.sleep(0.5)
    client.rest() if then == "reads" else client.close()
    node.settled()
    assert verdict(node) == "timeout"
    client.close()


def test_a_client_that_leaves_a_stalled_stream_has_left(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine("--kv-tokens", "1000000")
    node = start_node([engine.url], pool={"stall": "20s"})
    client = stalled(node, 1, "left")
    wait_for(lambda: engine.stats()["bytes_sent"] > 50_000)
    time.sleep(1)
    client.rst()
    wait_for(lambda: engine.ended("left"))
    node.settled()
    assert verdict(node) == "client_abort"


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_an_http_2_client_that_leaves_while_the_engine_pauses_has_left(
    play: Play, how: str
) -> None:
    """It had read all there was: what lasted longer than `stall` is the engine's pause."""
    node, engine = play(HEAD, EVENT, 60.0, pool={"stall": "1s"}, admission={"budget": "5s"})
    client = H2Client(node.h2_port).post(chat_body())
    client.read_until(lambda: client.body)
    time.sleep(1.5)
    client.cancel() if how == "cancel" else client.close()
    wait_for(lambda: engine.left_at)
    node.settled()
    assert verdict(node) == "client_abort"
    assert node.metric("weir_client_aborts_total", phase="stream") == 1


def test_an_http_2_client_that_cancels_and_then_reads_nothing_for_long_has_left(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """The log of its stream waits for frames that wait for its connection."""
    engine = start_engine("--kv-tokens", "1000000")
    node = start_node([engine.url], pool={"stall": "5s"}, admission={"budget": "5s"})
    client = stalled_with_a_large_window(node, "left")
    wait_for(lambda: engine.stats()["bytes_sent"] > 300_000)
    client.cancel()
    wait_for(lambda: engine.ended("left"))
    node.settled(30)
    assert verdict(node) == "client_abort"
    client.close()


def test_an_http_2_client_that_closes_after_having_read_little_for_long_has_left(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Each little that it reads gives it `stall` anew, and nothing more is taken of the engine."""
    engine = start_engine("--kv-tokens", "1000000")
    node = start_node([engine.url], pool={"stall": "3s"}, admission={"budget": "5s"})
    client = stalled(node, 2, "left")
    wait_for(lambda: engine.stats()["bytes_sent"] > 50_000)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        client.connection.increment_flow_control_window(100, client.stream)
        client.connection.increment_flow_control_window(100)
        client.socket.sendall(client.connection.data_to_send())
        time.sleep(0.2)
    assert not engine.ended("left")
    client.close()
    wait_for(lambda: engine.ended("left"))
    node.settled()
    assert verdict(node) == "client_abort"


def test_a_slow_client_that_reads_is_left_alone(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine("--kv-tokens", "1000000")
    node = start_node([engine.url], pool={"stall": "3s"})
    client = Client(node.port, receive_buffer=4_096)
    client.post(chat_body(150, gap_ms=0, payload="x" * 2_000, tag="slow"), headers=QA).head()
    until = time.monotonic() + 7
    while time.monotonic() < until:
        client.events(3)
        time.sleep(0.2)
    assert client.rest().endswith(b"data: [DONE]\n\n")
    client.fin()
    node.settled()
    assert verdict(node) == "completed"


def test_clients_that_leave_are_counted_by_how_far_they_had_come(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url])

    def left(phase: str) -> float:
        return node.metric("weir_client_aborts_total", phase=phase)

    client = Client(node.port).post(chat_body(5, first_ms=60_000, late=True))
    wait_for(lambda: engine.stats()["active"] == 1)
    client.fin()
    wait_for(lambda: left("prefill") == 1)
    client = Client(node.port).post(chat_body(5, first_ms=60_000))
    client.head()
    client.fin()
    wait_for(lambda: left("prefill") == 2)  # headers are no first byte
    client = Client(node.port).post(chat_body(500, gap_ms=20))
    client.head()
    client.events(2)
    client.fin()
    wait_for(lambda: left("stream") == 1)
    node.settled()


@pytest.mark.parametrize("count", [20])
def test_twenty_stalled_clients_cost_no_memory_that_grows_and_block_the_engine(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], count: int
) -> None:
    engine = start_engine("--kv-tokens", "10000000")
    node = start_node([engine.url], pool={"stall": "10s"}, limits={"max_tokens": 10_000_000})
    clients = [stalled(node, 1, f"s{n}") for n in range(count)]
    wait_for(lambda: node.in_use()[0] == count)

    def memory() -> int:
        return sum(psutil.Process(p).memory_full_info().uss for p in node.workers("nginx"))

    def all_stands_still() -> bool:
        """The engine is blocked, and nothing grows."""
        before, sent = memory(), engine.stats()["bytes_sent"]
        time.sleep(1)
        return (
            memory() - before < 1 << 20
            and engine.stats()["bytes_sent"] - sent < 2_000
            and node.in_use()[0] == count
        )

    wait_for(all_stands_still, 8)  # before they are cut
    node.settled(20)
    assert node.metric("weir_leases_ended_total", verdict="timeout") == count
    for client in clients:
        client.fin()


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace needs root")


@needs_root
def test_with_the_kernel_settings_of_the_fleet_an_engine_is_blocked_after_256_kb() -> None:
    """From the engine's own buffer to the client's, which takes 4 KB in this test."""
    figures = in_namespace("held", ship=True)
    assert figures["sent_each"] < 256 << 10, figures
    assert figures["towards_client"] < 64 << 10, figures
    assert figures["receives"] >= 1 << 20, "uploads over a slow link have a window of their own"


@needs_root
def test_a_client_that_vanished_without_a_word_is_found_within_45_seconds() -> None:
    figures = in_namespace("vanished")
    assert figures["noticed_s"] < 45, figures
    assert figures["verdict"] in ("client_abort", "timeout")
