"""Routes with `heartbeat`: a silent engine is covered up for, and all else is as without.

Casebook 13, 37, 38.
"""

import contextlib
import json
import random
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import psutil
import pytest

from tests.harness.client import CHAT, Client, chat_body, error_of, events_in
from tests.harness.h2client import H2Client
from tests.harness.node import AT_ONCE_S, Engine, Node, wait_for
from tests.harness.scripted import DONE, HEAD, LAST, Scripted, chunk

DIRECT = "/direct"
BEAT_S = 0.3
PING = b": ping\n\n"
ROUTES = [
    {"path": CHAT, "pool": "default", "heartbeat": f"{BEAT_S * 1000:.0f}ms"},
    {"path": DIRECT, "pool": "default"},
]
QA = {"X-Medical-Scene": "QA"}


@pytest.fixture(scope="module")
def node(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    node = Node(tmp_path_factory.mktemp("node"), [engine.url], routes=ROUTES)
    yield node
    node.settled()
    node.stop()


Play = Callable[..., tuple[Node, Scripted]]


@pytest.fixture
def beats(play: Play) -> Play:
    """A node with heartbeats before an engine that plays what it is told."""
    return lambda *parts, **settings: play(*parts, routes=ROUTES, **settings)


def answered(node: Node, body: bytes, **options: Any) -> bytes:
    with Client(node.port, timeout_s=20) as client:
        response, got = client.request(body, headers=QA, **options)
        assert response.status == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return got


@pytest.mark.parametrize("late", [False, True])
def test_a_silent_engine_is_covered_up_for(node: Node, late: bool) -> None:
    body = chat_body(3, gap_ms=1, first_ms=2_500, late=late)
    began = time.monotonic()
    with Client(node.port) as client:
        client.post(body, headers=QA)
        assert client.head().status == 200
        if late:
            assert 0.2 < time.monotonic() - began < 2.4, "the first beat begins the answer"
        got = client.rest()
        took = time.monotonic() - began
    assert 3 <= got.count(PING) <= took / BEAT_S + 1
    assert got.replace(PING, b"").count(b"data: ") == 5 and got.endswith(DONE)
    node.settled()


def test_apart_from_the_comments_every_byte_is_the_engines(beats: Play) -> None:
    events = [
        f'data: {{"n":{n},"text":"发热{"x" * (n * 37)}"}}\r\n\r\n'.encode() for n in range(80)
    ]
    random.seed(7)
    pieces: list[bytes] = []
    stalls = set()
    for n, event in enumerate([*events, DONE]):
        rest = event
        while rest:
            size = random.choice([1, 2, 3, 50, 700, 5_000])
            pieces.append(rest[:size])
            rest = rest[size:]
        if n % 20 == 0:
            stalls.add(len(pieces))
    parts: list[bytes | float] = [HEAD]
    for n, piece in enumerate(pieces):
        if n in stalls or n % 60 == 0:
            parts.append(0.6)
        cut = random.randrange(1, 6)
        parts += [chunk(piece)[:cut], chunk(piece)[cut:]]
    node, _ = beats(*parts, LAST)
    got = answered(node, chat_body())
    assert got.replace(PING, b"") == b"".join([*events, DONE])
    assert 1 <= got.count(PING) <= 20
    node.settled()


@pytest.mark.parametrize("border", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_beats_come_between_events_and_never_within_one(beats: Play, border: bytes) -> None:
    """Stalls in a word, between two lines, between two chunks of an event, in a chunk's size."""
    line = border[: len(border) // 2]
    first = b'data: {"choices":[{"delta":{"content":"he'
    event = chunk(first), 0.8, chunk(b'llo"}}]}'), 0.8, chunk(line + b"id: 7"), 0.8, chunk(border)
    node, _ = beats(HEAD, *event, 1.5, chunk(DONE)[:1], 0.8, chunk(DONE)[1:], LAST)
    got = answered(node, chat_body())
    whole = first + b'llo"}}]}' + line + b"id: 7" + border
    pings = b"(?:: ping\n\n)"  # some before it, where the engine was held up
    assert re.fullmatch(pings + b"*" + re.escape(whole) + pings + b"+" + re.escape(DONE), got)
    node.settled()


def test_the_openai_client_reads_the_right_text(beats: Play) -> None:
    def event(text: str) -> bytes:
        delta = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return f"data: {json.dumps({**head, **delta})}\n\n".encode()

    cut = event("热三天")
    node, _ = beats(
        1.0, HEAD, chunk(event("发")), 1.0, chunk(cut[:60]), 1.0, chunk(cut[60:]), 1.0,
        chunk(DONE), LAST,
    )  # fmt: skip
    client = openai.OpenAI(base_url=f"{node.url}/v1", api_key="x", max_retries=0)
    stream = client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "?"}], stream=True
    )
    assert "".join(part.choices[0].delta.content or "" for part in stream) == "发热三天"
    node.settled()


