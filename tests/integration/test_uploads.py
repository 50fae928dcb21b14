"""A lease is granted before its request's body has come: an upload that drips must not hold it.

Casebook 31 d. The limits are small here, so that a minute takes seconds.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import h2.events
import pytest

from tests.harness.client import CHAT, Client, Response, chat_body, error_of
from tests.harness.h2client import H2Client
from tests.harness.node import Engine, Node, free_port, wait_for

GRACE_S = 2.5
RATE = 4 << 10
PREFILL_S = 3.0
BEATS, HASTY = "/beats", "/hasty"
QA = {"X-Medical-Scene": "QA"}
ENDED_WITHIN_S = 10.0
"""Within a few seconds, on a machine that has nothing else to do."""


@pytest.fixture(scope="module")
def node(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    roomy = {"max_streams": 100, "max_tokens": 1_000_000_000}
    nowhere = f"http://127.0.0.1:{free_port()}"
    node = Node(
        tmp_path_factory.mktemp("node"),
        [engine.url],
        nginx={"upload_grace": f"{GRACE_S}s", "slowest_upload": RATE},
        pools={
            "default": {
                "session_ttl": "2s",
                "backends": [{"name": "a", "url": engine.url, **roomy}],
            },
            "hasty": {"silence": "2s", "backends": [{"name": "a", "url": engine.url, **roomy}]},
            "limping": {
                "backends": [
                    {"name": "gone", "url": nowhere, **roomy},
                    {"name": "there", "url": engine.url, **roomy, "max_tokens": 50_000_000},
                ]
            },
        },
        routes=[
            {"path": CHAT, "pool": "default"},
            {"path": BEATS, "pool": "default", "heartbeat": "300ms"},
            {"path": HASTY, "pool": "hasty", "heartbeat": "300ms"},
            {"path": "/limping", "pool": "limping"},
        ],
    )
    yield node
    is_quiet(node)
    node.stop()


def is_quiet(node: Node) -> None:
    """Nothing is in use in any pool, and everything adds up."""
    pools = [f"/v1/pools/{name}" for name in ("default", "hasty", "limping")]
    wait_for(lambda: not any(node.get(pool)["streams"] for pool in pools))
    node.settled()


def timeouts(node: Node) -> float:
    return node.metric("weir_leases_ended_total", verdict="timeout")


class Drip:
    """A request whose body never ends, a byte now and then."""

    def __init__(self, node: Node, path: str = CHAT, chunked: bool = False, **headers: str) -> None:
        self.client = Client(node.port, timeout_s=ENDED_WITHIN_S)
        size = "Transfer-Encoding: chunked" if chunked else "Content-Length: 9999"
        lines = [f"POST {path} HTTP/1.1", "Host: test", size]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.client.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.piece = b"1\r\n \r\n" if chunked else b" "
        self.ended = threading.Event()
        threading.Thread(target=self._drip, daemon=True).start()

    def _drip(self) -> None:
        while not self.ended.wait(0.1):
            try:
                self.client.socket.sendall(self.piece)
            except OSError:
                return

    def answer(self) -> tuple[Response, bytes]:
        response = self.client.head()
        body = b""
        try:
            body = self.client.rest()
        except ConnectionError:
            body = self.client.body
        finally:
            self.ended.set()
            self.client.fin()
        return response, body


def is_refused(response: Response, body: bytes) -> None:
    assert (response.status, response.headers["x-weir-reason"]) == (408, "upload_timeout")
    error = error_of(body)
    assert (error["type"], error["code"]) == ("invalid_request_error", "upload_timeout")


def test_an_upload_that_drips_is_ended_and_its_slot_given_back(node: Node) -> None:
    before = timeouts(node)
    granted = node.metric("weir_leases_granted_total")
    drips = [
        Drip(node),
        Drip(node, chunked=True),
        Drip(node, BEATS),
        Drip(node, BEATS, chunked=True),
        Drip(node, "/limping"),
        Drip(node, "/limping", chunked=True),
    ]
    wait_for(lambda: node.metric("weir_leases_granted_total") >= granted + len(drips))
    for drip in drips:
        is_refused(*drip.answer())
    is_quiet(node)
    assert timeouts(node) == before + len(drips)
    lines = [line for line in node.access_log() if line["verdict"] == "timeout"]
    assert {line["status"] for line in lines[-len(drips) :]} == {"408"}


@pytest.mark.parametrize("chunked", [False, True])
def test_no_heartbeat_begins_the_answer_before_the_request_has_come(
    node: Node, chunked: bool
) -> None:
    """nginx takes an upload that was held up no further, once it has begun to answer."""
    is_refused(*Drip(node, BEATS, chunked, Accept="text/event-stream").answer())
    is_quiet(node)


@pytest.mark.parametrize("how", ["fin", "rst", "http2", "stream"])
def test_a_client_that_leaves_its_upload_on_a_route_with_heartbeats_has_left(
    node: Node, how: str
) -> None:
    def left() -> float:
        return node.metric("weir_leases_ended_total", verdict="client_abort")

    before = left()
    headers = {"accept": "text/event-stream"}
    if how in ("http2", "stream"):
        client = H2Client(node.h2_port)
        client.post(b"{", path=BEATS, length=9_999, headers=headers)
        wait_for(lambda: node.metric("weir_streams") == 1)
        time.sleep(0.5)  # some heartbeats
        client.cancel() if how == "stream" else client.close()
    else:
        other = Client(node.port).post(b"{", path=BEATS, length=9_999, headers=headers)
        wait_for(lambda: node.metric("weir_streams") == 1)
        time.sleep(0.5)
        other.fin() if how == "fin" else other.rst()
    is_quiet(node)
    assert left() == before + 1


class TwoStreams(H2Client):
    """What comes, told apart by its stream."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.came: defaultdict[int, bytes] = defaultdict(bytes)
        self.statuses: dict[int, int] = {}
        self.over: set[int] = set()

    def _take(self, event: Any) -> None:
        super()._take(event)
        match event:
            case h2.events.ResponseReceived():
                self.statuses[event.stream_id] = self.status
            case h2.events.DataReceived():
                self.came[event.stream_id] += event.data
            case h2.events.StreamEnded() | h2.events.StreamReset():
                self.over.add(event.stream_id)
        self.ended = len(self.over) == 2


