"""Engines that are away, die, refuse, or would detach a stream from its client."""

import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.harness.client import CHAT, Client, chat_body, error_of
from tests.harness.node import AT_ONCE_S, Engine, Node, free_port, wait_for

JSON = {"Accept": "application/json"}


class Stub:
    """An engine of a few lines: answers a connection's first request with given bytes, and ends."""

    def __init__(self, answer: bytes, close: bool = True) -> None:
        self.answer, self.close = answer, close
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.requests.append(connection.recv(65536))
                connection.sendall(self.answer)
                if not self.close:
                    connection.recv(1)

    def stop(self) -> None:
        self._listener.close()


@pytest.fixture
def stub() -> Iterator[Callable[..., Stub]]:
    stubs: list[Stub] = []

    def start(answer: bytes, close: bool = True) -> Stub:
        stubs.append(Stub(answer, close))
        return stubs[-1]

    yield start
    for each in stubs:
        each.stop()


@pytest.fixture(scope="module")
def puppet() -> Iterator[Stub]:
    """An engine that answers what a test puts into its ``answer``."""
    puppet = Stub(b"")
    yield puppet
    puppet.stop()


@pytest.fixture(scope="module")
def staged(puppet: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node before the puppet, for all tests that leave both as they were."""
    node = Node(tmp_path_factory.mktemp("staged"), [puppet.url])
    yield node
    node.settled()
    node.stop()


def chunked(*events: str) -> bytes:
    body = b"".join(b"%x\r\n%b\r\n" % (len(e.encode()), e.encode()) for e in events)
    return (
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n" + body
    )


def verdict_of(node: Node) -> str:
    node.settled()
    return str(wait_for(lambda: [e for e in node.access_log() if e["route"]])[-1]["verdict"])


def test_an_unreachable_engine_is_told_and_passed_over(start_node: Callable[..., Node]) -> None:
    node = start_node([f"http://127.0.0.1:{free_port()}"], pool={"pass_over": "3s"})
    with Client(node.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
    assert (response.status, error_of(body)["code"]) == (503, "no_backend")
    assert response.headers["x-weir-reason"] == "no_backend"
    assert 1 <= int(response.headers["retry-after"]) <= 60
    wait_for(lambda: node.metric("weir_leases_ended_total", verdict="upstream_error") == 1)
    # Passed over: the next is refused without a try, and without a lease.
    with Client(node.port) as client:
        assert client.request(chat_body(1), headers=JSON)[0].status == 503
    assert node.metric("weir_leases_granted_total") == 1
    assert node.pool()["backends"][0]["unreachable"] is True
    wait_for(lambda: "unreachable" not in node.pool()["backends"][0])
    with Client(node.port) as client:
        assert client.request(chat_body(1), headers=JSON)[0].status == 503
    assert node.metric("weir_leases_granted_total") == 2
    node.settled()


@pytest.mark.parametrize("size", [10, 40_000], ids=["small", "larger-than-a-buffer"])
def test_a_sound_engine_takes_what_a_dead_one_was_never_sent(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], size: int
) -> None:
    engine = start_engine()
    dead = f"http://127.0.0.1:{free_port()}"
    # The dead one has more room, so it is asked first each time it is not passed over.
    node = start_node([dead, engine.url], pool={"pass_over": "100ms"})
    for n in range(6):
        with Client(node.port) as client:
            response, body = client.request(chat_body(3, gap_ms=1, prompt="x" * size, tag=str(n)))
        assert response.status == 200 and body.endswith(b"data: [DONE]\n\n")
        assert len(engine.ended(str(n))) == 1
        assert response.headers["x-request-id"] == engine.ended(str(n))[0]["request_id"]
        time.sleep(0.15)
    node.settled()
    assert node.metric("weir_leases_ended_total", verdict="completed") == 6


def test_streams_that_moved_are_counted_where_they_run_and_end_with_their_client(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([f"http://127.0.0.1:{free_port()}", engine.url])
    client = Client(node.port)
    client.post(chat_body(500, gap_ms=20, tag="moved")).head()
    backends = {b["name"]: b["streams"] for b in node.pool()["backends"]}
    assert backends == {"gpu-0": 0, "gpu-1": 1}
    left = client.fin()
    ended = wait_for(lambda: engine.ended("moved"))[0]
    assert ended["how"] == "aborted" and ended["at"] - left < AT_ONCE_S
    node.settled()


@pytest.mark.parametrize("after", [0, 3])
def test_an_engine_that_dies_mid_stream_is_no_completion(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], after: int
) -> None:
    engine = start_engine()
    node = start_node([engine.url])
    with Client(node.port) as client:
        client.post(chat_body(20, gap_ms=5, fail_after=after)).head()
        with pytest.raises(ConnectionError):
            client.rest()
    assert verdict_of(node) == "upstream_truncated"


DONE = "data: [DONE]\n\n"
TEXT = 'data: {"choices":[{"delta":{"content":"data: {\\"error\\": 1}"}}]}\n\n'
ERROR = 'data: {"error":{"message":"queue full","code":503}}\n\n'


@pytest.mark.parametrize(
    ("events", "verdict"),
    [
        ((TEXT, DONE), "completed"),
        ((TEXT, "data: [DO", "NE]\n", "\n"), "completed"),
        ((TEXT.replace("\n", "\r\n"), DONE.replace("\n", "\r\n")), "completed"),
        ((TEXT,), "upstream_truncated"),
        (('data: {"text":"[DONE]"}\n\n',), "upstream_truncated"),
        ((ERROR,), "upstream_error"),
        ((TEXT, ERROR, DONE), "upstream_error"),
        (("da", "ta: {", ' "err', 'or" : {}}\n\n', DONE), "upstream_error"),
        (("event: error\n", "data: {}\n\n", DONE), "upstream_error"),
        (('data: {"error":null,"choices":[]}\n\n', DONE), "completed"),
    ],
)
def test_the_verdict_reads_the_stream_and_not_its_status(
    puppet: Stub, staged: Node, events: tuple[str, ...], verdict: str
) -> None:
    puppet.answer = chunked(*events) + b"0\r\n\r\n"
    with Client(staged.port) as client:
        response, body = client.request(chat_body(1))
    assert response.status == 200
    assert body.decode() == "".join(events), "nothing is cut or changed"
    assert verdict_of(staged) == verdict


@pytest.mark.parametrize("status", [400, 403, 404, 413, 429, 500, 502, 503])
def test_an_engines_own_errors_pass_unchanged(puppet: Stub, staged: Node, status: int) -> None:
    answer = b'{"error":{"message":"mine"}}'
    puppet.answer = (
        b"HTTP/1.1 %d No\r\nConnection: close\r\nContent-Type: application/json\r\n"
        b"Retry-After: 9\r\nContent-Length: %d\r\n\r\n%b" % (status, len(answer), answer)
    )
    with Client(staged.port) as client:
        response, body = client.request(chat_body(1))
    assert (response.status, body) == (status, answer)
    assert response.headers["retry-after"] == "9"
    assert verdict_of(staged) == ("upstream_error" if status >= 500 else "completed")


def test_an_engine_that_closes_without_an_answer(puppet: Stub, staged: Node) -> None:
    puppet.answer = b""
    with Client(staged.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
    assert (response.status, error_of(body)["code"]) == (503, "no_backend")
    assert verdict_of(staged) == "upstream_truncated"


@pytest.mark.parametrize("beats", [False, True])
def test_the_room_of_a_stream_without_an_answer_drains(
    stub: Callable[..., Stub], start_node: Callable[..., Node], beats: bool
) -> None:
    """With heartbeats it may be nginx's own worker that is gone, and not the engine."""
    route = {"path": CHAT, "pool": "default", **({"heartbeat": "5s"} if beats else {})}
    node = start_node([stub(b"").url], pool={"drain": "5s"}, routes=[route])
    with Client(node.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
    assert (response.status, error_of(body)["code"]) == (503, "no_backend")
    [backend] = wait_for(lambda: [b for b in node.pool()["backends"] if b["draining"]])
    assert backend["streams"] == 1
    node.settled()


def test_the_room_of_a_stream_that_moved_and_got_no_answer_drains(
    stub: Callable[..., Stub], start_node: Callable[..., Node]
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    node = start_node([dead, stub(b"").url], pool={"drain": "5s"})
    with Client(node.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
    assert (response.status, error_of(body)["code"]) == (503, "no_backend")
    assert response.headers["x-weir-reason"] == "no_backend" and response.headers["x-request-id"]
    [backend] = wait_for(lambda: [b for b in node.pool()["backends"] if b["draining"]])
    assert (backend["name"], backend["streams"]) == ("gpu-1", 1)
    assert verdict_of(node) == "upstream_truncated"


def test_a_stream_that_moved_to_a_silent_engine_is_given_up(
    stub: Callable[..., Stub], start_node: Callable[..., Node]
) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    node = start_node([dead, stub(b"", close=False).url], pool={"silence": "500ms"})
    with Client(node.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
    assert (response.status, error_of(body)["code"]) == (504, "timeout")
    assert verdict_of(node) == "timeout"


def test_an_engine_that_is_silent_for_too_long(
    stub: Callable[..., Stub], start_node: Callable[..., Node]
) -> None:
    node = start_node([stub(b"", close=False).url], pool={"silence": "500ms"})
    with Client(node.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
    assert (response.status, error_of(body)["code"]) == (504, "timeout")
    assert verdict_of(node) == "timeout"


def test_an_engine_cannot_steer_nginx(puppet: Stub, staged: Node) -> None:
    """X-Accel headers would buffer, slow down or redirect; compression would lump."""
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nX-Accel-Buffering: yes\r\n"
        b"X-Accel-Limit-Rate: 1\r\nX-Accel-Redirect: /healthz\r\nCache-Control: max-age=9\r\n"
        b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    puppet.answer = head + chunked(TEXT, DONE).split(b"\r\n\r\n", 1)[1] + b"0\r\n\r\n"
    with Client(staged.port) as client:
        began = time.monotonic()
        _, body = client.request(chat_body(1), headers={"Accept-Encoding": "gzip"})
    assert body.decode() == TEXT + DONE
    assert time.monotonic() - began < 10  # 80 s at that rate


def test_headers_that_detach_a_stream_and_headers_of_ours_do_not_reach_the_engine(
    puppet: Stub, staged: Node
) -> None:
    puppet.answer = chunked(DONE) + b"0\r\n\r\n"
    with Client(staged.port) as client:
        client.request(
            chat_body(1),
            headers={
                "X-Conversation-Id": "c", "X-Weir-Lease": "l", "X-Weir-Tokens": "1",
                "Accept-Encoding": "gzip", "X-Kept": "yes", "Expect": "100-continue",
            },
        )  # fmt: skip
    seen = puppet.requests[-1].lower()
    for gone in (b"x-conversation-id", b"x-weir-", b"accept-encoding", b"expect:"):
        assert gone not in seen
    assert b"x-kept: yes" in seen


def test_the_keepalive_to_an_engine_is_reused_and_ends_before_the_engines(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine("--keepalive", "1s")
    node = start_node([engine.url], limits={"keepalive": "500ms"})
    for pause in (0.0, 0.3, 0.6, 0.95, 1.0, 1.05, 1.1):
        time.sleep(pause)
        with Client(node.port) as client:
            assert client.request(chat_body(1, gap_ms=0))[0].status == 200
    node.settled()


def test_the_backend_with_most_free_tokens_is_chosen(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engines = [start_engine().url, start_engine().url]
    node = start_node(engines)
    clients = [Client(node.port).post(chat_body(500, gap_ms=50)) for _ in range(8)]
    for client in clients:
        assert client.head().status == 200
    assert [b["streams"] for b in node.pool()["backends"]] == [4, 4]
    for client in clients:
        client.fin()
    node.settled()