def test_what_is_no_stream_is_passed_as_it_is_and_waited_for(node: Node) -> None:
    body = json.loads(chat_body(5, gap_ms=200, prompt='say "stream": true'))
    with Client(node.port) as client:
        asked = json.dumps({**body, "stream": False}).encode()
        response, got = client.request(asked, headers=QA)
    assert (response.status, response.headers["content-type"]) == (200, "application/json")
    assert len(json.loads(got)["choices"]) == 1
    node.settled()


@pytest.mark.parametrize("early", [True, False])
def test_an_engines_refusal_keeps_its_status_until_an_answer_was_begun(
    play: Play, early: bool
) -> None:
    said = b'{"error":{"message":"too long","type":"invalid","code":"context_length"}}'
    refusal = b"HTTP/1.1 400 Bad\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
    routes = [{"path": CHAT, "pool": "default", "heartbeat": "30s" if early else "300ms"}]
    node, _ = play(0.05 if early else 2.0, refusal % (len(said), said), routes=routes)
    with Client(node.port) as client:
        response, got = client.request(chat_body(), headers=QA)
    if early:
        assert (response.status, got) == (400, said)
    else:
        assert response.status == 200
        [frame] = events_in(got.replace(PING, b""))
        assert json.loads(frame) == json.loads(said), "and no terminator"
        wait_for(lambda: node.access_log()[-1]["verdict"] == "upstream_error")
    node.settled()


def test_an_engine_that_dies_between_events_is_told_of_in_a_frame(beats: Play) -> None:
    node, _ = beats(HEAD, chunk(b'data: {"n":1}\n\n'), 0.5)
    got = answered(node, chat_body())
    [event, frame] = events_in(got.replace(PING, b""))
    assert event == '{"n":1}'
    assert json.loads(frame)["error"]["code"] == "upstream_truncated"
    wait_for(lambda: node.access_log()[-1]["verdict"] == "upstream_truncated")
    node.settled()


def test_an_engine_that_dies_within_an_event_leaves_no_end_that_looks_like_one(beats: Play) -> None:
    node, _ = beats(HEAD, chunk(b'data: {"n":1}\n\ndata: {"n":'), 0.5)
    client = Client(node.port)
    client.post(chat_body(), headers=QA).head()
    with pytest.raises(ConnectionError):
        client.rest()
    wait_for(lambda: node.access_log()[-1]["verdict"] == "upstream_truncated")
    node.settled()


@pytest.mark.parametrize("http", [1, 2])
def test_the_room_of_an_engine_that_dies_after_an_answer_was_begun_for_it_drains(
    beats: Play, http: int
) -> None:
    """What it had begun it may still have: nginx knows only that its connection has closed."""
    node, _ = beats(3.0, pool={"drain": "5s"})
    client: Any = H2Client(node.h2_port) if http == 2 else Client(node.port)
    client.post(chat_body(), headers={"x-medical-scene": "QA"}).head()
    [frame] = events_in(client.rest().replace(PING, b""))
    assert json.loads(frame)["error"]["code"] == "upstream_truncated"
    [backend] = wait_for(lambda: [b for b in node.pool()["backends"] if b["draining"]])
    assert backend["streams"] == 1
    wait_for(lambda: node.access_log()[-1]["verdict"] == "upstream_truncated")
    node.settled()
    client.close() if http == 2 else client.fin()


@pytest.mark.parametrize("begun", [True, False])
def test_an_engine_that_is_silent_for_too_long_is_given_up(beats: Play, begun: bool) -> None:
    node, _ = beats(*([HEAD] if begun else []), 60.0, pool={"silence": "1s"})
    got = answered(node, chat_body())
    assert got.count(PING) >= 2
    [frame] = events_in(got.replace(PING, b""))
    assert json.loads(frame)["error"]["code"] == "timeout"
    wait_for(lambda: node.access_log()[-1]["verdict"] == "timeout")
    node.settled()