def test_over_http2_the_streams_beside_it_go_on(node: Node) -> None:
    before = timeouts(node)
    client = TwoStreams(node.h2_port)
    client.post(chat_body(60, gap_ms=100), headers={"x-medical-scene": "QA"})
    beside = client.stream
    client.post(b"{", length=9_999)
    dripping = client.stream
    began = time.monotonic()
    while not client.over:
        have = len(client.came[beside])
        client.read_until(lambda seen=have: client.over or len(client.came[beside]) > seen)
        if not client.over:
            client.connection.send_data(dripping, b" ")
            client._flush()
    assert client.over == {dripping} and client.statuses[dripping] == 408
    assert error_of(client.came[dripping])["code"] == "upload_timeout"
    assert time.monotonic() - began > GRACE_S
    client.rest()
    assert client.statuses[beside] == 200
    assert client.came[beside].endswith(b"data: [DONE]\n\n")
    client.close()
    is_quiet(node)
    assert timeouts(node) == before + 1


def test_an_upload_that_stands_still_is_a_timeout_as_well(node: Node) -> None:
    before = timeouts(node)
    client = Client(node.port).post(b"{", length=9_999)
    assert client.closed()
    is_quiet(node)
    assert timeouts(node) == before + 1


def paced(client: Client, body: bytes, bytes_per_s: float) -> None:
    """Send evenly, whatever the machine does besides."""
    began, sent = time.monotonic(), 0
    while sent < len(body):
        due = min(len(body), int((time.monotonic() - began) * bytes_per_s) + 1)
        client.socket.sendall(body[sent:due])
        sent = due
        time.sleep(0.05)


def all_at_once(ask: Callable[[str], None], *paths: str) -> None:
    with ThreadPoolExecutor(len(paths)) as pool:
        list(pool.map(ask, paths))


def test_a_slow_upload_that_goes_on_arrives_whole(node: Node, engine: Engine) -> None:
    """On the last route for longer than its engine may be silent."""
    before = timeouts(node)

    def ask(path: str) -> None:
        prompt = "x" * int(3 * GRACE_S * 1.4 * RATE)
        body = chat_body(3, gap_ms=1, tag="slow", prompt=prompt)
        with Client(node.port) as client:
            client.post(path=path, headers=QA, length=len(body))
            paced(client, body, 1.4 * RATE)
            assert client.head().status == 200
            assert client.rest().endswith(b"data: [DONE]\n\n")

    all_at_once(ask, CHAT, BEATS, HASTY)
    ended = wait_for(lambda: len(found := engine.ended("slow")) == 3 and found)
    assert {stream["how"] for stream in ended} == {"completed"}
    assert timeouts(node) == before


def test_a_long_prefill_is_left_alone_however_slowly_its_request_came(node: Node) -> None:
    """The last of it comes after the grace, and far too late."""
    before = timeouts(node)

    def ask(path: str) -> None:
        body = chat_body(3, gap_ms=1, first_ms=PREFILL_S * 1_000, late=True)
        with Client(node.port) as client:
            client.post(body[:50], path=path, headers=QA, length=len(body))
            for first, last, pause_s in ((50, 60, 1.0), (60, 100, 1.0), (100, len(body), 1.0)):
                time.sleep(pause_s)
                began = time.monotonic()
                client.socket.sendall(body[first:last])
            assert client.head().status == 200
            assert client.rest().endswith(b"data: [DONE]\n\n")
            assert time.monotonic() - began > 0.9 * PREFILL_S

    all_at_once(ask, CHAT, BEATS)
    assert timeouts(node) == before


def test_with_a_rate_of_0_an_upload_may_drip(
    engine: Engine, start_node: Callable[..., Node]
) -> None:
    node = start_node(
        [engine.url],
        nginx={"upload_grace": "2s", "slowest_upload": 0},
        pool={"session_ttl": "2s"},
    )
    body = chat_body(1, gap_ms=1)
    with Client(node.port) as client:
        client.post(length=len(body))
        for at in range(0, len(body), 8):
            client.socket.sendall(body[at : at + 8])
            time.sleep(0.15)
        assert client.head().status == 200
        client.rest()
    node.settled()
    assert timeouts(node) == 0
