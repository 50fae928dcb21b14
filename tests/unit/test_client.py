"""The client: what the service said, or one kind of error with a clear message."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from control.client import AdminClient, ServiceClient, ServiceError
from tests.harness.service import RecordingService

RELEASE = {"op": "release", "id": "a", "verdict": "completed", "witness": "log"}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RecordingService]:
    service = RecordingService(tmp_path / "a.sock")
    yield service
    service.stop()


@pytest.fixture
def client(service: RecordingService) -> Iterator[ServiceClient]:
    client = ServiceClient(f"unix:{service.path}", timeout_s=5.0)
    yield client
    client.close()


def test_it_says_what_the_service_said(client: ServiceClient, service: RecordingService) -> None:
    service.sessions = [{"id": "vm/1/2", "leases": 3, "silent_s": 0.5}, {"id": "other/1/2"}]
    service.streams = 7
    assert client.batch("vm/1/1", [RELEASE, RELEASE]) == [
        {"outcome": "released"}, {"outcome": "already_released"},
    ]  # fmt: skip
    assert client.sessions("vm") == service.sessions[:1]
    assert client.report_node("vm", {"agent": {}}) == {"streams": 7}
    assert service.reports == [("vm", {"agent": {}})]


def test_a_session_is_ended_under_its_own_name(
    client: ServiceClient, service: RecordingService
) -> None:
    client.end_session("vm/1/2")
    client.end_session("v m/1?x#y/2")
    assert service.ended == ["vm/1/2", "v m/1?x#y/2"]


def test_a_service_that_closed_its_connections_is_asked_on_a_new_one(
    client: ServiceClient, service: RecordingService
) -> None:
    client.sessions("vm")
    service.stop()
    service.start()
    assert client.sessions("vm") == []
    service.swallow = 1
    assert client.sessions("vm") == []


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (500, b"", "500"), (503, b'{"detail": "the journal is full"}', "the journal is full"),
        (400, b'{"title": "Bad Request"}', "400 Bad Request"), (302, b"", "302"),
        (200, b"", "not JSON"), (200, b"\xff", "not JSON"), (200, b"[]", "no sessions"),
        (200, b'{"sessions": 7}', "no sessions"), (200, b'{"sessions": [7]}', "no sessions"),
    ],
)  # fmt: skip
def test_what_is_no_answer_is_an_error_that_says_why(
    client: ServiceClient, service: RecordingService, status: int, body: bytes, told: str
) -> None:
    service.answer = (status, body)
    with pytest.raises(ServiceError, match=told) as caught:
        client.sessions("vm")
    assert caught.value.status == (None if status == 200 else status)
    assert "a.sock" in str(caught.value)


def test_results_that_are_fewer_than_asked_for_are_an_error(
    client: ServiceClient, service: RecordingService
) -> None:
    service.answer = (200, b'{"results": [{}]}')
    with pytest.raises(ServiceError, match="1 results for 2"):
        client.batch("vm/1/1", [RELEASE, RELEASE])


def test_a_service_that_is_not_there_is_named_with_the_cause(tmp_path: Path) -> None:
    for name, cause in (("none", "No such file"), ("file", "refused")):
        (tmp_path / "file").touch()
        with pytest.raises(ServiceError, match=f"{name}: .*{cause}"):
            ServiceClient(f"unix:{tmp_path / name}").sessions("vm")


def test_a_service_that_hangs_is_given_up_in_time(service: RecordingService) -> None:
    client = ServiceClient(f"unix:{service.path}", timeout_s=0.5)
    never = threading.Event()
    service.before = lambda: never.wait(5)
    with pytest.raises(ServiceError, match="timed out"):
        client.sessions("vm")
    never.set()
    client.close()


def test_over_tcp_it_sends_its_token_and_heeds_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"sessions": []}')

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        assert ServiceClient(address, token="secret").sessions("vm") == []
        assert ServiceClient(f"{address}/").sessions("vm") == []
        server.shutdown()
    assert seen == ["Bearer secret", None]


@pytest.mark.parametrize("token", ["令牌", "secret\r", "se cret", "secret\nX-A: b"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_quoted(token: str) -> None:
    with pytest.raises(ServiceError, match="only printable ASCII") as refused:
        AdminClient("http://127.0.0.1:1", token)
    assert "secret" not in str(refused.value)


def test_a_name_is_never_a_way_to_another_path(
    client: ServiceClient, service: RecordingService
) -> None:
    service.sessions = [{"id": "vm/1/2"}]
    with AdminClient(client.address) as admin:
        for ask in (admin.lease, admin.end_session, admin.pool, admin.node):
            for name in ("..", ".", *(["../leases/a"] if ask == admin.end_session else [])):
                with pytest.raises(ServiceError, match=r"nothing is named \. or \.\.") as refused:
                    ask(name)
                assert refused.value.status == 404
    client.end_session("..")
    assert service.sessions, "nobody was asked for anything"
