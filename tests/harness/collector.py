"""A collector of OpenTelemetry's: takes spans by OTLP over HTTP, and keeps them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.harness.node import free_port


class Collector:
    """Listens from :meth:`start` on; the port is the same before and after a stop."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.spans: list[Any] = []
        self.resources: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self._server: ThreadingHTTPServer | None = None

    def start(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def take(self, path: str, body: bytes) -> None:
        assert path == "/v1/traces"
        self.bodies.append(body)
        for group in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resources.append(attributes(group.resource))
            for scope in group.scope_spans:
                self.spans += scope.spans

    def of(self, trace_id: str) -> dict[str, Any]:
        """The spans of one trace, by name."""
        return {span.name: span for span in self.spans if span.trace_id.hex() == trace_id}

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


def attributes(thing: Any) -> dict[str, Any]:
    """The attributes of a span or resource as plain values."""
    return {
        each.key: getattr(each.value, each.value.WhichOneof("value")) for each in thing.attributes
    }
