"""What is refused is refused in milliseconds, with a frame that a client can use.

Casebook 10, 29, 30, 31, 32; contract.md, section 3.
"""

import json
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import openai
import pytest

from tests.harness.client import Client, chat_body, error_of
from tests.harness.h2client import H2Client
from tests.harness.node import IMPATIENT, Engine, Node, wait_for

REFUSED_WITHIN_S = 0.02
STREAMS = 25
SSE = {"Accept": "text/event-stream"}
JSON = {"Accept": "application/json"}
QA = {"X-Medical-Scene": "QA"}


@contextmanager
def held(node: Node, count: int, headers: dict[str, str]) -> Iterator[list[Client]]:
    """So many streams, running."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(node.port)) for _ in range(count)]
        for client in clients:
            assert client.post(chat_body(2_000, gap_ms=50), headers=headers).head().status == 200
        yield clients
    wait_for(lambda: node.in_use() == (0, 0))


@pytest.fixture
def full(node: Node) -> Iterator[Node]:
    """A node whose 25 streams are all taken."""
    wait_for(lambda: node.in_use() == (0, 0))
    with held(node, STREAMS, QA):
        yield node


@pytest.mark.parametrize("expect", [{}, {"Expect": "100-continue"}], ids=["plain", "expect"])
def test_the_26th_is_refused_at_once_with_its_body_unsent(
    full: Node, expect: dict[str, str]
) -> None:
    took = []
    for _ in range(20):
        client = Client(full.port)
        began = time.monotonic()
        # 60,000 bytes count 36,000 tokens: it could fit, so it is a stream that is wanting.
        client.post(b"", headers={**QA, **expect}, length=60_000)
        response = client.head()
        took.append(time.monotonic() - began)
        assert response.status == 429
        error = error_of(client.rest())
        assert error["code"] == "streams_exhausted"
        assert client.closed()
        client.fin()
    assert min(took) < REFUSED_WITHIN_S, took


def test_five_megabytes_unsent_are_refused_at_once_and_closed_soon(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine("--kv-tokens", "100000000")
    node = start_node([engine.url], limits={"max_streams": 1, "max_tokens": 50_000_000})
    with held(node, 1, {}):
        for headers in ({}, {"Expect": "100-continue"}):
            refused, closed = [], []
            for _ in range(5):
                client = Client(node.port)
                began = time.monotonic()
                client.post(b"x" * 1_000 if not headers else b"", headers=headers, length=5 << 20)
                assert client.head().status == 429
                refused.append(time.monotonic() - began)
                client.rest()
                assert client.closed()
                closed.append(time.monotonic() - began)
                client.fin()
            assert min(refused) < REFUSED_WITHIN_S * 3 and min(closed) < 3, (refused, closed)
        over_h2 = H2Client(node.h2_port).post(b"x" * 1_000, length=5 << 20).head()
        assert over_h2.status == 429
        over_h2.close()


def test_the_refusal_says_all_that_a_client_needs(full: Node) -> None:
    with Client(full.port) as client:
        response, body = client.request(chat_body(1), headers={**QA, **SSE})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert response.headers["x-weir-reason"] == "streams_exhausted"
    assert len(response.headers["x-request-id"]) == 32
    assert body.count(b"\n") == 3, "one event, its data on one line"
    error = error_of(body)
    assert (error["type"], error["param"]) == ("overloaded", None)
    weir = error["weir"]
    assert 1_000 <= weir.pop("retry_after_ms") <= 60_000
    assert weir == {
        "reason": "streams_exhausted", "pool": "default", "limit": 25, "in_use": 25,
        "requested": 1, "retryable": True,
    }  # fmt: skip


def test_the_refusals_form_follows_what_the_client_accepts(full: Node) -> None:
    kinds = {}
    for name, headers in (("sse", SSE), ("json", JSON), ("any", {"Accept": "*/*"}), ("none", {})):
        with Client(full.port) as client:
            response, body = client.request(chat_body(1), headers=headers)
            assert response.status == 429
            kinds[name] = response.headers["content-type"].split(";")[0]
            error_of(body)
    assert kinds == {
        "sse": "text/event-stream", "json": "application/json",
        "any": "text/event-stream", "none": "text/event-stream",
    }  # fmt: skip


def test_the_openai_client_raises_its_own_error_and_recovers_after_retry_after(
    full: Node, engine: Engine
) -> None:
    granted = full.metric("weir_leases_granted_total")
    client = openai.OpenAI(base_url=f"{full.url}/v1", api_key="none", max_retries=2)
    with pytest.raises(openai.RateLimitError) as caught:
        client.with_options(max_retries=0).chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "hi"}], stream=True
        )
    assert caught.value.code == "streams_exhausted"
    assert caught.value.type == "overloaded"
    assert "retry" in str(caught.value)
    # Three attempts cost three cheap refusals and no lease.
    before = full.metric("weir_requests_total", outcome="streams_exhausted")
    with pytest.raises(openai.RateLimitError):
        client.chat.completions.create(
            model="sim", messages=[{"role": "user", "content": "hi"}], stream=True
        )
    assert full.metric("weir_requests_total", outcome="streams_exhausted") == before + 3
    assert full.metric("weir_leases_granted_total") == granted


def test_the_openai_client_streams(node: Node) -> None:
    wait_for(lambda: node.in_use() == (0, 0))
    client = openai.OpenAI(base_url=f"{node.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="sim",
        messages=[{"role": "user", "content": "hi"}],
        stream=True,
        extra_body={"sim": {"frames": 5, "gap_ms": 5}},
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert text == "患者主诉发热三天，"
    node.settled()


def test_13_records_fit_and_the_14th_is_refused_for_tokens(node: Node) -> None:
    wait_for(lambda: node.in_use() == (0, 0))
    with held(node, 13, {}), Client(node.port) as client:
        response, body = client.request(chat_body(1), headers=JSON)
        assert response.status == 429
        weir = error_of(body)["weir"]
        assert weir["reason"] == "tokens_exhausted"
        assert weir["limit"] == 80_000 and weir["in_use"] == node.in_use()[1]
        assert weir["in_use"] + weir["requested"] > 80_000


def test_what_can_never_fit_is_told_so(node: Node) -> None:
    with Client(node.port) as client:
        client.post(b"", headers=SSE, length=200_000)
        assert client.head().status == 413
        assert client.response.headers["content-type"].startswith("application/json")
        assert "retry-after" not in client.response.headers
        error = error_of(client.rest())
    assert (error["type"], error["code"]) == ("invalid_request_error", "request_too_large")
    node.settled()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 99999999\r\n\r\n", 413),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 1e3\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 1\r\n\r\n", 400),
        (b"POST /v1/other HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n", 404),
        (b"DELETE /v1/chat/completions HTTP/1.1\r\nHost: t\r\n\r\n", 405),
        (b"POST /_weir/acquire HTTP/1.1\r\nHost: t\r\nContent-Length: 0\r\n\r\n", 404),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 414),
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nX: "
            + b"a" * 64_000 + b"\r\nContent-Length: 0\r\n\r\n", 400,
        ),
    ],
)  # fmt: skip
def test_bad_requests_get_json_and_no_lease(node: Node, head: bytes, status: int) -> None:
    granted = node.metric("weir_leases_granted_total")
    with Client(node.port) as client:
        client.socket.sendall(head)
        response = client.head()
        assert response.status == status
        error = error_of(client.rest())
    assert error["type"] == "invalid_request_error"
    assert error["message"] and error["code"]
    assert node.metric("weir_leases_granted_total") == granted


def chunked(client: Client) -> Client:
    client.socket.sendall(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return client


def http_1_0(client: Client) -> Client:
    client.socket.sendall(b"POST /v1/chat/completions HTTP/1.0\r\nHost: t\r\n\r\n")
    return client


@pytest.mark.parametrize("send", [chunked, http_1_0])
def test_an_unknown_size_counts_as_the_largest(
    start_engine: Callable[..., Engine],
    start_node: Callable[..., Node],
    send: Callable[[Client], Client],
) -> None:
    engine = start_engine("--kv-tokens", "100000000")
    node = start_node([engine.url], limits={"max_tokens": 1_000_000}, nginx={"max_body": "100k"})
    with Client(node.port) as client:
        send(client)
        wait_for(lambda: node.in_use() == (1, 6_000 + 61_440) or client_answered(client))
    node.settled()


def client_answered(client: Client) -> bool:
    """HTTP/1.0 without a length has no body: the engine refuses it at once."""
    client.socket.settimeout(0.01)
    try:
        return bool(client.socket.recv(1, 2))  # MSG_PEEK
    except TimeoutError:
        return False


@pytest.mark.parametrize("send", [chunked, http_1_0])
def test_an_unknown_size_is_refused_where_configured(
    start_engine: Callable[..., Engine],
    start_node: Callable[..., Node],
    send: Callable[[Client], Client],
) -> None:
    engine = start_engine()
    node = start_node([engine.url], estimate={"unknown_size": "refuse"})
    with Client(node.port) as client:
        send(client)
        assert client.head().status == 411
        assert error_of(client.rest())["code"] == "length_required"
    assert node.metric("weir_leases_granted_total") == 0


def test_large_prompts_pass_whole(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 30 and 31 c: neither the auth subrequest's limit nor a temporary file matters."""
    engine = start_engine("--kv-tokens", "100000000")
    node = start_node([engine.url], limits={"max_tokens": 100_000_000})
    for size in (50_000, 1_100_000, 7_900_000, 19_000_000):
        with Client(node.port, timeout_s=30) as client:
            response, body = client.request(chat_body(1, gap_ms=0, prompt="x" * size))
            assert response.status == 200 and b"[DONE]" in body
    assert engine.stats()["total"] == 4
    node.settled()
    assert not list((node.state / "tmp/body").rglob("*")) or not any(
        file.is_file() for file in (node.state / "tmp/body").rglob("*")
    )


