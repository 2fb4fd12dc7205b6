"""Spans of requests, sent by OTLP where OpenTelemetry's usual environment variables say whereto.

Without them nothing of OpenTelemetry is imported, `traceparent` goes to the engine as the client sent it, and
requests pay for nothing. With them the gateway's span continues the client's trace (W3C Trace Context), `wait` is
until the request went to a replica, and each attempt at one is a span that the engine's belong under. Neither
bodies nor keys are in any.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from multidict import CIMultiDictProxy

from exo_inference.gateway.addresses import route_of
from exo_inference.gateway.exchange import CLIENT_CLOSED, Exchange

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span, Tracer

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SERVICE = "exo-gateway"
_METHODS = frozenset(
    {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
)
"""Others are `_OTHER` in attributes and `HTTP` in names, as OpenTelemetry's conventions say."""
_MAX_PATH = 256
_LAST_SPANS_SECONDS = 2.0
"""How long the end of the process waits for a collector."""


class Attempt:
    """One replica that a request was sent to."""

    def __init__(self, span: Span) -> None:
        self._span = span

    def inject(self, headers: MutableMapping[str, str]) -> None:
        """Have the replica continue the trace from here."""
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        for name in ("traceparent", "tracestate"):
            headers.pop(name, None)
        TraceContextTextMapPropagator().inject(headers, set_span_in_context(self._span))

    def end(self, error: BaseException | None) -> None:
        """Note how it ended; a client that has left is no error of the replica's."""
        if isinstance(error, Exception):
            _fail(self._span, type(error).__name__.removeprefix("_"))
        self._span.end()


class RequestTrace:
    """The spans of one request."""

    def __init__(self, tracer: Tracer, headers: CIMultiDictProxy[str], method: str) -> None:
        from opentelemetry.trace import SpanKind, set_span_in_context

        self._tracer = tracer
        name = method if method in _METHODS else "HTTP"  # a sampler may look at it
        self._span = tracer.start_span(name, _context_of(headers), kind=SpanKind.SERVER)
        self._under = set_span_in_context(self._span)
        self._wait: Span | None = tracer.start_span("wait", self._under)

    def attempt(self, replica: str) -> Attempt:
        """Begin to send the request to a replica: it waits no longer."""
        from opentelemetry.trace import SpanKind

        self._end_wait()
        attributes = {"exo.replica": replica}
        return Attempt(
            self._tracer.start_span(
                "send", self._under, kind=SpanKind.CLIENT, attributes=attributes
            )
        )

    def end(self, exchange: Exchange) -> None:
        """Note what came of it."""
        self._end_wait()
        span = self._span
        method = exchange.method if exchange.method in _METHODS else "_OTHER"
        route = route_of(exchange.path) if exchange.path else ""
        # Names and routes are few, whatever clients send; programs that read spans count by them.
        span.update_name(f"{method if method in _METHODS else 'HTTP'} {route}".strip())
        span.set_attributes(
            {
                "http.request.method": method,
                "http.route": route,
                "url.path": exchange.path[:_MAX_PATH],
                "http.response.status_code": exchange.status,
                "exo.request_id": exchange.request_id,
                "exo.deployment.id": exchange.deployment_id,
                "exo.deployment.name": exchange.deployment,
                "exo.held_seconds": exchange.held_seconds,
                "exo.retries": exchange.retries,
            }
        )
        if exchange.tokens is not None:
            span.set_attribute("gen_ai.usage.input_tokens", exchange.tokens.prompt)
            span.set_attribute("gen_ai.usage.output_tokens", exchange.tokens.completion)
        if exchange.status >= 500 or exchange.status == CLIENT_CLOSED or exchange.broken:
            _fail(span, str(exchange.status))
        span.end()

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._wait.end()
            self._wait = None


class Tracing:
    """Sends the spans of one gateway process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("exo_inference.gateway")

    def begin(self, headers: CIMultiDictProxy[str], method: str) -> RequestTrace:
        """Begin the spans of a request, in the trace that its headers continue."""
        return RequestTrace(self._tracer, headers, method)

    def close(self) -> None:
        """Send what is left, unless the collector takes long."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(_LAST_SPANS_SECONDS)


def open_tracing(environment: Mapping[str, str]) -> Tracing | None:
    """Return what sends spans; None where the environment does not ask for it, or it cannot be done."""
    if not is_asked_for(environment):
        return None
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        processor = BatchSpanProcessor(_exporter(environment))
    except ImportError as exc:
        logger.warning("no traces are sent: %s; pip install 'exo-inference[tracing]'", exc)
        return None
    except ValueError as exc:
        logger.warning("no traces are sent: %s; change OpenTelemetry's variables", exc)
        return None
    # Who sends a wrong header, perhaps without a key, does not write into the log.
    logging.getLogger("opentelemetry.trace").setLevel(logging.ERROR)
    resource = Resource.create()
    if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: _SERVICE}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return Tracing(provider)


def is_asked_for(environment: Mapping[str, str]) -> bool:
    """Say whether OpenTelemetry's variables name where traces go, and do not switch them off."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    wanted = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower() or "otlp"
    return wanted == "otlp" and any(environment.get(name) for name in _ENDPOINTS)


def _exporter(environment: Mapping[str, str]) -> SpanExporter:
    """Return what sends spans; it reads the rest of the variables itself.

    Raises:
        ImportError: its package is not installed.
        ValueError: a protocol that there is none for.
    """
    named = (environment.get(name, "").strip() for name in _PROTOCOLS)
    protocol = next(filter(None, named), "http/protobuf")
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter()
    raise ValueError(f"the protocol {protocol[:64]!r} of OTLP is not http/protobuf")


def _context_of(headers: CIMultiDictProxy[str]) -> Context:
    """Return the trace that headers continue; an empty one where they say none, or say it wrongly."""
    from opentelemetry.context import Context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parents = headers.getall("traceparent", [])
    if len(parents) != 1:
        return Context()
    states = ",".join(headers.getall("tracestate", []))
    carrier = {"traceparent": parents[0], "tracestate": states}
    return TraceContextTextMapPropagator().extract(carrier, Context())


def _fail(span: Span, kind: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))
