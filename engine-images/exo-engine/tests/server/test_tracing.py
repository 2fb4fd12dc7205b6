"""Spans of the engine, as a collector gets them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator

import aiohttp
import pytest
from exo_engine.server.telemetry.tracing import Tracing, open_tracing

from tests.otlp_collector import Collector, Span

from .scripted_core import FakeCore, serving

pytestmark = pytest.mark.filterwarnings("ignore:It is recommended to use web.RequestKey")

TRACE, GATEWAY = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
SERVER = 2
BODY = {"prompt": [1, 2, 3], "max_tokens": 3, "temperature": 0.5, "top_p": 0.9}


class TimedCore(FakeCore):
    """Says with its first tokens when it began with a request."""

    def step(self):
        now, first = time.monotonic(), not any(self._positions.values())
        outputs = super().step()
        for output in outputs:
            object.__setattr__(output, "scheduled_at", now if first else None)
        return outputs


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector().running() as running:
        yield running


async def ask(
    collector: Collector, model_dir, monkeypatch, core: FakeCore, **headers: str
) -> tuple[int, list[Span]]:
    """Return the status of one request, and the spans of it."""
    monkeypatch.setenv(ENDPOINT, collector.url)
    tracing = open_tracing({ENDPOINT: collector.url}, "test/tiny")
    assert isinstance(tracing, Tracing)
    async with (
        serving(core, model_dir, tracing=tracing) as server,
        aiohttp.ClientSession(server.make_url("/")) as client,
        client.post("/v1/completions", json=BODY, headers=headers) as answer,
    ):
        await answer.read()
        status = answer.status
    assert await asyncio.to_thread(tracing._provider.force_flush)
    return status, collector.spans


async def test_a_request_and_its_phases_continue_the_trace(collector, model_dir, monkeypatch):
    parent = f"00-{TRACE}-{GATEWAY}-01"
    status, spans = await ask(
        collector, model_dir, monkeypatch, TimedCore([5, 6, 7]), traceparent=parent
    )
    assert status == 200
    found = {span.name: span for span in spans}
    assert sorted(found) == sorted(span.name for span in spans)
    whole = found.pop("llm_request")
    assert (whole.trace, whole.parent, whole.kind) == (TRACE, GATEWAY, SERVER)
    assert whole.service == "exo-engine"
    assert set(found) == {"queue", "prefill", "decode"}
    assert {span.parent for span in found.values()} == {whole.id}
    queue, prefill, decode = found["queue"], found["prefill"], found["decode"]
    assert whole.start == pytest.approx(queue.start, abs=2)
    assert queue.end == pytest.approx(prefill.start, abs=2)
    assert prefill.end == pytest.approx(decode.start, abs=2)
    assert decode.end <= whole.end
    said = whole.attributes
    assert said["gen_ai.usage.prompt_tokens"] == said["gen_ai.usage.input_tokens"] == 3
    assert said["gen_ai.usage.completion_tokens"] == said["gen_ai.usage.output_tokens"] == 3
    assert said["gen_ai.request.temperature"] == 0.5
    assert said["gen_ai.request.max_tokens"] == 3
    assert said["gen_ai.response.model"] == "test/tiny"
    assert said["gen_ai.response.finish_reasons"] == ["length"]
    for name in ("time_in_queue", "time_in_model_prefill", "time_in_model_decode"):
        assert said[f"gen_ai.latency.{name}"] >= 0
    assert not whole.failed


@pytest.mark.parametrize("parent", ["", "nonsense", f"00-{'0' * 32}-{GATEWAY}-01"])
async def test_a_malformed_parent_begins_a_new_trace(collector, model_dir, monkeypatch, parent):
    status, spans = await ask(
        collector, model_dir, monkeypatch, TimedCore([5, 6, 7]), traceparent=parent
    )
    assert status == 200
    (whole,) = [span for span in spans if span.name == "llm_request"]
    assert whole.parent == ""
    assert whole.trace != "0" * 32


async def test_a_request_that_fails_says_so(collector, model_dir, monkeypatch):
    core = TimedCore([5, 6, 7], reason="error")
    status, spans = await ask(collector, model_dir, monkeypatch, core)
    assert status == 500
    (whole,) = [span for span in spans if span.name == "llm_request"]
    assert whole.failed
    assert whole.attributes["gen_ai.response.finish_reasons"] == ["error"]


def test_off_imports_nothing():
    code = (
        "import sys, exo_engine.server.lifecycle, exo_engine.server.telemetry.tracing as tracing\n"
        "assert tracing.open_tracing({}, 'm') is None\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_the_package_the_engine_serves_and_says_what_is_missing(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert open_tracing({ENDPOINT: "http://127.0.0.1:1"}, "m") is None
    assert "pip install 'exo-engine[tracing]'" in caplog.text


def test_a_variable_that_is_wrong_does_not_keep_the_engine_from_starting(monkeypatch, caplog):
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "0")
    assert open_tracing({ENDPOINT: "http://127.0.0.1:1"}, "m") is None
    assert "no traces are sent: max_queue_size must be" in caplog.text
