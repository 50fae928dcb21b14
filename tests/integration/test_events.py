"""What a node tells of: every life once, nothing lost to who comes back, slow readers dropped."""

import os
import re
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests

from control.chronicle.subscribers import ROUND_S, SLOW_S
from control.client import ServiceClient
from tests.harness.client import Client, chat_body
from tests.harness.events import EventReader, Told
from tests.harness.node import Engine, Node, wait_for
from tests.harness.scripted import HEAD, Scripted, chunk

Start = Callable[..., Any]
ROUTE = "/v1/chat/completions"
QA = {"X-Medical-Scene": "QA"}
EVENT = chunk(b'data: {"n":1}\n\n')
LIVES = (["granted", "ended"], ["granted", "draining", "ended"])


@pytest.fixture(scope="module")
def node(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node with room for whatever comes."""
    limits = {"max_streams": 100_000, "max_tokens": 1_000_000_000}
    node = Node(tmp_path_factory.mktemp("node"), [engine.url], limits=limits)
    yield node
    node.settled()
    node.stop()


@pytest.fixture
def read(node: Node) -> Iterator[Callable[..., EventReader]]:
    """Readers of the node's events that leave at the test's end."""
    readers: list[EventReader] = []

    def start(*arguments: Any, **query: Any) -> EventReader:
        readers.append(EventReader(node.admin, *arguments, **query))
        return readers[-1]

    yield start
    for reader in readers:
        reader.close()


class Load:
    """A gateway that takes and gives back leases as fast as it can, or at a pace."""

    def __init__(self, node: Node, batch: int = 50, pause_s: float = 0.0) -> None:
        self.granted: list[str] = []
        self.slowest_s = 0.0
        self._client = ServiceClient(f"unix:{node.state / 'run' / 'admission.sock'}", timeout_s=10)
        self._batch, self._pause_s = batch, pause_s
        self._session = f"load/{os.getpid()}/{time.time_ns()}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(20)
        self._client.close()

    def _run(self) -> None:
        n = 0
        while not self._stop.is_set():
            ids = [f"{self._session[-9:]}.{n}.{m}" for m in range(self._batch)]
            asked = [{"op": "acquire", "id": i, "route": ROUTE, "tokens": 1} for i in ids]
            done = [{"op": "release", "id": i, "verdict": "completed"} for i in ids]
            for ops in (asked, done):
                began = time.monotonic()
                self._client.batch(self._session, ops)
                self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.granted += ids
            n += 1
            self._stop.wait(self._pause_s)


def ask(node: Node, frames: int = 3, leave: bool = False, **sim: Any) -> str:
    """One stream to its end, or to the moment when its client leaves; its id."""
    with Client(node.port) as client:
        response = client.post(chat_body(frames, gap_ms=5, **sim), headers=QA).head()
        if leave:
            client.events(1)
        else:
            client.rest()
    return response.headers["x-request-id"]


def all_are_told(reader: EventReader, ids: list[str]) -> bool:
    return reader.over.issuperset(ids)


def test_every_life_is_told_once_and_in_order(node: Node, read: Callable[..., EventReader]) -> None:
    reader = read()
    granted = node.metric("weir_leases_granted_total")
    completed = [ask(node) for _ in range(10)]
    aborted = [ask(node, 2_000, leave=True) for _ in range(5)]
    failed = [ask(node, error_after=1)]
    killed_client = Client(node.port)
    killed = killed_client.post(chat_body(500, gap_ms=20), headers=QA).head()
    killed_id = killed.headers["x-request-id"]
    requests.delete(f"{node.admin}/v1/leases/{killed_id}?cut=true", timeout=10)
    everyone = [*completed, *aborted, *failed, killed_id]
    wait_for(lambda: all_are_told(reader, everyone))
    killed_client.fin()
    node.settled()
    for lease_id in (*completed, *failed):
        assert reader.life(lease_id) == LIVES[0]
    for lease_id in (*aborted, killed_id):
        assert reader.life(lease_id) == LIVES[1]
    verdicts = Counter(event.data["verdict"] for event in reader.of("ended"))
    assert verdicts == {"completed": 10, "client_abort": 5, "upstream_error": 1, "killed": 1}
    assert len(reader.of("granted")) == node.metric("weir_leases_granted_total") - granted == 17
    first = reader.of("granted")[0].data
    assert set(first) == {
        "at", "id", "pool", "backend", "scene", "tenant", "tokens", "session",
    }  # fmt: skip
    assert (first["scene"], first["pool"]) == ("QA", "default")
    assert all(abs(event.data["at"] - time.time()) < 60 for event in reader.told)
    ids = [event.id for event in reader.told]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_a_filter_leaves_the_rest_out(node: Node, read: Callable[..., EventReader]) -> None:
    everything, ends = read(), read(kinds="ended,limits", pool="default")
    lease_id = ask(node)
    wait_for(lambda: all_are_told(everything, [lease_id]) and all_are_told(ends, [lease_id]))
    assert {event.kind for event in ends.told} == {"ended"}
    assert ends.of("ended") == everything.of("ended")


@pytest.mark.parametrize(
    "query",
    ["kinds=nonsense", "kinds=granted,nonsense", "kinds=", "kinds=granted,", "pool=nonsense",
     "pool=", "last_event_id=x", "last_event_id=-1", "last_event_id=1e3", "last_event_id=9" * 2,
     "last_event_id=" + "9" * 40, "minutes=5"],
)  # fmt: skip
def test_a_query_that_makes_no_sense_is_400(node: Node, query: str) -> None:
    answer = requests.get(f"{node.admin}/v1/events?{query}", timeout=10, stream=True)
    with answer:
        assert answer.status_code == 400, query
        assert query.partition("=")[0] in answer.json()["detail"]


def test_a_changed_limit_is_told_with_who_changed_it(
    node: Node, read: Callable[..., EventReader]
) -> None:
    reader = read(kinds="limits")
    backend = f"{node.admin}/v1/pools/default/backends/gpu-0"
    for limit in (7, 7, 100_000):
        assert requests.patch(backend, json={"max_streams": limit}, timeout=10).ok
    wait_for(lambda: len(reader.told) >= 2)
    down, up = [event.data for event in reader.told]
    assert (down["pool"], down["backend"], down["who"]) == ("default", "gpu-0", "anyone")
    assert (down["before"]["max_streams"], down["after"]["max_streams"]) == (100_000, 7)
    assert up["before"] == down["after"] and up["after"] == down["before"]


def test_who_comes_back_under_load_loses_nothing_and_gets_nothing_twice(node: Node) -> None:
    told: list[Told] = []
    reader = EventReader(node.admin)
    with Load(node, batch=20, pause_s=0.01) as load:
        for n in range(12):
            time.sleep(0.2 + 0.05 * (n % 3))
            reader.close()
            told += reader.told
            reader = EventReader(node.admin, reader.last_id)
    wait_for(lambda: len(told) + len(reader.told) >= 2 * len(load.granted), 10)
    reader.close()
    told += reader.told
    lives = [event for event in told if event.data.get("id") in set(load.granted)]
    assert Counter(event.kind for event in lives) == {
        "granted": len(load.granted), "ended": len(load.granted),
    }  # fmt: skip
    ids = [event.id for event in told]
    assert ids == list(range(ids[0], ids[0] + len(ids)))


def test_who_comes_back_too_late_is_told_so(node: Node, read: Callable[..., EventReader]) -> None:
    first = read()
    first.close()
    assert first.last_id
    before = first.last_id
    with Load(node, batch=250) as load:
        wait_for(lambda: len(load.granted) > 6_000, 15)
    reader = read(before)
    wait_for(lambda: len(reader.told) > 10_000)
    gap = reader.told[0]
    assert gap.kind == "gap"
    assert gap.data["missed"] == gap.data["oldest"] - before - 1 > 0
    assert reader.told[1].id == gap.data["oldest"]


def test_a_reader_that_does_not_read_is_dropped_and_hurts_nobody(
    node: Node, read: Callable[..., EventReader]
) -> None:
    [worker] = node.workers("admission")
    slow = socket.create_connection(("127.0.0.1", node.admin_port), 10)
    slow.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
    quick = read()
    before = psutil.Process(worker).memory_info().rss
    with Load(node, batch=100, pause_s=0.02) as load:
        wait_for(lambda: len(load.granted) > 15_000, 60)  # 6 MB: the kernel's buffers are full
        time.sleep(SLOW_S + 2 * ROUND_S)
        grown = psutil.Process(worker).memory_info().rss - before
    assert load.slowest_s < SLOW_S, "nobody waits for it"
    assert grown < 30 << 20
    wait_for(lambda: all_are_told(quick, load.granted), 30)
    assert not quick.of("dropped") and not quick.of("gap")
    rest, slow_until = b"", time.monotonic() + 20
    while time.monotonic() < slow_until and (data := slow.recv(1 << 16)):
        rest += data
    slow.close()
    [dropped] = re.findall(rb'event: dropped\ndata: {"reason":"slow","missed":(\d+)}\n\n', rest)
    assert int(dropped) > 0
    assert rest.rstrip(b"0\r\n").endswith(b"}"), "it is the last that it is told"


def test_an_overload_of_refusals_is_summed(node: Node, read: Callable[..., EventReader]) -> None:
    backend = f"{node.admin}/v1/pools/default/backends/gpu-0"
    requests.patch(backend, json={"max_streams": 1}, timeout=10)
    reader = read(kinds="refused")
    client = ServiceClient(f"unix:{node.state / 'run' / 'admission.sock'}", timeout_s=10)
    session, n = f"over/1/{time.time_ns()}", 0
    client.batch(session, [{"op": "acquire", "id": "over.held", "route": ROUTE}])
    for n in range(20):
        ids = [f"over.{n}.{m}" for m in range(100)]
        client.batch(session, [{"op": "acquire", "id": i, "route": ROUTE} for i in ids])
    wait_for(lambda: sum(event.data.get("count", 1) for event in reader.told) >= 2_000)
    assert sum(event.data.get("count", 1) for event in reader.told) == 2_000
    assert len(reader.told) < 200
    assert {event.data["reason"] for event in reader.told} == {"streams_exhausted"}
    client.batch(session, [{"op": "release", "id": "over.held", "verdict": "completed"}])
    client.close()
    requests.patch(backend, json={"max_streams": 100_000}, timeout=10)


def test_history_adds_up(node: Node) -> None:
    ask(node)
    node.settled()
    shown = node.get("/v1/history")
    points = shown["points"]
    assert shown["step_s"] == 60 and shown["since"] <= time.time()
    assert sum(p["granted"] for p in points) == node.metric("weir_leases_granted_total")
    ended = sum((Counter(p["ended"]) for p in points), Counter[str]())
    assert ended["completed"] == node.metric("weir_leases_ended_total", verdict="completed")
    refused = sum(sum(p["refused"].values()) for p in points)
    outcomes = node.metric("weir_requests_total") - node.metric(
        "weir_requests_total", outcome="granted"
    )
    assert refused == outcomes
    assert max(p["pools"]["default"]["streams_max"] for p in points) >= 1
    for query in ("minutes=0", "minutes=61", "minutes=x"):
        assert requests.get(f"{node.admin}/v1/history?{query}", timeout=10).status_code == 400


def test_a_hundred_may_follow_and_places_come_back(node: Node) -> None:
    followers = []
    for _ in range(100):
        follower = socket.create_connection(("127.0.0.1", node.admin_port), 10)
        follower.sendall(b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert follower.recv(4_096).startswith(b"HTTP/1.1 200")
        followers.append(follower)
    answer = requests.get(f"{node.admin}/v1/events", timeout=10)
    assert (answer.status_code, answer.json()["code"]) == (503, "too_many_subscribers")
    assert int(answer.headers["Retry-After"]) > 0
    for follower in followers:
        follower.close()

    def has_room() -> bool:
        with requests.get(f"{node.admin}/v1/events", timeout=10, stream=True) as response:
            return response.ok

    wait_for(has_room)


# -- nodes of their own --------------------------------------------------------------------------


def reconnected(node: Node, last_id: int) -> EventReader:
    """Once the service answers again."""

    def attempt() -> EventReader | None:
        try:
            return EventReader(node.admin, last_id)
        except (requests.RequestException, AssertionError):
            return None

    reader = wait_for(attempt, 10)
    assert isinstance(reader, EventReader)
    return reader


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGHUP])
def test_over_a_restart_ids_grow_the_gap_is_told_and_each_life_is_told_once(
    start_engine: Start, start_node: Start, how: signal.Signals
) -> None:
    node = start_node([start_engine().url])
    first = EventReader(node.admin)
    before = [ask(node) for _ in range(3)]
    client = Client(node.port)
    response = client.post(chat_body(2_000, gap_ms=20), headers=QA).head()
    living = response.headers["x-request-id"]
    wait_for(lambda: first.life(living) == ["granted"] and all_are_told(first, before))
    if how is signal.SIGKILL:
        for pid in node.workers("admission"):
            os.kill(pid, how)
    else:
        os.kill(node.pid("admission"), how)
    assert first.ended.wait(15), "its stream ends with the service"
    assert first.last_id
    second = reconnected(node, first.last_id)
    after = [ask(node) for _ in range(3)]
    client.fin()
    wait_for(lambda: all_are_told(second, [*after, living]))
    gap = second.told[0]
    assert (gap.kind, gap.data["missed"]) == ("gap", None)
    assert gap.data["oldest"] > first.last_id
    ids = [event.id for event in (*first.told, *second.told)]
    assert ids == sorted(set(ids))
    for lease_id in (*before, *after, living):
        assert first.life(lease_id) + second.life(lease_id) in LIVES
    second.close()
    node.settled()


def test_a_node_that_falls_silent_and_speaks_again_is_told_of(
    start_engine: Start, start_node: Start
) -> None:
    node = start_node([start_engine().url])
    reader = EventReader(node.admin, 1, kinds="node")  # an id of long ago: from the beginning
    wait_for(lambda: [e.data["state"] for e in reader.of("node")] == ["up"], 10)
    up = psutil.Process(node.process.pid)
    [agent] = [p for p in up.children(recursive=True) if "agent" in p.cmdline()]
    agent.suspend()
    wait_for(lambda: [e.data["state"] for e in reader.of("node")] == ["up", "silent"], 10)
    agent.resume()
    wait_for(lambda: [e.data["state"] for e in reader.of("node")] == ["up", "silent", "up"], 10)
    reader.close()


def test_a_stream_that_is_stuck_shows_how_far_it_came_and_how_long_it_has_been_silent(
    start_node: Start, tmp_path: Path
) -> None:
    stuck, mute = Scripted(HEAD, EVENT, EVENT, 60.0), Scripted(60.0)
    node = start_node([stuck.url])
    node_of_mute = start_node([mute.url])
    clients = [Client(each.port) for each in (node, node_of_mute)]
    for client in clients:
        client.post(chat_body(), headers=QA)
    clients[0].head()

    def progress(of: Node, idle_s: float) -> Any:
        [lease] = of.leases()
        told = lease["progress"]
        return told if told and told["idle_s"] > idle_s else None

    assert node.leases()[0]["progress"] is None
    first = wait_for(lambda: progress(node, 4), 20)
    assert (first["events"], first["phase"]) == (2, "stream")
    assert first["bytes"] == len(b'data: {"n":1}\n\n') * 2
    assert 0 <= first["reported_s"] < 3
    silent = wait_for(lambda: progress(node_of_mute, 4), 20)
    assert (silent["bytes"], silent["events"], silent["phase"]) == (0, 0, "prefill")
    later = wait_for(lambda: progress(node, first["idle_s"] + 4), 20)
    assert later["bytes"] == first["bytes"]
    [lease] = node.leases()
    assert node.get(f"/v1/leases/{lease['id']}")["progress"]["events"] == 2
    for client in clients:
        client.fin()
    node.settled()
    node_of_mute.settled()
    stuck.stop()
    mute.stop()