def test_an_engine_that_cannot_be_reached_is_passed_over(
    engine: Engine, start_node: Callable[..., Node]
) -> None:
    with socket.socket() as gone:
        gone.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{gone.getsockname()[1]}"
        node = start_node([nowhere, engine.url], routes=ROUTES)
        for _ in range(3):
            assert answered(node, chat_body(2, gap_ms=1)).endswith(DONE)
        node.settled()
        node = start_node([nowhere], routes=ROUTES)
        with Client(node.port) as client:
            response, got = client.request(chat_body(), headers=QA)
        assert (response.status, error_of(got)["code"]) == (503, "no_backend")
        assert response.headers["x-weir-reason"] == "no_backend"
        node.settled()


def test_a_large_prompt_is_streamed_through(node: Node) -> None:
    body = chat_body(2, gap_ms=1, prompt="热" * 10_000)
    for headers in (QA, {**QA, "Expect": "100-continue"}):
        with Client(node.port) as client:
            response, got = client.request(body, headers=headers)
            assert response.status == 200 and got.endswith(DONE)
    with Client(node.port) as client:
        response, got = client.request(body, headers=QA, path=DIRECT)
        assert response.status == 200 and got.endswith(DONE)
    node.settled()


def left_within(engine: Scripted, at: float, seconds: float) -> None:
    [seen] = wait_for(lambda: engine.left_at)
    assert seen - at < seconds, f"{(seen - at) * 1000:.1f} ms"


@pytest.mark.parametrize("http", [1, 2])
@pytest.mark.parametrize(
    ("parts", "settle_s"),
    [((60.0,), 0.1), ((60.0,), 2.5), ((HEAD, chunk(b'data: {"n":1}\n\n'), 60.0), 2.5),
     ((HEAD, chunk(b'data: {"n"'), 60.0), 2.5)],
)  # fmt: skip
def test_the_engine_is_told_at_once_when_the_client_leaves_in_a_stall(
    play: Play, http: int, parts: Any, settle_s: float
) -> None:
    """At once, and not with the next beat."""
    node, engine = play(*parts, routes=[{"path": CHAT, "pool": "default", "heartbeat": "2s"}])
    client: Any = H2Client(node.h2_port) if http == 2 else Client(node.port)
    client.post(chat_body(), headers={"x-medical-scene": "QA"})
    wait_for(lambda: engine.requests)
    time.sleep(settle_s)
    at = client.cancel() if http == 2 else client.fin()
    left_within(engine, at, AT_ONCE_S)
    node.settled()
    if http == 2:
        client.close()


def has_to_do_with(node: Node, engine: Scripted) -> bool:
    """Whether nginx has a connection to an engine, which may not be looking at it."""
    there = engine.listener.getsockname()
    workers = map(psutil.Process, node.workers("nginx"))
    return any(each.raddr == there for worker in workers for each in worker.net_connections())


@pytest.mark.parametrize("sent", [3_000, 5 << 20])
def test_a_client_that_leaves_while_its_body_is_unread_is_noticed(play: Play, sent: int) -> None:
    """Half sent, or held up by an engine that reads nothing; and not with the next beat."""
    routes = [{"path": CHAT, "pool": "default", "heartbeat": "10s"}]
    settings = {"routes": routes, "limits": {"max_tokens": 100_000_000}}
    node, engine = play(60.0, reads=sent < 10_000, **settings)
    client = Client(node.port)
    body = chat_body(prompt="x" * (6 << 20))
    client.post(b"", length=len(body), headers=QA)
    client.socket.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        client.socket.sendall(body[:sent])
    wait_for(lambda: has_to_do_with(node, engine))
    time.sleep(0.3)
    at = client.fin()
    if sent < 10_000:
        left_within(engine, at, AT_ONCE_S)
    wait_for(lambda: not has_to_do_with(node, engine), 4)
    node.settled()


@pytest.mark.timeout(180)
def test_a_thousand_aborts_are_as_clean_as_on_a_direct_route(
    engine: Engine, start_node: Callable[..., Node]
) -> None:
    node = start_node([engine.url], routes=ROUTES, limits={"max_tokens": 1_000_000})
    random.seed(11)
    before = engine.stats()["aborted"]

    def leave(count: int) -> None:
        for _ in range(count):
            client = Client(node.port)
            sim = {"first_ms": random.choice([1, 400]), "late": random.random() < 0.5}
            client.post(chat_body(40, gap_ms=10, **sim), headers=QA)
            time.sleep(random.random() * 0.6)
            client.rst() if random.random() < 0.3 else client.fin()

    threads = [threading.Thread(target=leave, args=(50,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    node.settled()
    wait_for(lambda: engine.stats()["active"] == 0)
    assert engine.stats()["aborted"] > before + 300
    assert node.metric("weir_leases_ended_total", verdict="lost") == 0
