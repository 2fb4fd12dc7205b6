"""Spans of requests, sent by OTLP where OpenTelemetry's usual environment variables say whereto.

Without them nothing of OpenTelemetry is imported, and requests pay for nothing. One span per request,
`llm_request` with vLLM's attributes, and under it one for each phase: `queue`, `prefill`, `decode`. Its parent
is what `traceparent` says (W3C Trace Context, level 1); prompts and answers are in none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multidict import CIMultiDictProxy

from exo_engine.sampling_params import SamplingParams
from exo_engine.server.telemetry.times import Times

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SERVICE = "exo-engine"
_LAST_SPANS_SECONDS = 2.0
"""How long the end of the process waits for a collector."""


@dataclass(frozen=True, slots=True)
class RequestFacts:
    """What a request's span says, beside its times."""

    request_id: str
    params: SamplingParams
    num_choices: int
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int
    finish_reasons: tuple[str, ...]


class Tracing:
    """Sends the spans of one server."""

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._provider = provider
        self._model = model
        self._tracer = provider.get_tracer("exo_engine")
        self._parent: ContextVar[Context | None] = ContextVar("parent", default=None)

    @contextmanager
    def under(self, headers: CIMultiDictProxy[str]) -> Iterator[None]:
        """Have the requests that are begun within the block continue the trace of these headers."""
        token = self._parent.set(_context_of(headers))
        try:
            yield
        finally:
            self._parent.reset(token)

    @property
    def parent(self) -> Context | None:
        """What the spans of a request that begins now belong under."""
        return self._parent.get()

    def record(
        self, parent: Context | None, times: Times, facts: RequestFacts, *, error: str | None
    ) -> None:
        """Send the spans of a request that ends now."""
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

        offset = _nanoseconds_to_wall_clock()

        def moment(seconds: float) -> int:
            return int(seconds * 1e9) + offset

        span = self._tracer.start_span(
            "llm_request", parent, kind=SpanKind.SERVER, start_time=moment(times.arrival)
        )
        if span.is_recording():
            end = time.monotonic()
            span.set_attributes(_attributes(self._model, times, facts, end))
            under = set_span_in_context(span, parent)
            for name in ("queue", "prefill", "decode"):
                if (phase := getattr(times, name)) is not None:
                    child = self._tracer.start_span(name, under, start_time=moment(phase[0]))
                    child.end(moment(phase[1]))
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, error))
            span.end(moment(end))

    def close(self) -> None:
        """Send what is left, unless the collector takes long."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(_LAST_SPANS_SECONDS)


def _nanoseconds_to_wall_clock() -> int:
    """Return what is added to the monotonic clock, in ns; the closest of three looks, as others may run in between."""
    looks = []
    for _ in range(3):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        looks.append((after - before, now - (before + after) // 2))
    return min(looks)[1]


def open_tracing(environment: Mapping[str, str], model: str) -> Tracing | None:
    """Return what sends the spans of a model's requests; None where the environment does not ask for it, or it cannot be done."""
    if not is_asked_for(environment):
        return None
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        processor = BatchSpanProcessor(_exporter(environment))
    except ImportError as exc:
        logger.warning("no traces are sent: %s; pip install 'exo-engine[tracing]'", exc)
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
    return Tracing(provider, model)


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


def _attributes(model: str, times: Times, facts: RequestFacts, end: float) -> dict[str, Any]:
    """Return what vLLM says of a request, and the names that OpenTelemetry has settled on since."""
    params = facts.params
    said: dict[str, Any] = {
        "gen_ai.request.id": facts.request_id,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.request.n": facts.num_choices,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.usage.prompt_tokens": facts.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": facts.num_completion_tokens,
        "gen_ai.usage.input_tokens": facts.num_prompt_tokens,
        "gen_ai.usage.output_tokens": facts.num_completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": facts.num_cached_tokens,
        "gen_ai.response.finish_reasons": facts.finish_reasons,
        "gen_ai.latency.e2e": end - times.arrival,
    }
    if times.first_token is not None:
        said["gen_ai.latency.time_to_first_token"] = times.first_token - times.arrival
    for name, phase in (
        ("time_in_queue", times.queue),
        ("time_in_model_prefill", times.prefill),
        ("time_in_model_decode", times.decode),
        ("time_in_model_inference", times.inference),
    ):
        if phase is not None:
            said[f"gen_ai.latency.{name}"] = phase[1] - phase[0]
    return {name: value for name, value in said.items() if value is not None}
