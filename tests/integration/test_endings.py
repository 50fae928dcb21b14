"""However an engine frames its answer and ends it, its end is seen for what it is.

With chunks and trailers, of an announced length, up to the connection's end; on routes with
heartbeats and without. Casebook 37, 38.
"""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from tests.harness.client import CHAT, Client, Response, chat_body, events_in
from tests.harness.h2client import H2Client
from tests.harness.node import Node, wait_for
from tests.harness.scripted import DONE, HEAD, LAST, Scripted, chunk

BEATS, STREAM, DIRECT, PATIENT = CHAT, "/api/v1/chat/stream", "/direct", "/patient"
ROUTES = [
    {"path": BEATS, "pool": "default", "heartbeat": "200ms"},
    {"path": STREAM, "pool": "default", "heartbeat": "200ms"},
    {"path": DIRECT, "pool": "default"},
    {"path": PATIENT, "pool": "default", "heartbeat": "2s"},
]
SILENCE_S = 2.5
PING = b": ping\n\n"
EVENT = b'data: {"n":1}\n\n'
ERROR = b'data: {"error":{"message":"full","code":503}}\n\n'
HALF = b'data: {"n":'
KIND = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n"
CLOSING = KIND + b"\r\n"
LATE = 1.0
OPEN = 20.0
"""An engine that does not close."""


def sized(size: int) -> bytes:
    return KIND + b"Content-Length: %d\r\n\r\n" % size


