"""Traces: the client's reaches the engine as it is, and a collector gets Weir's part of it."""

import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from control.client import ServiceClient
from tests.harness.client import CHAT, Client, chat_body
from tests.harness.collector import Collector, attributes
from tests.harness.h2client import H2Client
from tests.harness.node import Engine, Node, wait_for
from tests.harness.scripted import DONE, HEAD, LAST, Scripted, chunk

QA = {"X-Medical-Scene": "QA"}
BEATING = "/beating"
ROUTES = [
    {"path": CHAT, "pool": "default"},
    {"path": BEATING, "pool": "default", "heartbeat": "5s"},
]


def traceparent(flags: str = "01") -> tuple[str, str, str]:
    """A header, and the ids of its trace and of its span."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return f"00-{trace}-{span}-{flags}", trace, span


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    collector.start()
    yield collector
    collector.stop()


@pytest.fixture(scope="module")
def traced(
    engine: Engine, collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Node]:
    """A node that traces, with room for two streams."""
    node = Node(
        tmp_path_factory.mktemp("traced"), [engine.url], limits={"max_streams": 2}, routes=ROUTES,
        tracing={"endpoint": collector.url}
    )  # fmt: skip
    yield node
    node.settled()
    node.stop()


@pytest.fixture(scope="module", params=[False, True], ids=["as it is", "with a collector"])
def listening(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Scripted]]:
    """A node before an engine that keeps what it is asked."""
    engine = Scripted(HEAD, chunk(DONE), LAST)
    tracing = {"tracing": {"endpoint": "http://127.0.0.1:9"}} if request.param else {}
    folder = tmp_path_factory.mktemp("listening")
    node = Node(folder, [engine.url], routes=ROUTES, **tracing)
    yield node, engine
    node.settled()
    node.stop()
    engine.stop()


@pytest.mark.parametrize("path", [CHAT, BEATING])
@pytest.mark.parametrize("version", ["1.1", "2"])
def test_a_traceparent_passes_unchanged(
    listening: tuple[Node, Scripted], path: str, version: str
) -> None:
    node, engine = listening
    odd = "cc-" + "A" * 40 + "-future"  # not ours to judge
    state = "vendor=opaque,other=1"

    def ask(**headers: str) -> bytes:
        """The head that the engine got."""
        if version == "2":
            H2Client(node.h2_port).post(b"{}", path=path, headers=headers).rest()
        else:
            with Client(node.port) as client:
                assert client.request(b"{}", path=path, headers=headers)[0].status == 200
        return engine.requests[-1]

    for given in (traceparent()[0], traceparent("00")[0], odd):
        head = ask(traceparent=given, tracestate=state)
        assert head.lower().count(b"traceparent:") == 1
        assert f"\r\ntraceparent: {given}\r\n".encode() in head
        assert f"\r\ntracestate: {state}\r\n".encode() in head
    assert b"traceparent" not in ask().lower(), "none is made up"


@pytest.mark.parametrize("path", [CHAT, BEATING])
def test_a_collector_gets_the_decision_and_the_stream_as_children_of_the_clients_span(
    traced: Node, collector: Collector, path: str
) -> None:
    header, trace, span = traceparent()
    began = time.time_ns()
    with Client(traced.port) as client:
        response, _ = client.request(
            chat_body(5, gap_ms=20, prompt="机密"), path=path, headers={**QA, "traceparent": header}
        )
    assert response.status == 200
    spans = wait_for(lambda: len(found := collector.of(trace)) == 2 and found)
    decide, stream = spans["weir.decide"], spans["weir.stream"]
    assert {each.parent_span_id.hex() for each in spans.values()} == {span}
    assert began < decide.start_time_unix_nano < decide.end_time_unix_nano
    assert decide.end_time_unix_nano <= stream.start_time_unix_nano < stream.end_time_unix_nano
    assert stream.end_time_unix_nano - stream.start_time_unix_nano > 80_000_000
    told = attributes(stream)
    assert told.pop("weir.tokens") > 1_000
    assert told.pop("weir.witness") in ("lua", "log")  # whoever was first
    assert told == {
        "weir.lease": response.headers["x-request-id"], "weir.pool": "default",
        "weir.backend": "gpu-0", "weir.scene": "QA", "weir.verdict": "completed",
    }  # fmt: skip
    assert attributes(decide)["weir.outcome"] == "granted"
    assert decide.status.code == stream.status.code == 0
    assert collector.resources[-1]["service.name"] == "weir"
    assert not any("机密".encode() in body for body in collector.bodies)


def test_a_refusal_and_a_broken_stream_are_errors(traced: Node, collector: Collector) -> None:
    held = [Client(traced.port).post(chat_body(200, gap_ms=50), headers=QA) for _ in range(2)]
    assert [client.head().status for client in held] == [200, 200]
    header, trace, _ = traceparent()
    with Client(traced.port) as client:
        refused, _ = client.request(chat_body(1), headers={**QA, "traceparent": header})
    assert refused.status == 429
    for client in held:
        client.fin()
    decide = wait_for(lambda: collector.of(trace).get("weir.decide"))
    assert (decide.status.code, decide.status.message) == (2, "streams_exhausted")
    assert attributes(decide)["weir.limit"] == 2
    wait_for(lambda: traced.in_use()[0] == 0)
    header, trace, _ = traceparent()
    with Client(traced.port) as client:
        client.post(chat_body(9, fail_after=2), headers={**QA, "traceparent": header}).head()
        with suppress(OSError):
            client.rest()
    stream = wait_for(lambda: collector.of(trace).get("weir.stream"))
    assert (stream.status.code, stream.status.message) == (2, "upstream_truncated")


def test_no_span_for_a_trace_that_is_not_kept_nor_for_what_is_no_trace(
    traced: Node, collector: Collector
) -> None:
    kept, trace, _ = traceparent()
    others = [
        traceparent("00")[0],
        "nonsense",
        "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
        kept[:-1],
    ]
    sly = '00-"},{"op":"release","id":"x"}'.ljust(55, "0")
    for header in [*others, sly, kept]:
        wait_for(lambda: traced.in_use()[0] == 0)  # there is room for two
        with Client(traced.port) as client:
            response, _ = client.request(chat_body(1), headers={**QA, "traceparent": header})
            assert response.status == 200
    wait_for(lambda: len(collector.of(trace)) == 2)
    ids = {header[3:35] for header in others[:1] + others[2:3]}
    assert not ids & {span.trace_id.hex() for span in collector.spans}
    assert traced.metric("weir_spans_total", outcome="failed") == 0
    made = traced.metric("weir_spans_total", outcome="made")
    wait_for(lambda: traced.metric("weir_spans_total", outcome="exported") == made)


def test_a_collector_that_is_away_costs_neither_streams_nor_memory_nor_log(
    engine: Engine, tmp_path: Path
) -> None:
    collector = Collector()  # not started
    node = Node(tmp_path, [engine.url], tracing={"endpoint": collector.url})
    [worker] = node.workers("admission")
    gateway = ServiceClient(f"unix:{node.state}/run/admission.sock", timeout_s=10)

    def burst(count: int) -> None:
        for _ in range(count):
            ops: list[dict[str, Any]] = []
            for _ in range(100):
                lease = {"id": secrets.token_hex(16)}
                asked = {"route": CHAT, "scene": "QA", "bytes": 1, "trace": traceparent()[0]}
                ops.append({"op": "acquire", **lease, **asked})
                ops.append({"op": "release", **lease, "verdict": "completed"})
            results = gateway.batch("gateway/1/1", ops)
            assert all(result.get("decision", "granted") == "granted" for result in results)

    burst(15)
    wait_for(lambda: node.metric("weir_spans_total", outcome="failed") > 0, 10)
    before = psutil.Process(worker).memory_info().rss
    burst(40)  # four times more than have a place
    assert node.metric("weir_spans_total", outcome="made") == 11_000
    assert psutil.Process(worker).memory_info().rss - before < 20 << 20
    said = (node.state / "log/admission.log").read_text()
    assert said.count("collector_away") == 1
    assert "Traceback" not in said and len(said.splitlines()) < 20
    collector.start()
    wait_for(lambda: collector.spans, 15)
    header, trace, _ = traceparent()
    with Client(node.port) as client:
        assert client.request(chat_body(1), headers={"traceparent": header})[0].status == 200
    wait_for(lambda: len(collector.of(trace)) == 2, 20)
    assert "collector_back" in (node.state / "log/admission.log").read_text()
    collector.stop()
    node.settled()
    node.stop()


def test_what_is_not_sent_yet_is_sent_at_the_end_and_a_reload_goes_on(
    traced: Node, collector: Collector
) -> None:
    header, trace, _ = traceparent()
    with Client(traced.port) as client:
        sent = {**QA, "traceparent": header}
        assert client.request(chat_body(1), headers=sent)[0].status == 200
    [old] = traced.workers("admission")
    os.kill(traced.pid("admission"), signal.SIGHUP)
    wait_for(lambda: old not in traced.workers("admission"), 15)
    assert len(collector.of(trace)) == 2
    header, trace, _ = traceparent()
    with Client(traced.port) as client:
        sent = {**QA, "traceparent": header}
        assert client.request(chat_body(1), headers=sent)[0].status == 200
    wait_for(lambda: len(collector.of(trace)) == 2, 10)
