"""The service's HTTP front, one connection at a time; what needs a worker is in integration."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from control.front.answer import WsgiApp
from control.front.connection import Connection
from control.front.connections import Connections
from control.front.door import Door
from control.front.listener import Listener, admin_listener, unix_listener
from control.front.refusal import MAX_HEAD

PATIENCE_S = 5.0
UNIX = unix_listener("unix:here")
MAX_BODY = UNIX.max_body

Answer = tuple[int, dict[str, str], bytes]


def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """Says what it was asked: method, path and query in headers, the body as it came."""
    body = environ["wsgi.input"].read()
    start_response(
        "200 OK",
        [
            ("X-Asked", f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"),
            ("X-Query", environ["QUERY_STRING"]),
            ("X-Kind", environ.get("CONTENT_TYPE", "-")),
            ("X-Word", environ.get("HTTP_X_WORD", "-")),
            ("X-Length", environ["CONTENT_LENGTH"]),
        ],
    )
    return [body]


def raising(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    raise LookupError("a defect")


def serve(
    client: socket.socket, app: WsgiApp, stays: Callable[[], bool], listener: Listener = UNIX
) -> None:
    door = Door(listener)
    assert door.connections.enter(client)
    try:
        Connection(client, app, door, stays, "192.0.2.1").serve()
    finally:
        door.connections.leave(client)


def post(
    body: bytes = b"",
    path: str = "/",
    version: str = "1.1",
    length: int | None = None,
    **fields: str,
) -> bytes:
    head = f"POST {path} HTTP/{version}\r\nHost: weir\r\n"
    head += f"Content-Length: {len(body) if length is None else length}\r\n"
    head += "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items())
    return head.encode() + b"\r\n" + body


class Gateway:
    """The gateway's end of a connection that is being served."""

    def __init__(self, run: Callable[[socket.socket], None]) -> None:
        self.socket, served = socket.socketpair()
        self.socket.settimeout(PATIENCE_S)
        self.error: BaseException | None = None
        self._run = run
        self._reader = self.socket.makefile("rb")
        self._thread = threading.Thread(target=self._serve, args=(served,), daemon=True)
        self._thread.start()

    def _serve(self, served: socket.socket) -> None:
        try:
            self._run(served)
        except Exception as exc:  # noqa: BLE001 (for the test to look at)
            self.error = exc
        finally:
            served.close()

    def send(self, *packets: bytes) -> None:
        for packet in packets:
            self.socket.sendall(packet)

    def answer(self) -> Answer:
        """The next answer: status, headers in lower case, body."""
        line = self._reader.readline()
        assert line.startswith(b"HTTP/1.1 "), line
        headers = {}
        while (field := self._reader.readline()) not in (b"\r\n", b""):
            name, _, value = field.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return int(line.split()[1]), headers, self._reader.read(int(headers["content-length"]))

    def closed(self) -> bool:
        """Whether the other end has closed, with nothing said before it."""
        try:
            return self._reader.read() == b""
        except ConnectionResetError:
            return True  # closed with bytes of ours unread

    def ended(self) -> bool:
        """Whether the serving has come to its end."""
        self._thread.join(PATIENCE_S)
        return not self._thread.is_alive()

    def leave(self) -> None:
        self._reader.close()
        self.socket.close()


Connect = Callable[..., Gateway]


@pytest.fixture
def connect() -> Iterator[Connect]:
    gateways: list[Gateway] = []

    def connect(
        app: WsgiApp = echo, alive: Callable[[], bool] = lambda: True, listener: Listener = UNIX
    ) -> Gateway:
        gateways.append(Gateway(lambda served: serve(served, app, alive, listener)))
        return gateways[-1]

    yield connect
    for gateway in gateways:
        gateway.leave()
        assert gateway.ended(), "a connection was served beyond its end"


def test_a_request_is_answered_as_the_application_says(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(b"hello", "/v1/x?a=1&b=%20", Content_Type="application/json", X_Word="w"))
    status, headers, body = gateway.answer()
    assert (status, body) == (200, b"hello")
    assert headers["x-asked"] == "POST /v1/x"
    assert headers["x-query"] == "a=1&b=%20"
    assert headers["x-kind"] == "application/json"
    assert headers["x-word"] == "w"
    assert headers["x-length"] == "5"


def test_a_path_reaches_the_application_decoded(connect: Connect) -> None:
    """As WSGI has it: a gateway may well write the colon of an id as %3A."""
    gateway = connect()
    gateway.send(post(path="/v1/leases/node%3A1"))
    assert gateway.answer()[1]["x-asked"] == "POST /v1/leases/node:1"


