"""Spans on their way to a collector: OTLP over HTTP, by OpenTelemetry's SDK (``weir[tracing]``).

Imported only where tracing is configured. Sending goes on beside all else, a few spans at a time,
so that making them into bytes never keeps a decision waiting for long. A collector that is away
costs nothing but the spans: the queue is bounded, the oldest go.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

import control
from control.tracing.spans import EXPORTED, FAILED_TO_EXPORT, MADE, NO_SPANS, SAMPLED, Span

PATH = "/v1/traces"
AT_ONCE = 32
"""Spans of one request: about 1.5 ms to encode."""
QUEUE = 2_048
"""Spans that wait, about 4 MB."""
DELAY_MS = 500
TIMEOUT_S = 2.0
"""Of one request, with the SDK's own tries within it."""
LAST_S = 1.0
"""What has not been sent by then is given up when the service ends."""

log = logging.getLogger("weir.tracing")


class Collector:
    """The way to one collector. ``node`` names this service there."""

    def __init__(self, endpoint: str, node: str) -> None:
        # What there is to say of the collector is said below, once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL + 1)
        self.counts: Counter[str] = Counter(NO_SPANS)
        self._exporter = _Exporter(endpoint.rstrip("/") + PATH, self.counts)
        self._queue = BatchSpanProcessor(
            self._exporter,
            max_queue_size=QUEUE,
            schedule_delay_millis=DELAY_MS,
            max_export_batch_size=AT_ONCE,
        )
        resource = Resource.create(
            {
                "service.name": "weir",
                "service.version": control.__version__,
                "service.instance.id": node,
            }
        )
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("weir", control.__version__)

    def send(self, span: Span) -> None:
        """Queue a span; it does not wait."""
        self.counts[MADE] += 1
        parent = SpanContext(
            span.parent.trace_id,
            span.parent.span_id,
            is_remote=True,
            trace_flags=TraceFlags(SAMPLED),
        )
        made = self._tracer.start_span(
            span.name,
            context=set_span_in_context(NonRecordingSpan(parent)),
            attributes=span.attributes,
            start_time=span.began_ns,
        )
        if span.failure:
            made.set_status(Status(StatusCode.ERROR, span.failure))
        made.end(span.ended_ns)

    def close(self) -> None:
        """Send what is left, as far as that is quickly done."""
        self._exporter.give_up_at = time.monotonic() + LAST_S
        self._queue.shutdown()  # type: ignore[no-untyped-call]


class _Exporter(SpanExporter):
    """OpenTelemetry's, with what became of the spans counted, and said once in each direction."""

    def __init__(self, url: str, counts: Counter[str]) -> None:
        session = requests.Session()
        # A collector is never behind the proxy that the environment may name.
        session.trust_env = False
        self._exporter = OTLPSpanExporter(endpoint=url, timeout=TIMEOUT_S, session=session)
        self._url = url
        self._counts = counts
        self._away = False
        self.give_up_at = float("inf")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if time.monotonic() > self.give_up_at:
            result = SpanExportResult.FAILURE
        else:
            result = self._exporter.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        self._counts[FAILED_TO_EXPORT if failed else EXPORTED] += len(spans)
        if failed and not self._away:
            log.warning("collector_away url=%s spans_are_dropped=true", self._url)
        elif self._away and not failed:
            log.info("collector_back url=%s", self._url)
        self._away = failed
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]
