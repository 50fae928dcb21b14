"""Clients of the admin plane that send nonsense, or hardly anything: what they can do to others."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness.admission import Service
from tests.harness.client import Client

SLOW = 200
ROUNDS = 300
PATIENCE_S = 5.0


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service(tmp_path_factory.mktemp("rude"))
    yield service
    service.stop()
    assert "Traceback" not in service.log.read_text()


# -- nonsense --------------------------------------------------------------------------------------

METHODS = st.sampled_from([b"GET", b"POST", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"get", b""])
TARGETS = st.one_of(
    st.sampled_from([
        b"/v1/pools", b"/v1/leases?limit=9", b"/v1/pools/default/backends/gpu-0", b"/healthz", b"*",
        b"/metrics", b"http://weir/v1/config", b"//", b"/%ff%00", b"/v1/leases/%2e%2e",
        b"/ui/", b"weir:80", b"/v1/sessions/a/b/c", b"/openapi.json", b"/v1/audit?cursor=%00",
    ]),
    st.binary(max_size=40),
)  # fmt: skip
NAMES = st.one_of(
    st.sampled_from([
        b"Host", b"Content-Length", b"Transfer-Encoding", b"Connection", b"Expect", b"Upgrade",
        b"Authorization", b"Content-Type", b"If-Match", b"Cookie", b"Accept", b"Last-Event-ID",
    ]),
    st.binary(max_size=12),
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([
        b"127.0.0.1", b"0", b"5", b"-1", b"99999999999999999999", b"5, 5", b"chunked",
        b"gzip, chunked", b"close", b"keep-alive, upgrade", b"100-continue", b"h2c",
        b"application/json",        b"Bearer \xff", b'"x"', b"*", b"text/event-stream;q=x",
    ]),
    st.binary(max_size=24),
)  # fmt: skip
BODIES = st.one_of(
    st.sampled_from(
        [b"", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b'{"max_streams": null}', b"{" * 9]
    ),
    st.binary(max_size=60),
)
END = st.sampled_from([b"\r\n", b"\n", b"\r", b""])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """What looks like a request more or less."""
    version = draw(st.sampled_from([b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.", b""]))
    line = b" ".join((draw(METHODS), draw(TARGETS), version))
    fields = draw(st.lists(st.tuples(NAMES, VALUES), max_size=5))
    lines = [line, *(name + b": " + value for name, value in fields), b""]
    return b"".join(text + draw(END) for text in lines) + draw(BODIES)


@given(sent=st.lists(st.one_of(requests(), st.binary(max_size=80)), min_size=1, max_size=4))
@settings(
    max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_nonsense_is_no_defect_of_ours_and_never_hangs(service: Service, sent: list[bytes]) -> None:
    said = b""
    with socket.create_connection(("127.0.0.1", service.port), PATIENCE_S) as client:
        with suppress(OSError):  # it has been refused already
            for part in sent:
                client.sendall(part)
            client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := client.recv(65536):  # a TimeoutError here is a hang
                said += data
    assert not re.search(rb"^HTTP/1\.1 5", said, re.MULTILINE), (sent, said)
    if said:
        assert said.startswith(b"HTTP/1.1 "), (sent, said)


# -- hardly anything -------------------------------------------------------------------------------


class Slow:
    """Clients of four kinds, a quarter each: heads and bodies that drip, readers that do not read
    what never ends or what is long."""

    def __init__(self, port: int) -> None:
        self.clients = [Client(port, receive_buffer=4_096) for _ in range(SLOW)]
        for n, client in enumerate(self.clients):
            match n % 4:
                case 0:
                    client.socket.sendall(b"GET /v1/pools HTTP/1.1\r\n")
                case 1:
                    client.post(
                        b"{", "/v1/pools/default/backends/gpu-0", method="PATCH", length=900
                    )
                case 2:
                    client.post(path="/v1/events", method="GET")
                case 3:
                    for _ in range(20):
                        client.post(path="/metrics", method="GET")
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._drip)
        self._thread.start()

    def _drip(self) -> None:
        while not self._ends.wait(0.2):
            for n, client in enumerate(self.clients):
                with suppress(OSError):
                    if n % 4 < 2:
                        client.socket.sendall(b"X: y\r\n" if n % 4 == 0 else b" ")

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()
        for client in self.clients:
            client.fin()


def test_streams_are_admitted_and_people_answered_beside_two_hundred_slow_clients(
    service: Service,
) -> None:
    slow = Slow(service.port)
    try:
        took = []
        for n in range(ROUNDS):
            began = time.monotonic()
            [lease] = service.grant(session="node-1/1/1")
            [done] = service.batch(
                "node-1/1/1",
                {"op": "release", "id": lease, "verdict": "completed", "witness": "lua"},
            )
            took.append(time.monotonic() - began)
            assert done == {"outcome": "released"}
            if n % 50 == 0:
                assert service.get("/v1/pools/default")["streams"] == 0
        assert sorted(took)[ROUNDS * 99 // 100] < 2 and sorted(took)[ROUNDS // 2] < 0.1, sorted(
            took
        )[-5:]
    finally:
        slow.stop()
    assert service.get("/v1/whoami")["open"]
