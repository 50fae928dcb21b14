"""The HTTP front on the real worker: streams, slow clients, and too many of them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import Client
from tests.harness.front import Front
from tests.harness.node import wait_for

FIELDS = "Host: weir\r\n"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front(tmp_path_factory.mktemp("front"))
    yield front
    front.stop()
    assert not [line for line in front.said if "Traceback" in line], front.said


def ask(front: Front, path: str, method: str = "GET", **options: Any) -> Client:
    client = Client(front.port)
    client.post(path=path, method=method, **options)
    return client


def test_a_stream_is_sent_as_it_is_yielded_and_the_connection_kept(front: Front) -> None:
    with ask(front, "/stream?3") as client:
        head = client.head()
        assert (head.status, head.headers["transfer-encoding"]) == (200, "chunked")
        assert client.rest() == b"item 0\nitem 1\nitem 2\n"
        client.post(b"next", "/echo")
        assert client.head().status == 200 and client.rest() == b"next"


def test_each_item_is_sent_at_once(front: Front) -> None:
    with ask(front, "/stream/waits?2") as client:
        client.head()
        client._pull()
        assert client.body == b"item 0\n"


def test_what_is_asked_during_a_stream_is_answered_after_it(front: Front) -> None:
    with ask(front, "/stream?2") as client:
        client.post(b"next", "/echo")
        client.head()
        assert client.rest() == b"item 0\nitem 1\n"
        assert client.head().status == 200 and client.rest() == b"next"


@pytest.mark.parametrize("leave", ["fin", "rst"])
def test_an_application_that_waits_is_told_that_its_client_has_left(
    front: Front, leave: str
) -> None:
    client = ask(front, f"/stream/waits?1&{leave}".partition("&")[0])
    client.head()
    closed = front.said.count("closed /stream/waits")
    getattr(client, leave)()
    wait_for(lambda: front.said.count("closed /stream/waits") > closed)


def test_a_stream_that_fails_midway_does_not_look_whole(front: Front) -> None:
    with ask(front, "/stream/fails?3") as client:
        client.head()
        with pytest.raises(ConnectionError):
            client.rest()
    wait_for(lambda: "closed /stream/fails" in front.said)
    wait_for(lambda: [x for x in front.said if "request_failed" in x and "LookupError" in x])
    assert not any("a-prompt" in line for line in front.said)


def test_a_request_that_fails_is_answered_in_the_apis_own_words(front: Front) -> None:
    with ask(front, "/fails") as client:
        head = client.head()
        assert (head.status, head.headers["content-type"]) == (500, "application/problem+json")
        assert b'"code": "internal"' in client.rest()


def test_a_stream_of_known_length_needs_no_chunks(front: Front) -> None:
    with ask(front, "/sized?1000") as client:
        head = client.head()
        assert head.headers["content-length"] == "1000"
        assert "transfer-encoding" not in head.headers
        assert client.rest() == b"x" * 1000
    with ask(front, "/sized?1001") as client:  # one byte is missing: no next answer may fill it
        client.head()
        with pytest.raises(ConnectionError):
            client.rest()


def test_an_http_1_0_client_gets_a_stream_up_to_the_end_of_the_connection(front: Front) -> None:
    with socket.create_connection(("127.0.0.1", front.port), 5) as client:
        client.sendall(b"GET /stream?2 HTTP/1.0\r\n\r\n")
        said = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = said.partition(b"\r\n\r\n")
    assert b"chunked" not in head.lower() and b"Connection: close" in head
    assert body == b"item 0\nitem 1\n"


def test_head_of_a_stream_has_no_body(front: Front) -> None:
    with ask(front, "/stream?2", method="HEAD") as client:
        assert client.head().status == 200
        client.post(b"next", "/echo")
        assert client.head().status == 200


def test_the_clients_address_is_known(front: Front) -> None:
    with ask(front, "/echo") as client:
        assert client.head().headers["x-peer"] == "127.0.0.1"


# -- slow clients ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    front = Front(
        tmp_path_factory.mktemp("impatient"), head_s=0.6, body_s=0.6, idle_s=0.6, send_s=1.5
    )
    yield front
    front.stop()


@pytest.mark.parametrize(
    ("begun", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: w", b"408"),
        (b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\na", b"408"),
        (b"", b""),
    ],
    ids=["head", "body", "nothing"],
)
def test_a_request_that_does_not_come_is_given_up(
    impatient: Front, begun: bytes, status: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), 5) as client:
        client.sendall(begun)
        said = b"".join(iter(lambda: client.recv(65536), b""))
        assert said[9:12] == status


def test_a_head_that_drips_is_given_up_as_well(impatient: Front) -> None:
    with socket.create_connection(("127.0.0.1", impatient.port), 5) as client:
        began = time.monotonic()
        client.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(OSError):
            while time.monotonic() - began < 10:
                client.sendall(b"X: y\r\n")
                time.sleep(0.05)
        assert time.monotonic() - began < 5


def test_a_client_that_does_not_read_its_answer_is_given_up(impatient: Front) -> None:
    client = Client(impatient.port, receive_buffer=4_096)
    began = time.monotonic()
    client.post(path="/stream/big?1000", method="GET")
    wait_for(lambda: "closed /stream/big" in impatient.said)
    assert time.monotonic() - began > 1, "by the deadline of a send, and no other"
    client.fin()


def test_slow_clients_make_room_for_the_next_one(front: Front) -> None:
    slow = [socket.create_connection(("127.0.0.1", front.port), 5) for _ in range(30)]
    for each in slow:
        each.sendall(b"GET / HTT")
    with ask(front, "/echo") as client:
        assert client.head().status == 200
    for each in slow:
        each.close()


def test_slow_readers_make_room_for_the_next_one(front: Front) -> None:
    """Each has asked for more answers than it takes."""
    slow = [Client(front.port, receive_buffer=2_048) for _ in range(8)]
    for each in slow:
        each.socket.setblocking(False)
        with suppress(BlockingIOError):
            while each.socket.send(b"GET /large HTTP/1.1\r\n\r\n"):
                pass
    with ask(front, "/echo") as client:
        assert client.head().status == 200
    for each in slow:
        each.fin()


def test_one_who_asks_without_end_keeps_nobody_else_waiting(front: Front) -> None:
    ends = threading.Event()
    with socket.create_connection(("127.0.0.1", front.port), 5) as greedy:

        def write() -> None:
            with suppress(OSError):
                while not ends.is_set():
                    greedy.sendall(b"GET / HTTP/1.1\r\n\r\n" * 2_000)

        def read() -> None:
            with suppress(OSError):
                while greedy.recv(1 << 20):
                    pass

        threads = [threading.Thread(target=each) for each in (write, read)]
        limit = threading.Timer(9, ends.set)
        for each in (*threads, limit):
            each.start()
        time.sleep(0.2)
        for _ in range(10):
            with ask(front, "/echo") as client:
                assert client.head().status == 200
        in_time = not ends.is_set()
        ends.set()
        greedy.shutdown(socket.SHUT_RDWR)
        for each in (*threads, limit):
            each.join()
    assert in_time


def test_where_all_are_being_answered_the_next_one_is_told(front: Front) -> None:
    begun = front.said.count("begun /stream/waits")
    streams = [ask(front, "/stream/waits?1") for _ in range(8)]
    wait_for(lambda: front.said.count("begun /stream/waits") == begun + 8)
    with ask(front, "/echo") as client:
        head = client.head()
        assert (head.status, head.headers["retry-after"]) == (503, "1")
        assert b"too_many_connections" in client.rest()
    for stream in streams:
        stream.fin()
    wait_for(lambda: ask(front, "/echo").head().status == 200)


def test_the_bodies_of_all_together_are_bounded(front: Front) -> None:
    """256 KB here: memory is not for whoever announces most."""
    clients = [Client(front.port) for _ in range(6)]
    for client in clients:
        client.post(b"x" * (60 << 10), "/echo", length=(60 << 10) + 1)
    refused = 0
    for client in clients:
        client.socket.settimeout(1.5)
        try:
            refused += client.head().status == 503
        except TimeoutError:
            client.socket.settimeout(5)
            client.socket.sendall(b"y")
            assert client.head().status == 200
        client.fin()
    assert refused >= 1


def test_a_worker_that_ends_ends_its_streams_whole(tmp_path: Path) -> None:
    front = Front(tmp_path)
    with ask(front, "/stream/waits?1") as client:
        client.head()
        front.stop()
        assert client.rest() == b"item 0\n"
    assert "closed /stream/waits" in front.said
