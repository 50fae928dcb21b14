"""`when_down: local`: nodes admit by themselves while the service is away, and never too many."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import requests

from tests.harness.client import Client, Response, chat_body, error_of
from tests.harness.node import IMPATIENT, Engine, Node, reload, wait_for

LIMIT = 10
POOL = {"when_down": "local", "session_ttl": "2s"}
LIMITS = {"max_streams": LIMIT, "max_tokens": 12_000}
QA = {"X-Medical-Scene": "QA"}


@pytest.fixture
def engine(start_engine: Callable[..., Engine]) -> Engine:
    return start_engine()


@pytest.fixture
def node(engine: Engine, start_node: Callable[..., Node]) -> Node:
    return start_node([engine.url], pool=POOL, limits=LIMITS, admission=IMPATIENT)


def begin(node: Node, count: int, frames: int = 1_000) -> list[tuple[Client, Response]]:
    """So many requests in the same instant."""
    begun: list[tuple[Client, Response]] = []

    def one() -> None:
        client = Client(node.port)
        try:
            response = client.post(chat_body(frames, gap_ms=40), headers=QA).head()
        except OSError:  # its worker was killed
            return
        begun.append((client, response))

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return begun


def statuses(begun: list[tuple[Client, Response]]) -> dict[int, int]:
    found = [response.status for _, response in begun]
    return {status: found.count(status) for status in sorted(set(found))}


def leave(begun: list[tuple[Client, Response]]) -> None:
    for client, _ in begun:
        client.fin()


@contextmanager
def paused(node: Node) -> Iterator[None]:
    everyone = [node.pid("admission"), *node.workers("admission")]
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in everyone:
            os.kill(pid, signal.SIGCONT)


def test_it_fills_the_limit_with_what_runs_already_and_the_service_takes_it_over(
    node: Node, engine: Engine
) -> None:
    before = begin(node, 4)
    assert statuses(before) == {200: 4}
    with paused(node):
        meanwhile = begin(node, 12)
        assert statuses(meanwhile) == {200: LIMIT - 4, 429: 12 - (LIMIT - 4)}
        refused = next(client for client, response in meanwhile if response.status == 429)
        error = error_of(refused.rest())
        assert (error["code"], error["weir"]["limit"]) == ("streams_exhausted", LIMIT)
        assert engine.stats()["active"] == LIMIT
    wait_for(lambda: node.in_use()[0] == LIMIT)
    assert {lease["scene"] for lease in node.leases()} == {"QA"}
    assert statuses(begin(node, 3)) == {429: 3}
    leave(before + meanwhile)
    node.settled()
    assert engine.stats()["peak"] == LIMIT


def test_a_killed_service_finds_what_was_admitted_without_it(node: Node, engine: Engine) -> None:
    everyone = [node.pid("admission"), *node.workers("admission")]
    for pid in everyone:
        os.kill(pid, signal.SIGKILL)
    meanwhile = begin(node, 15)
    assert statuses(meanwhile) == {200: LIMIT, 429: 5}
    wait_for(lambda: in_use(node) == LIMIT, 20)
    for _ in range(20):
        more = begin(node, 3)
        assert statuses(more) == {429: 3}
        leave(more)
        time.sleep(0.1)
    leave(meanwhile)
    node.settled()
    assert engine.stats()["peak"] == LIMIT


def in_use(node: Node) -> int:
    try:
        return node.in_use()[0]
    except requests.RequestException:
        return -1


def test_what_ends_meanwhile_makes_room_for_others(node: Node, engine: Engine) -> None:
    with paused(node):
        first = begin(node, LIMIT, frames=5)
        assert statuses(first) == {200: LIMIT}
        for client, _ in first:
            assert client.rest().endswith(b"data: [DONE]\n\n")
        second = begin(node, LIMIT)
        assert statuses(second) == {200: LIMIT}
        leave(second)
        wait_for(lambda: engine.stats()["active"] == 0)

        def room() -> bool:
            tried = begin(node, 1, frames=1)
            leave(tried)
            return statuses(tried) == {200: 1}

        wait_for(room, 4)
    node.settled()


def test_a_share_and_a_limit_that_was_lowered_live_are_kept_to(
    engine: Engine, start_node: Callable[..., Node]
) -> None:
    pool = {**POOL, "local_share": 0.5}
    node = start_node([engine.url], pool=pool, limits=LIMITS, admission=IMPATIENT)
    url = f"{node.admin}/v1/pools/default/backends/gpu-0"
    assert requests.patch(url, json={"max_streams": 6}, timeout=5).status_code == 200
    time.sleep(3)  # each worker is told with its next sync, a second apart at most
    with paused(node):
        meanwhile = begin(node, 8)
        assert statuses(meanwhile) == {200: 3, 429: 5}
    leave(meanwhile)
    node.settled()


def test_a_refusal_has_the_reason_that_the_service_would_give(node: Node) -> None:
    def refused(prompt: str = "发热三天") -> str:
        client = Client(node.port)
        client.post(chat_body(prompt=prompt), headers=QA).head()
        return str(error_of(client.rest())["code"])

    url = f"{node.admin}/v1/pools/default/backends/gpu-0"
    for state, reason in (("draining", "draining"), ("disabled", "no_backend")):
        assert requests.patch(url, json={"state": state}, timeout=5).status_code == 200
        wait_for(lambda wanted=reason: refused() == wanted)  # the service has been found again
        time.sleep(3)  # each worker is told with its next sync, a second apart
        with paused(node):
            assert [refused() for _ in range(4)] == [reason] * 4
    assert requests.patch(url, json={"state": None}, timeout=5).status_code == 200
    more_than_ever_fits = "x" * 30_000
    wait_for(lambda: refused(more_than_ever_fits) == "request_too_large")
    time.sleep(3)
    with paused(node):
        assert refused(more_than_ever_fits) == "request_too_large"
    node.settled()


def test_tokens_are_counted_as_well(engine: Engine, start_node: Callable[..., Node]) -> None:
    limits = {"max_streams": 25, "max_tokens": 5_600}
    node = start_node([engine.url], pool=POOL, limits=limits, admission=IMPATIENT)
    with paused(node):
        meanwhile = begin(node, 8)
        assert statuses(meanwhile) == {200: 5, 429: 3}
        refused = next(client for client, response in meanwhile if response.status == 429)
        assert error_of(refused.rest())["code"] == "tokens_exhausted"
    leave(meanwhile)
    node.settled()


def test_what_a_killed_worker_held_is_not_counted_for_ever(node: Node, engine: Engine) -> None:
    node.tolerated = ("exited on signal 9",)
    before = begin(node, 6)
    assert statuses(before) == {200: 6}
    with paused(node):
        killed = set(node.workers("nginx"))
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: engine.stats()["active"] == 0)
        wait_for(lambda: len(set(node.workers("nginx")) - killed) == 2)
        time.sleep(1)  # they have begun, and the pool's drain is over
        meanwhile = begin(node, 12)
        assert statuses(meanwhile) == {200: LIMIT, 429: 2}
    leave(before + meanwhile)
    node.settled()
    assert engine.stats()["peak"] <= LIMIT


def test_a_service_that_is_only_slow_at_times_never_makes_it_one_too_many(
    node: Node, engine: Engine
) -> None:
    """Both decide, in turn: what one of them admitted the other may not know yet."""
    stop = threading.Event()

    def pauses() -> None:
        while not stop.is_set():
            with paused(node):
                time.sleep(0.4)
            time.sleep(0.3)

    pausing = threading.Thread(target=pauses)
    pausing.start()
    until = time.monotonic() + 8
    served = 0
    while time.monotonic() < until:
        begun = begin(node, 20, frames=3)
        for client, _ in begun:
            client.rest()  # an engine that is left may see it after the drain, on a busy machine
        leave(begun)
        served += statuses(begun).get(200, 0)
    stop.set()
    pausing.join()
    assert served > 50 and engine.stats()["peak"] <= LIMIT
    node.settled()


def test_a_connection_that_was_open_before_a_reload_brings_its_request_after_it(
    node: Node, engine: Engine
) -> None:
    """Its worker held nothing, and had ended its conversation with the service."""
    late = Client(node.port)
    time.sleep(0.2)
    reload(node)
    time.sleep(1.2)
    assert late.post(chat_body(1_000, gap_ms=40), headers=QA).head().status == 200
    wait_for(lambda: node.in_use()[0] == 1)
    late.fin()
    node.settled()


def test_a_killed_workers_engines_have_their_time_to_notice(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine("--step", "400ms")
    pool = {**POOL, "drain": "1s"}
    node = start_node([engine.url], pool=pool, limits=LIMITS, admission=IMPATIENT)
    node.tolerated = ("exited on signal 9",)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            held.extend(begin(node, 3))

    held: list[tuple[Client, Response]] = []
    with paused(node):
        held += begin(node, LIMIT)
        asking = threading.Thread(target=ask)
        asking.start()
        time.sleep(0.3)
        os.kill(node.workers("nginx")[0], signal.SIGKILL)
        time.sleep(2.5)
        stop.set()
        asking.join()
        assert engine.stats()["peak"] == LIMIT
    leave(held)
    node.settled()
