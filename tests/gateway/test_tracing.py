"""Spans of the gateway, as a collector gets them; and none where nobody asks for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from yarl import URL

from exo_inference.gateway.app import Gateway
from exo_inference.gateway.tracing import is_asked_for, open_tracing
from tests.otlp_collector import Collector, Span

TRACE, CLIENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{CLIENT}-01"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVER, CLIENT_KIND = 2, 3


@pytest.fixture
async def traced(stack, monkeypatch) -> AsyncIterator[tuple]:
    """A stack whose gateway sends spans, and who gets them."""
    with Collector().running() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        await stack.gateway.stop(grace_seconds=0.1)
        tracing = open_tracing({ENDPOINT: collector.url})
        assert tracing is not None
        stack.gateway = Gateway(stack.state, tracing=tracing)
        stack.url = f"http://127.0.0.1:{await stack.gateway.start('127.0.0.1', 0)}"

        async def spans() -> list[Span]:
            assert await asyncio.to_thread(tracing._provider.force_flush)
            return collector.spans

        yield stack, spans
        await stack.gateway.stop(grace_seconds=0.1)


def by_name(spans: list[Span]) -> dict[str, Span]:
    found = {span.name: span for span in spans}
    assert len(found) == len(spans)
    return found


async def ask(stack, **headers: str) -> int:
    async with stack.client.post(stack.path(), json={"model": "m"}, headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_client_gateway_and_engine_are_one_trace(traced) -> None:
    stack, spans = traced
    assert await ask(stack, traceparent=PARENT, tracestate="vendor=1,other=2") == 200
    found = by_name(await spans())
    whole = found["POST /v1/chat/completions"]
    assert (whole.trace, whole.parent, whole.kind) == (TRACE, CLIENT, SERVER)
    assert whole.service == "exo-gateway"
    assert whole.attributes["http.response.status_code"] == 200
    assert whole.attributes["exo.deployment.name"] == "chat"
    assert whole.state == "vendor=1,other=2"
    assert found["wait"].parent == found["send"].parent == whole.id
    assert found["wait"].end <= found["send"].start
    assert found["send"].kind == CLIENT_KIND
    (engine,) = [each for each in stack.engines if each.requests]
    assert found["send"].attributes["exo.replica"] == engine.name
    (request,) = engine.requests
    assert request.headers.getall("traceparent") == [f"00-{TRACE}-{found['send'].id}-01"]
    assert request.headers.getall("tracestate") == ["vendor=1,other=2"]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        f"ff-{TRACE}-{CLIENT}-01",
        f"00-{'0' * 32}-{CLIENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{CLIENT}-01",
        f"00-{TRACE}-{CLIENT}-01-more",
        f"00-{TRACE}-{CLIENT}",
        "x" * 5000,
    ],
)
async def test_a_malformed_parent_begins_a_new_trace(traced, parent: str) -> None:
    stack, spans = traced
    assert await ask(stack, traceparent=parent, tracestate="vendor=1") == 200
    whole = by_name(await spans())["POST /v1/chat/completions"]
    assert whole.parent == ""
    assert whole.trace not in (TRACE, "0" * 32)
    assert whole.state == ""


async def test_two_parents_are_none(traced) -> None:
    stack, spans = traced
    headers = [("traceparent", PARENT), ("traceparent", PARENT)]
    async with stack.client.post(stack.path(), json={}, headers=headers) as answer:
        assert answer.status == 200
    assert by_name(await spans())["POST /v1/chat/completions"].parent == ""


async def test_what_the_client_does_not_sample_is_not_sent(traced) -> None:
    stack, spans = traced
    assert await ask(stack, traceparent=PARENT[:-2] + "00") == 200
    assert await spans() == []
    (request,) = [r for each in stack.engines for r in each.requests]
    assert request.headers["traceparent"].startswith(f"00-{TRACE}-")
    assert request.headers["traceparent"].endswith("-00")


async def test_each_attempt_at_a_replica_is_seen(traced) -> None:
    stack, spans = traced
    first = stack.engines[0]
    first.breaks_off()
    stack.engines[1].breaks_off()

    async def mend() -> None:
        async with asyncio.timeout(5):
            while not (stack.engines[0].requests and stack.engines[1].requests):
                await asyncio.sleep(0)
        for engine in stack.engines:
            engine.answers()

    mending = asyncio.create_task(mend())
    assert await ask(stack) == 200
    await mending
    sends = [span for span in await spans() if span.name == "send"]
    assert [span.failed for span in sorted(sends, key=lambda span: span.start)][-1] is False
    assert {span.attributes["error.type"] for span in sends if span.failed} == {"DiedError"}
    assert len({span.parent for span in sends}) == 1


async def test_refusals_have_a_span_too(traced) -> None:
    stack, spans = traced
    assert await ask(stack, Authorization="Bearer wrong") == 401
    whole = by_name(await spans())["POST /v1/chat/completions"]
    assert (whole.attributes["http.response.status_code"], whole.failed) == (401, False)


async def test_spans_have_few_names_whatever_clients_send(traced) -> None:
    """Collectors count by names: a path with an id, or one that anybody makes up, is none."""
    stack, spans = traced
    paths = {
        "/v1/models/org/name": "/v1/models/{model}",
        "/v1/models/org%2Fother": "/v1/models/{model}",
        "/v1/responses/resp_1": "/v1/responses/{id}",
        "/v1/responses/resp_2/cancel": "/v1/responses/{id}/cancel",
        "/v1/made/up": "/v1/*",
        "/v1/": "/v1/*",
        "/v1/" + "x" * 1000: "/v1/*",
        "/v1/chat%2Fcompletions": "/v1/chat/completions",
        "/rerank": "/rerank",
    }
    headers = {"Authorization": "Bearer none"}  # who has no key makes spans, too
    for path in paths:
        url = URL(f"{stack.url}/d-1{path}", encoded=True)
        async with stack.client.get(url, headers=headers) as answer:
            assert answer.status == 401
    for method, path in (("GET", "/no/such"), ("PROPFIND", "/d-1/v1/models")):
        async with stack.client.request(method, f"{stack.url}{path}", headers=headers) as answer:
            assert answer.status in (401, 404)
    found = [span for span in await spans() if span.kind == SERVER]
    names = [f"GET {route}" for route in paths.values()]
    assert [span.name for span in found] == [*names, "GET", "HTTP /v1/models"]
    assert [span.attributes["http.route"] for span in found][: len(paths)] == [*paths.values()]
    assert max(len(span.attributes["url.path"]) for span in found) == 256
    assert found[-1].attributes["http.request.method"] == "_OTHER"


async def test_without_tracing_the_header_passes_as_it_is(stack) -> None:
    assert await ask(stack, traceparent=PARENT, tracestate="vendor=1") == 200
    (request,) = [r for each in stack.engines for r in each.requests]
    assert request.headers["traceparent"] == PARENT
    assert request.headers["tracestate"] == "vendor=1"


@pytest.mark.parametrize(
    ("environment", "asked"),
    [
        ({}, False),
        ({ENDPOINT: ""}, False),
        ({ENDPOINT: "http://c:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True),
        ({ENDPOINT: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://c:4318", "OTEL_TRACES_EXPORTER": "otlp"}, True),
    ],
)
def test_the_usual_variables_switch_it(environment: dict[str, str], asked: bool) -> None:
    assert is_asked_for(environment) is asked


def test_another_protocol_is_named_and_nothing_is_sent(caplog) -> None:
    assert open_tracing({ENDPOINT: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}) is None
    assert "'grpc' of OTLP is not http/protobuf; change OpenTelemetry's variables" in caplog.text


def test_a_variable_that_is_wrong_does_not_keep_the_gateway_from_starting(
    caplog, monkeypatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    assert open_tracing({ENDPOINT: "http://127.0.0.1:1"}) is None
    assert "no traces are sent: max_queue_size must be" in caplog.text


def test_off_imports_nothing() -> None:
    code = (
        "import sys, exo_inference.gateway.__main__, exo_inference.gateway.tracing as tracing\n"
        "assert tracing.open_tracing({}) is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_who_has_no_key_writes_nothing_into_the_log_with_a_wrong_header(
    traced, caplog
) -> None:
    stack, _ = traced
    headers = {"traceparent": PARENT, "tracestate": "WRONG " * 1000, "Authorization": "Bearer none"}
    assert await ask(stack, **headers) == 401
    assert not [each for each in caplog.records if each.name.startswith("opentelemetry")]
