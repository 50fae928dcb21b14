"""Spans over a real ledger: whose they are, when they begin and end, and what they tell."""

from pathlib import Path

import pytest
import yaml

from control.admission import Admission, Ask
from control.config import ConfigError, extras, load_with_tokens
from control.config.load import parse
from control.core.estimate import Estimate
from control.core.operation import Release
from control.core.pool import Backend, Pool
from control.core.verdict import Verdict, Witness
from control.stores import MemoryStore
from control.tracing.spans import NO_SPANS, Parent, Span, Tracing, read_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
KEPT, NOT_KEPT = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE}-{SPAN}-00"
PARENT = Parent(int(TRACE, 16), int(SPAN, 16))


class Service:
    """An admission with room for one stream, whose wall clock is a second ahead each time it is
    asked."""

    def __init__(self, drain: float = 0.0) -> None:
        self.now, self.wall_s = 100.0, 1_000
        self.spans: list[Span] = []
        self.tracing = Tracing(self.spans.append, NO_SPANS, self._wall_ns)
        backend = Backend("gpu-0", "http://127.0.0.1:1", 1, 80_000)
        store = MemoryStore([Pool("p", {"gpu-0": backend}, drain=drain)])
        estimate = Estimate(0.6, {"QA": 1_000}, "QA")
        self.admission = Admission(
            store, {"/p": "p"}, estimate, lambda: self.now, tracing=self.tracing
        )

    def _wall_ns(self) -> int:
        self.wall_s += 1
        return self.wall_s * 10**9

    def ask(self, lease_id: str, trace: str | None = KEPT, route: str = "/p") -> None:
        self.admission.acquire("node/1/1", Ask(lease_id, route, "QA", 100, trace=trace))

    def release(self, lease_id: str, verdict: Verdict) -> None:
        self.admission.batch("node/1/1", [Release(lease_id, verdict, Witness.LUA)])


def test_a_granted_stream_has_a_span_of_its_decision_and_one_of_its_life() -> None:
    service = Service()
    service.ask("a")
    [decide] = service.spans
    assert (decide.name, decide.parent, decide.failure) == ("weir.decide", PARENT, None)
    assert decide.began_ns < decide.ended_ns
    assert decide.attributes == {
        "weir.outcome": "granted", "weir.lease": "a", "weir.pool": "p", "weir.backend": "gpu-0",
        "weir.scene": "QA", "weir.tokens": 1_060,
    }  # fmt: skip
    service.release("a", Verdict.COMPLETED)
    stream = service.spans[1]
    assert (stream.name, stream.parent, stream.failure) == ("weir.stream", PARENT, None)
    assert stream.began_ns == decide.ended_ns < stream.ended_ns
    assert (stream.attributes["weir.verdict"], stream.attributes["weir.witness"]) == (
        "completed", "lua",
    )  # fmt: skip
    assert len(service.spans) == 2 and len(service.tracing) == 0


def test_a_refusal_is_an_error_that_says_which_limit() -> None:
    service = Service()
    service.ask("a")
    service.ask("b")
    refused = service.spans[1]
    assert refused.failure == "streams_exhausted"
    assert refused.attributes == {
        "weir.outcome": "refused", "weir.reason": "streams_exhausted", "weir.pool": "p",
        "weir.limit": 1, "weir.in_use": 1, "weir.requested": 1,
    }  # fmt: skip


def test_a_stream_that_was_cut_ends_when_its_room_is_free() -> None:
    service = Service(drain=0.1)
    service.ask("a")
    service.release("a", Verdict.CLIENT_ABORT)
    assert len(service.spans) == 1
    service.now += 0.2
    service.admission.tick()
    stream = service.spans[1]
    assert (stream.attributes["weir.verdict"], stream.failure) == ("client_abort", None)


@pytest.mark.parametrize("verdict", [Verdict.UPSTREAM_TRUNCATED, Verdict.TIMEOUT])
def test_an_end_that_nobody_wished_is_an_error(verdict: Verdict) -> None:
    service = Service()
    service.ask("a")
    service.release("a", verdict)
    assert service.spans[1].failure == verdict.value


def test_asking_twice_makes_one_stream() -> None:
    service = Service()
    service.ask("a")
    service.ask("a")
    service.release("a", Verdict.COMPLETED)
    assert [span.name for span in service.spans].count("weir.stream") == 1


def test_who_does_not_trace_gets_no_span_and_leaves_nothing() -> None:
    service = Service()
    for n, trace in enumerate([None, NOT_KEPT]):
        service.ask(f"{n}", trace)
        service.release(f"{n}", Verdict.COMPLETED)
    assert service.spans == [] and len(service.tracing) == 0


def test_a_client_that_has_left_and_a_route_that_is_not_are_told_as_nothing() -> None:
    service = Service()
    service.release("a", Verdict.CLIENT_ABORT)
    service.ask("a")
    service.ask("b", route="/nowhere")
    assert [span.attributes["weir.outcome"] for span in service.spans] == ["nothing", "nothing"]
    assert len(service.tracing) == 0


@pytest.mark.parametrize(
    "text",
    ["", "00", NOT_KEPT, KEPT + "-more", KEPT.upper(), KEPT.replace("00-", "ff-", 1), KEPT + "\n",
     f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", KEPT.replace("-", "_")],
)  # fmt: skip
def test_what_is_no_traceparent_of_a_kept_trace_names_no_span(text: str) -> None:
    assert read_traceparent(text) is None


def test_a_later_version_of_the_header_is_read_as_far_as_it_is_known() -> None:
    assert read_traceparent(KEPT.replace("00-", "01-", 1)) == PARENT
    assert read_traceparent(KEPT[:-2] + "03") == PARENT


def test_tracing_without_its_packages_is_a_fault_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    backend = {"name": "gpu-0", "url": "http://127.0.0.1:8000"}
    raw = {"state": str(tmp_path), "pools": {"default": {"backends": [backend]}}}
    file = tmp_path / "weir.yml"
    file.write_text(yaml.safe_dump({**raw, "tracing": {"endpoint": "http://127.0.0.1:4318"}}))
    assert load_with_tokens(file).config.tracing
    monkeypatch.setattr(extras, "TRACING", "opentelemetry.not_installed.http")
    with pytest.raises(ConfigError, match=r"tracing: needs packages .*pip install .*\[tracing\]"):
        load_with_tokens(file)
    file.write_text(yaml.safe_dump(raw))
    assert load_with_tokens(file).config.tracing is None


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "grpc://c:4317", "http://", "http://c:0", "http://u:p@c", 5, None],
)  # fmt: skip
def test_an_endpoint_that_is_none_is_refused_with_a_remedy(endpoint: object) -> None:
    raw = {"pools": {"default": {"backends": [{"name": "a", "url": "http://h:1"}]}}}
    with pytest.raises(ConfigError) as caught:
        parse({**raw, "tracing": {"endpoint": endpoint}}, "weir.yml")
    [fault] = caught.value.faults
    assert fault.path == "tracing.endpoint"
