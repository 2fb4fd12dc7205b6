"""One trace from the client through the gateway to the engine, of real processes, as a collector gets it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from exo_inference import AsyncClient
from tests.otlp_collector import Collector

from .conftest import processes_of, run_exo, start_stack
from .test_chaos_alone import start_only_replica

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

NAMES = ("POST /v1/completions", "wait", "send", "llm_request", "queue", "prefill", "decode")
TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


async def test_one_trace_shows_where_a_request_waited(tmp_path: Path) -> None:
    with Collector().running() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=exo",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        stack = start_stack(tmp_path / "traced", variables=variables)
        try:
            signed = {"endpoint": stack.endpoint, "zone": stack.zone}
            async with AsyncClient(stack.key, stack.secret, **signed) as client:
                uid = await start_only_replica(client)
                deployment = await client.deployments.get(uid)
                key = await client.deployments.reveal_api_key(uid)
            answer = httpx.post(
                f"{deployment.deployment_url}/completions",
                json={
                    "model": "exo/tiny-chat",
                    "prompt": "Hello",
                    "max_tokens": 5,
                    "ignore_eos": True,
                },
                headers={
                    "Authorization": f"Bearer {key}",
                    "traceparent": f"00-{TRACE}-{CLIENT}-01",
                },
                timeout=120,
            )
            assert answer.status_code == 200, answer.text
            wait_for(lambda: set(NAMES) <= {s.name for s in collector.spans if s.trace == TRACE})
        finally:
            run_exo(stack.state_dir, "down", check=False)
            assert processes_of(stack.state_dir) == {}
        assert all(headers["x-tenant"] == "exo" for headers in collector.headers)
    found = {span.name: span for span in collector.spans if span.trace == TRACE}
    gateway = found["POST /v1/completions"]
    assert (gateway.parent, gateway.service) == (CLIENT, "exo-gateway")
    assert found["wait"].parent == found["send"].parent == gateway.id
    engine = found["llm_request"]
    assert (engine.parent, engine.service) == (found["send"].id, "exo-engine")
    assert {found[name].parent for name in ("queue", "prefill", "decode")} == {engine.id}
    assert engine.attributes["gen_ai.usage.output_tokens"] == 5
    order = [found["wait"].start, found["queue"].start, found["prefill"].start]
    assert [*order, found["decode"].end, gateway.end] == sorted(
        [*order, found["decode"].end, gateway.end]
    )