def test_a_connection_is_kept_for_the_next_request(connect: Connect) -> None:
    gateway = connect()
    for n in range(50):
        gateway.send(post(b"%d" % n, f"/{n}"))
        status, headers, body = gateway.answer()
        assert (status, body, headers["x-asked"]) == (200, b"%d" % n, f"POST /{n}")
        assert "connection" not in headers


def test_nothing_of_a_request_is_left_to_the_next_one(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(b"long body", "/first?q", Content_Type="text/plain", X_Word="first"))
    gateway.answer()
    gateway.send(b"GET /second HTTP/1.1\r\nHost: weir\r\n\r\n")
    _, headers, body = gateway.answer()
    assert body == b""
    assert headers["x-asked"] == "GET /second"
    assert (headers["x-query"], headers["x-kind"], headers["x-word"]) == ("", "-", "-")
    assert headers["x-length"] == "0"


def test_connection_close_is_answered_and_obeyed(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(b"x", Connection="close"))
    status, headers, body = gateway.answer()
    assert (status, body, headers["connection"]) == (200, b"x", "close")
    assert gateway.closed() and gateway.ended()


def test_http_1_0_is_answered_and_closed(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(b"x", version="1.0", Connection="keep-alive"))
    status, headers, body = gateway.answer()
    assert (status, body, headers["connection"]) == (200, b"x", "close")
    assert gateway.closed()


def test_a_worker_that_is_stopping_closes_after_the_answer(connect: Connect) -> None:
    alive = True
    gateway = connect(alive=lambda: alive)
    gateway.send(post(b"a"))
    assert "connection" not in gateway.answer()[1]
    alive = False
    gateway.send(post(b"b"))
    status, headers, body = gateway.answer()
    assert (status, body, headers["connection"]) == (200, b"b", "close")
    assert gateway.closed()


def test_a_body_may_come_in_many_packets(connect: Connect) -> None:
    gateway = connect()
    sent = post(bytes(range(256)) * 8)
    gateway.send(*(sent[at : at + 1] for at in range(len(sent))))
    assert gateway.answer()[2] == bytes(range(256)) * 8


def test_a_chunked_body_is_put_together(connect: Connect) -> None:
    gateway = connect()
    gateway.send(
        b"POST / HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"5\r\nhello\r\n", b"1\r\n \r\n5\r\nworld\r\n0\r\n\r\n",
    )  # fmt: skip
    _, headers, body = gateway.answer()
    assert (body, headers["x-length"]) == (b"hello world", "11")


def test_a_large_body_passes_whole(connect: Connect) -> None:
    gateway = connect(
        lambda env, start: (start("200 OK", []), [b"%d" % len(env["wsgi.input"].read())])[1]
    )
    sender = threading.Thread(target=gateway.send, args=(post(b"x" * MAX_BODY),))
    sender.start()
    assert gateway.answer()[2] == b"%d" % MAX_BODY
    sender.join()


@given(cuts=st.lists(st.integers(0, 400), max_size=12))
@settings(max_examples=60, deadline=None)
def test_however_it_is_cut_a_request_is_answered_once(cuts: list[int]) -> None:
    sent = post(b"one", "/1", X_Word="a" * 40) + post(b"two" * 30, "/2")
    first = len(post(b"one", "/1", X_Word="a" * 40))
    gateway = Gateway(lambda served: serve(served, echo, lambda: True))
    try:
        for part, asked, body in ((sent[:first], "/1", b"one"), (sent[first:], "/2", b"two" * 30)):
            marks = sorted({0, len(part), *(cut for cut in cuts if cut < len(part))})
            gateway.send(*(part[a:b] for a, b in pairwise(marks)))
            _, headers, said = gateway.answer()
            assert (headers["x-asked"], said) == (f"POST {asked}", body)
        gateway.socket.shutdown(socket.SHUT_WR)
        assert gateway.closed()
    finally:
        gateway.leave()
        assert gateway.ended()


@pytest.mark.parametrize(
    "cut", [0, 30, 1_000_000], ids=["one-packet", "the-second-goes-on", "with-the-firsts-end"]
)
def test_pipelined_requests_are_all_answered_each_with_its_own(connect: Connect, cut: int) -> None:
    """Or the connection is closed after the first; never is one answered with another's words."""
    gateway = connect()
    first, second = post(b"one", "/1"), post(b"two", "/2")
    both = first + second
    match cut:
        case 0:
            packets = [both]
        case 30:
            packets = [both[: len(first) + 30], both[len(first) + 30 :]]
        case _:
            packets = [both[: len(first) - 1], both[len(first) - 1 :]]
    gateway.send(*packets)
    _, headers, body = gateway.answer()
    assert (headers["x-asked"], body) == ("POST /1", b"one")
    if headers.get("connection") == "close":
        assert gateway.closed()
        return
    _, headers, body = gateway.answer()
    assert (headers["x-asked"], body) == ("POST /2", b"two")