def test_a_refused_rude_client_leaves_the_next_one_its_room(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 10 d: a reset right after the request, 200 times."""
    engine = start_engine()
    node = start_node([engine.url], limits={"max_streams": 1})
    for _ in range(200):
        Client(node.port).post(chat_body(1)).rst()

    def has_room() -> bool:
        with Client(node.port) as client:
            return client.request(chat_body(1))[0].status == 200

    wait_for(has_room)  # some may not have been looked at yet
    node.settled()


def test_forged_and_repeated_headers_change_nothing(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """Casebook 28: the key is nginx's own id; our headers are cleared, others' ids are labels."""
    engine = start_engine()
    node = start_node([engine.url])
    ids = set()
    body = chat_body(200)
    for value in ("same", "same", "../", "{", "*", "é", ""):
        with Client(node.port) as client:
            client.socket.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: t\r\n"
                b"X-Request-Id: " + value.encode() + b"\r\nX-Request-Id: other\r\n"
                b"X-Medical-Scene: QA\r\nX-Medical-Scene: Record_Gen\r\n"
                b"X-Weir-Lease: " + value.encode() + b"\r\nX-Weir-Tokens: 1\r\n"
                b"X-Weir-Estimate: 0\r\nX-Weir-Backend: gpu-9\r\nContent-Length: %d\r\n\r\n%b"
                % (len(body), body)
            )
            assert client.head().status == 200
            [lease] = node.leases()
            ids.add(lease["id"])
            assert lease["tokens"] > 1_000
        wait_for(lambda: node.in_use() == (0, 0))
    assert len(ids) == 7 and all(len(i) == 32 for i in ids)
    node.settled()


def test_the_service_away_is_an_honest_refusal(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    engine = start_engine()
    node = start_node([engine.url], admission=IMPATIENT)
    [worker] = node.workers("admission")
    os.kill(worker, signal.SIGSTOP)
    try:
        with Client(node.port) as client:
            began = time.monotonic()
            response, body = client.request(chat_body(1), headers=JSON)
            assert response.status == 503
            assert error_of(body)["code"] == "admission_down"
            assert time.monotonic() - began < 3
    finally:
        os.kill(worker, signal.SIGCONT)
    node.settled()
    with Client(node.port) as client:
        assert client.request(chat_body(1))[0].status == 200
    node.settled()


def advice(node: Node) -> int:
    """When a client that is refused now is told to come back, in milliseconds."""
    with Client(node.port) as client:
        response, body = client.request(chat_body(1), headers={**JSON, **QA})
    retry_ms = int(error_of(body)["weir"]["retry_after_ms"])
    assert response.headers["retry-after"] == str(math.ceil(retry_ms / 1_000))
    return retry_ms


@pytest.mark.parametrize("pool", [{}, {"when_down": "local", "local_share": 0.01}])
def test_clients_that_nginx_refuses_by_itself_are_not_told_to_return_together(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node], pool: dict[str, object]
) -> None:
    node = start_node([start_engine().url], pool=pool)
    [worker] = node.workers("admission")
    os.kill(worker, signal.SIGSTOP)
    try:
        told = [advice(node) for _ in range(60)]
    finally:
        os.kill(worker, signal.SIGCONT)
    # Half of what would be less than a second is a second: so it is with the service's advice.
    spread = [retry_ms for retry_ms in told if retry_ms > 1_000]
    assert len(spread) >= 10
    # Workers that rolled the same dice would say each number twice.
    assert len(set(spread)) > 0.65 * len(spread), told
    assert all(3_750 <= retry_ms <= 6_250 for retry_ms in told) or max(told) <= 1_250
    node.settled()


def test_the_services_own_advice_reaches_the_client_where_it_cannot_decide_yet(
    start_engine: Callable[..., Engine], start_node: Callable[..., Node]
) -> None:
    """After a lost journal nothing is granted for `session_ttl`."""
    node = start_node([start_engine().url], pool={"session_ttl": "40s"})
    arbiter = node.pid("admission")
    [worker] = node.workers("admission")
    os.kill(arbiter, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    for part in node.state.glob("journal.db*"):
        part.unlink()
    os.kill(arbiter, signal.SIGCONT)
    # It says up to 50 s; what nginx says by itself is 6 s at most.
    wait_for(lambda: advice(node) > 10_000, every_s=0.1)


def test_json_bodies_have_one_shape(full: Node) -> None:
    with Client(full.port) as client:
        _, body = client.request(chat_body(1), headers=JSON)
    assert set(json.loads(body)) == {"error"}
    assert set(json.loads(body)["error"]) == {"message", "type", "code", "param", "weir"}
