"""/metrics carries vLLM's names, with values that fit what was asked."""

from __future__ import annotations

import re

import pytest
from exo_engine.core.request import EngineStats
from exo_engine.server.metrics import Metrics
from prometheus_client.parser import text_string_to_metric_families

from .conftest import MODEL, Engine

# Names as of vLLM 0.28 (vllm/v1/metrics/loggers.py), and its older one for the time per token.
NAMES = {
    "vllm:num_requests_running": "gauge",
    "vllm:num_requests_waiting": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:num_preemptions": "counter",
    "vllm:prompt_tokens": "counter",
    "vllm:generation_tokens": "counter",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
    "vllm:request_success": "counter",
    "vllm:corrupted_requests": "counter",
    "vllm:time_to_first_token_seconds": "histogram",
    "vllm:inter_token_latency_seconds": "histogram",
    "vllm:time_per_output_token_seconds": "histogram",
    "vllm:e2e_request_latency_seconds": "histogram",
    "vllm:request_prompt_tokens": "histogram",
    "vllm:request_generation_tokens": "histogram",
    "vllm:request_params_n": "histogram",
    "vllm:request_params_max_tokens": "histogram",
    "vllm:iteration_tokens_total": "histogram",
}


def test_page_has_vllm_s_names_and_labels(engine: Engine) -> None:
    page = engine.http.get("/metrics")
    assert page.headers["content-type"].startswith("text/plain")
    families = {each.name: each for each in text_string_to_metric_families(page.text)}
    for name, kind in NAMES.items():
        assert families[name].type == kind, name
        for sample in families[name].samples:
            assert sample.labels["engine"] == "0"
            if name != "vllm:cache_config_info":
                assert sample.labels["model_name"] == MODEL
    info = families["vllm:cache_config_info"].samples[0].labels
    assert info["block_size"] == "16"
    assert int(info["num_gpu_blocks"]) > 0
    assert re.search(r'vllm:request_success_total\{.*finished_reason="stop"', page.text)


def test_counters_grow_by_what_was_done(engine: Engine) -> None:
    def read() -> list[float]:
        return [
            engine.metric("vllm:prompt_tokens_total"),
            engine.metric("vllm:generation_tokens_total"),
            engine.metric("vllm:request_success_total", finished_reason="length"),
            engine.metric("vllm:time_to_first_token_seconds_count"),
            engine.metric("vllm:inter_token_latency_seconds_count"),
            engine.metric("vllm:e2e_request_latency_seconds_count"),
        ]

    before = read()
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    assert engine.http.post("/v1/completions", json=body).status_code == 200
    after = read()
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 4, 1, 1, 3, 1]
    assert engine.metric("vllm:num_requests_running") == 0


@pytest.mark.parametrize("field", ["num_preemptions_total", "prefix_cache_hits_total"])
def test_totals_of_the_core_are_applied_once(field: str) -> None:
    metrics = Metrics("m")
    for total in (2, 2, 5):
        metrics.apply_stats(EngineStats(**{field: total}))  # type: ignore[arg-type]
    value = metrics.registry.get_sample_value(f"vllm:{field}", {"model_name": "m", "engine": "0"})
    assert value == 5