@pytest.fixture(scope="module")
def engine() -> Iterator[Scripted]:
    engine = Scripted()
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def node(engine: Scripted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(
        tmp_path_factory.mktemp("node"), [engine.url], routes=ROUTES,
        pool={"silence": f"{SILENCE_S * 1000:.0f}ms"}, limits={"max_tokens": 100_000_000},
    )  # fmt: skip
    yield node
    node.settled()
    node.stop()


def ended(node: Node, response: Response) -> str:
    """The verdict of what a client has got."""
    id_ = response.headers["x-request-id"]
    [line] = wait_for(lambda: [line for line in node.access_log() if line["id"] == id_])
    return str(line["verdict"])


def asked(node: Node, path: str) -> tuple[bytes, bool, str]:
    """What comes of a request without its comments, whether to its end, and the verdict."""
    with Client(node.port) as client:
        response = client.post(chat_body(), path=path).head()
        assert response.status == 200
        try:
            got, whole = client.rest(), True
        except ConnectionError:
            got, whole = client.body, False
    return got.replace(PING, b""), whole, ended(node, response)


def code_of(frame: bytes) -> str:
    [data] = events_in(frame)
    return str(json.loads(data)["error"]["code"])


@pytest.mark.parametrize("path", [BEATS, DIRECT])
@pytest.mark.parametrize(
    "parts",
    [
        (HEAD, chunk(EVENT + DONE), b"0\r\n", 0.1, b"\r\n"),
        (HEAD, chunk(EVENT + DONE), b"0\r\nDigest: x\r\n", 0.1, b"Expires: 0\r\n\r\n"),
        (HEAD, chunk(EVENT), chunk(DONE), 0.5, LAST),
        (CLOSING, EVENT, 0.5, DONE),
        (CLOSING, EVENT, DONE[:-2]),
        (LATE, CLOSING, EVENT, DONE),
        (sized(len(EVENT + DONE)), EVENT, 0.3, DONE, OPEN),
        (LATE, sized(len(EVENT + DONE)), EVENT, 0.1, DONE, OPEN),
        (KIND.replace(b"\r\n", b"\n") + b"\n", EVENT, DONE),
        (LATE, KIND.replace(b"\r\n", b"\n") + b"\n", EVENT, DONE),
    ],
    ids=["last-chunk-cut", "trailers", "late-end", "closing", "closing-without-line-feed",
         "late-closing", "sized", "late-sized", "line-feeds", "late-line-feeds"],
)  # fmt: skip
def test_a_whole_answer_is_whole(
    node: Node, engine: Scripted, path: str, parts: tuple[Any, ...]
) -> None:
    engine.parts = parts
    began = time.monotonic()
    got, whole, verdict = asked(node, path)
    assert got.rstrip(b"\n") == (EVENT + DONE).rstrip(b"\n")
    assert (whole, verdict) == (True, "completed")
    assert time.monotonic() - began < LATE + SILENCE_S, "its end is not waited for"


def test_nothing_is_added_after_the_terminator(node: Node, engine: Scripted) -> None:
    """Not a comment, and no failure of a connection that has nothing more to carry."""
    for terminator in (DONE, b'event: message_stop\ndata: {"type":"message_stop"}\n\n'):
        for after in ((0.5,), (OPEN,)):
            engine.parts = (HEAD, chunk(EVENT + terminator), *after)
            with Client(node.port) as client:
                response = client.post(chat_body()).head()
                try:
                    got = client.rest()
                except ConnectionError:
                    got = client.body
            while got.startswith(PING):  # the engine was late
                got = got.removeprefix(PING)
            assert got == EVENT + terminator
            assert ended(node, response) == "completed"


@pytest.mark.parametrize("path", [BEATS, DIRECT])
@pytest.mark.parametrize("late", [(), (LATE,)], ids=["early", "late"])
@pytest.mark.parametrize("head", [CLOSING, sized(1_000)], ids=["closing", "sized"])
def test_an_engine_without_chunks_that_dies_is_told_of(
    node: Node, engine: Scripted, path: str, late: tuple[Any, ...], head: bytes
) -> None:
    engine.parts = (*late, head, EVENT)
    got, _, verdict = asked(node, path)
    assert got.startswith(EVENT) and code_of(got.removeprefix(EVENT)) == "upstream_truncated"
    assert verdict == "upstream_truncated"
    engine.parts = (*late, head, EVENT, HALF, 0.1)
    assert asked(node, path) == (EVENT + HALF, False, "upstream_truncated")


@pytest.mark.parametrize("path", [BEATS, DIRECT])
def test_an_engine_that_breaks_http_is_not_taken_for_a_client_that_left(
    node: Node, engine: Scripted, path: str
) -> None:
    engine.parts = (HEAD, chunk(EVENT), 0.1, b"no size\r\n", OPEN)
    got, whole, verdict = asked(node, path)
    assert (got[: len(EVENT)], whole, verdict) == (EVENT, False, "upstream_truncated")


def test_half_an_event_at_the_connections_end_is_broken_off_over_http2(
    node: Node, engine: Scripted
) -> None:
    engine.parts = (CLOSING, EVENT, HALF, 0.1)
    client = H2Client(node.h2_port)
    assert client.post(chat_body(), path=DIRECT).rest() == EVENT + HALF
    assert client.reset is not None, "no clean end"
    client.close()


@pytest.mark.parametrize("path", [PATIENT, DIRECT])
def test_no_frame_makes_a_cut_answer_as_long_as_was_announced(
    node: Node, engine: Scripted, path: str
) -> None:
    engine.parts = (sized(len(EVENT) + 30), EVENT)
    assert asked(node, path) == (EVENT, False, "upstream_truncated")


@pytest.mark.parametrize("path", [BEATS, DIRECT])
@pytest.mark.parametrize("head", [HEAD, CLOSING], ids=["chunks", "closing"])
def test_an_error_event_before_the_end_is_what_counts(
    node: Node, engine: Scripted, path: str, head: bytes
) -> None:
    engine.parts = (head, chunk(EVENT + ERROR) if head == HEAD else EVENT + ERROR)
    got, _, verdict = asked(node, path)
    assert got.startswith(EVENT + ERROR) and verdict == "upstream_error"


@pytest.mark.parametrize("status", [b"400 Bad Request", b"500 Failed"])
@pytest.mark.parametrize("said", [b'{"error":{"message":"m","code":7}}', b""])
def test_a_late_refusal_is_not_waited_for_longer_than_it_takes(
    node: Node, engine: Scripted, status: bytes, said: bytes
) -> None:
    engine.parts = (
        LATE, b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(said), said), OPEN,
    )  # fmt: skip
    began = time.monotonic()
    got, whole, verdict = asked(node, BEATS)
    assert code_of(got) == ("7" if said else status.decode()[:3])
    assert (whole, verdict) == (True, "upstream_error")
    assert time.monotonic() - began < LATE + SILENCE_S