@pytest.mark.parametrize(
    "nonsense",
    [
        b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"GET\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: nonsense\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    ],
)  # fmt: skip
def test_what_is_not_http_is_refused_and_closed(connect: Connect, nonsense: bytes) -> None:
    gateway = connect()
    gateway.send(nonsense)
    status, headers, body = gateway.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(body)["code"] == "not_http"
    assert gateway.closed() and gateway.ended()
    assert gateway.error is None


def test_an_offer_to_upgrade_is_passed_over_or_refused_and_not_hung_up_on(
    connect: Connect,
) -> None:
    """Java's HttpClient offers h2c with its first request."""
    gateway = connect()
    gateway.send(post(b"x", Connection="Upgrade, HTTP2-Settings", Upgrade="h2c", HTTP2_Settings=""))
    status, headers, body = gateway.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert json.loads(body)["code"] == "upgrade"
    bare = connect()
    bare.send(b"GET /x HTTP/1.1\r\nHost: weir\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    status, headers, _ = bare.answer()
    assert (status, headers["x-asked"], headers["connection"]) == (200, "GET /x", "close")


def test_nonsense_after_a_sound_request_is_refused_too(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(b"x"))
    assert gateway.answer()[0] == 200
    gateway.send(b"\x00\x01\x02\r\n\r\n")
    assert gateway.answer()[0] == 400
    assert gateway.closed()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * MAX_HEAD + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Word: " + b"a" * MAX_HEAD + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X-Word: aaaaaaaaaaaaaaaa\r\n" * (MAX_HEAD // 20) + b"\r\n",
    ],
    ids=["line", "header", "headers"],
)
def test_a_head_that_is_too_large_is_refused_and_closed(connect: Connect, head: bytes) -> None:
    gateway = connect()
    gateway.send(head)
    status, headers, _ = gateway.answer()
    expected = 414 if head.startswith(b"GET /a") else 431
    assert (status, headers["connection"]) == (expected, "close")
    assert gateway.closed()


def test_a_header_without_an_end_is_refused_before_it_fills_the_memory(connect: Connect) -> None:
    gateway = connect()
    gateway.send(b"GET / HTTP/1.1\r\nX-Word: ")
    # Refused means closed at some time: to send on fails then.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(64):
            gateway.send(b"a" * MAX_HEAD)
    assert gateway.answer()[0] == 431


@pytest.mark.parametrize("chunked", [False, True], ids=["announced", "chunked"])
def test_a_body_that_is_too_large_is_refused_and_closed(connect: Connect, chunked: bool) -> None:
    gateway = connect()
    if chunked:
        gateway.send(b"POST / HTTP/1.1\r\nHost: weir\r\nTransfer-Encoding: chunked\r\n\r\n")
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    else:
        gateway.send(post(length=MAX_BODY * 2))
        piece = b"x" * 0x10000
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        for _ in range(MAX_BODY // 0x10000 + 16):
            gateway.send(piece)
    status, headers, _ = gateway.answer()
    assert (status, headers["connection"]) == (413, "close")
    assert gateway.closed() and gateway.ended()


@pytest.mark.parametrize(
    "sent",
    [b"", b"PO", b"POST / HTTP/1.1\r\nHost: we", post(b"abc", length=10)],
    ids=["idle", "line", "head", "body"],
)
def test_a_gateway_that_hangs_up_ends_its_connection_and_calls_nobody(
    connect: Connect, sent: bytes
) -> None:
    calls = []
    gateway = connect(lambda environ, start: calls.append(environ) or [])
    gateway.send(sent)
    gateway.leave()
    assert gateway.ended()
    assert calls == [] and gateway.error is None


def test_a_gateway_that_hangs_up_before_its_answer_breaks_nothing(connect: Connect) -> None:
    asked, gone = threading.Event(), threading.Event()

    def slow(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        asked.set()
        gone.wait(PATIENCE_S)
        start_response("200 OK", [])
        return [b"x" * 1_000_000]

    gateway = connect(slow)
    gateway.send(post(b"x"))
    assert asked.wait(PATIENCE_S)
    gateway.leave()
    gone.set()
    assert gateway.ended()
    assert gateway.error is None or isinstance(gateway.error, OSError)


def test_a_client_that_waits_to_be_told_to_go_on_is_told(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(length=4, Expect="100-continue"))
    assert gateway._reader.readline() == b"HTTP/1.1 100 Continue\r\n"
    assert gateway._reader.readline() == b"\r\n"
    gateway.send(b"body")
    assert gateway.answer()[2] == b"body"
    gateway.send(post(b"all at once", Expect="100-continue"))
    assert gateway.answer()[2] == b"all at once"


@pytest.mark.parametrize(
    ("options", "status"),
    [({"length": MAX_BODY + 1, "Expect": "100-continue"}, 413), ({"Expect": "miracles"}, 417)],
    ids=["too-large", "unknown"],
)
def test_an_expectation_that_cannot_be_met_is_refused_before_the_body(
    connect: Connect, options: dict[str, Any], status: int
) -> None:
    gateway = connect()
    gateway.send(post(**options))
    assert gateway.answer()[0] == status
    assert gateway.closed()


@pytest.mark.parametrize(
    ("target", "asked"),
    [("http://weir/v1/pools?a=1", "/v1/pools"), ("HTTPS://weir:8081", "/"), ("*", "*")],
)
def test_a_target_may_be_absolute(connect: Connect, target: str, asked: str) -> None:
    gateway = connect()
    gateway.send(post(path=target))
    assert gateway.answer()[1]["x-asked"] == f"POST {asked}"


@pytest.mark.parametrize("target", ["weir:443", "ftp://weir/x"])
def test_a_target_of_another_kind_is_refused(connect: Connect, target: str) -> None:
    gateway = connect()
    gateway.send(post(path=target))
    assert gateway.answer()[0] == 400


def test_fields_of_one_name_are_one_list_and_none_hides_behind_an_underscore(
    connect: Connect,
) -> None:
    gateway = connect()
    gateway.send(b"GET / HTTP/1.1\r\nX-Word: a\r\nX_Word: evil\r\nx-word: b\r\n\r\n")
    assert gateway.answer()[1]["x-word"] == "a,b"


def test_a_trailer_is_no_header(connect: Connect) -> None:
    gateway = connect()
    gateway.send(
        b"POST / HTTP/1.1\r\nX-Word: head\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"1\r\na\r\n0\r\nX-Word: trailer\r\n\r\n"
    )
    assert gateway.answer()[1]["x-word"] == "head"


def test_more_fields_than_anybody_needs_are_refused(connect: Connect) -> None:
    gateway = connect()
    gateway.send(b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 101 + b"\r\n")
    assert gateway.answer()[0] == 431


def test_an_admin_body_is_small(connect: Connect) -> None:
    gateway = connect(listener=admin_listener("127.0.0.1:1", None))
    gateway.send(post(length=(64 << 10) + 1))
    status, _, body = gateway.answer()
    assert status == 413
    assert "65536" in json.loads(body)["detail"]


def test_what_is_sound_is_answered_before_the_nonsense_after_it(connect: Connect) -> None:
    gateway = connect()
    gateway.send(post(b"x", "/1") + b"\x00\x01\x02\r\n\r\n")
    assert gateway.answer()[1]["x-asked"] == "POST /1"
    assert gateway.answer()[0] == 400
    assert gateway.closed()


def test_an_answer_without_a_body_announces_none(connect: Connect) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("204 No Content", [])
        return []

    gateway = connect(app)
    gateway.send(post() + post())
    for _ in range(2):
        assert gateway._reader.readline() == b"HTTP/1.1 204 No Content\r\n"
        assert gateway._reader.readline() == b"\r\n"


def test_an_application_that_fails_is_answered_for(connect: Connect) -> None:
    gateway = connect(raising)
    gateway.send(post(b"x"))
    status, headers, body = gateway.answer()
    assert (status, headers["connection"]) == (500, "close")
    assert json.loads(body)["code"] == "internal"
    assert gateway.ended() and gateway.error is None


def test_the_listener_names_its_plane_and_the_client(connect: Connect) -> None:
    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        start_response("200 OK", [])
        told = [environ[key] for key in ("weir.plane", "weir.local", "REMOTE_ADDR")]
        return [json.dumps(told).encode()]

    for listener, expected in (
        (UNIX, ["data", True, "192.0.2.1"]),
        (admin_listener("127.0.0.1:1", None), ["admin", False, "192.0.2.1"]),
    ):
        gateway = connect(app, listener=listener)
        gateway.send(post())
        assert json.loads(gateway.answer()[2]) == expected


def test_one_that_waits_makes_room_and_one_that_is_answered_does_not() -> None:
    pairs = [socket.socketpair() for _ in range(3)]
    (first, ours), (second, _), (third, _) = pairs
    connections = Connections(2, 100)
    assert connections.enter(first) and connections.enter(second)
    connections.is_answered(first)
    assert connections.enter(third)
    assert second.recv(1) == b"", "hung up on"
    connections.leave(second)
    connections.is_answered(third)
    assert not connections.enter(socket.socket())
    assert connections.hold(first, 60) and not connections.hold(third, 50)
    connections.leave(third)
    assert connections.hold(first, 100)
    for pair in pairs:
        for end in pair:
            end.close()
    assert ours.fileno() == -1
