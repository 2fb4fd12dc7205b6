"""A stand-in of an OpenTelemetry collector: takes OTLP over HTTP on loopback and decodes it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span as it came, ids in hex; `parent` is empty at the top."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    failed: bool
    state: str


class Collector:
    """What has come so far."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.headers: list[dict[str, str]] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                found = self.path == "/v1/traces"
                if found:
                    collector.headers.append({k.lower(): v for k, v in self.headers.items()})
                    collector.spans += _decode(body)
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def named(self, name: str) -> list[Span]:
        """Return the spans of a name."""
        return [span for span in self.spans if span.name == name]

    @contextmanager
    def running(self) -> Iterator[Collector]:
        """Listen until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def _decode(body: bytes) -> Iterator[Span]:
    request = ExportTraceServiceRequest.FromString(body)
    for resource in request.resource_spans:
        service = _values(resource.resource.attributes)["service.name"]
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    name=span.name,
                    service=service,
                    trace=span.trace_id.hex(),
                    id=span.span_id.hex(),
                    parent=span.parent_span_id.hex(),
                    kind=span.kind,
                    start=span.start_time_unix_nano,
                    end=span.end_time_unix_nano,
                    attributes=_values(span.attributes),
                    failed=span.status.code == 2,
                    state=span.trace_state,
                )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