def test_an_upload_may_take_longer_than_an_engine_may_be_silent(
    node: Node, engine: Scripted
) -> None:
    engine.parts = (0.4, HEAD, chunk(EVENT + DONE), LAST)  # so long after the last of it
    body = chat_body(prompt="x" * 20_000)
    for path in (BEATS, DIRECT):
        with Client(node.port) as client:
            client.post(body[:100], path=path, length=len(body))
            for at in range(100, len(body), 1_000):
                client.socket.sendall(body[at : at + 1_000])
                time.sleep(SILENCE_S * 1.5 / 20)
            response = client.head()
            assert client.rest().replace(PING, b"") == EVENT + DONE, path
        assert ended(node, response) == "completed"


@pytest.mark.parametrize("path", [BEATS, STREAM, DIRECT])
def test_an_engine_that_reads_late_is_waited_for(
    node: Node, engine: Scripted, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "busy_s", 1.0)
    engine.parts = (1.0, HEAD, chunk(EVENT + DONE), LAST)  # it reads meanwhile
    with Client(node.port) as client:
        response = client.post(chat_body(prompt="x" * (5 << 20)), path=path).head()
        assert (response.status, client.rest().replace(PING, b"")) == (200, EVENT + DONE)
    assert ended(node, response) == "completed"
    assert "_failed error=" not in node.errors()


def test_a_body_that_comes_byte_by_byte_asks_for_a_stream_too(node: Node, engine: Scripted) -> None:
    engine.parts = (1.5, HEAD, chunk(EVENT + DONE), LAST)
    body = b'{"model":"m", "stream": true}'
    with Client(node.port) as client:
        client.post(length=len(body))
        for n in range(len(body)):
            client.socket.sendall(body[n : n + 1])
            time.sleep(0.005)
        client.head()
        assert client.rest().startswith(PING)


@pytest.mark.parametrize(
    ("path", "body", "beats"),
    [
        (STREAM, b'{"prompt":"x"}', True),
        (STREAM, b'{"prompt":"x","stream": false}', False),
        (BEATS, b'{"prompt":"x"}', False),
    ],
)
def test_who_need_not_ask_for_a_stream_is_covered_up_for_too(
    node: Node, engine: Scripted, path: str, body: bytes, beats: bool
) -> None:
    engine.parts = (1.5, HEAD, chunk(EVENT + DONE), LAST)
    with Client(node.port) as client:
        _, got = client.request(body, path=path)
    assert got.startswith(PING) is beats and got.endswith(EVENT + DONE)


@pytest.mark.parametrize("path", [BEATS, DIRECT])
def test_an_operators_cut_is_told_as_such_where_closing_is_the_end(
    node: Node, engine: Scripted, path: str
) -> None:
    engine.parts = (CLOSING, EVENT, OPEN)
    with Client(node.port) as client:
        response = client.post(chat_body(), path=path).head()
        id_ = response.headers["x-request-id"]
        wait_for(lambda: id_ in [lease["id"] for lease in node.leases()])
        requests.delete(f"{node.admin}/v1/leases/{id_}?cut=true", timeout=5).raise_for_status()
        try:
            got = client.rest()
        except ConnectionError:
            got = client.body
    assert code_of(got.replace(PING, b"").removeprefix(EVENT)) == "killed"
    assert ended(node, response) == "killed"
