"""/metrics carries vLLM's names, with values that fit what was asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from exo_engine.core.request import PREEMPTION_CAUSES, EngineStats
from exo_engine.server.telemetry.metrics import Metrics
from exo_engine.server.telemetry.times import Times
from prometheus_client.parser import text_string_to_metric_families

from .conftest import MODEL, Engine

# Names as of vLLM 0.33 (vllm/v1/metrics/loggers.py), and its older one for the time per token.
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
    "vllm:prompt_tokens_cached": "counter",
    "vllm:request_queue_time_seconds": "histogram",
    "vllm:request_prefill_time_seconds": "histogram",
    "vllm:request_decode_time_seconds": "histogram",
    "vllm:request_inference_time_seconds": "histogram",
    "vllm:request_time_per_output_token_seconds": "histogram",
    "vllm:request_prefill_kv_computed_tokens": "histogram",
    "vllm:request_num_preemptions": "histogram",
    "exo:num_preemptions_by_cause": "counter",
    "exo:grammar_compilation_time_seconds": "histogram",
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


DASHBOARD = Path(__file__).parents[4] / "charts/exo-inference/files/dashboards/engines.json"


@pytest.mark.skipif(not DASHBOARD.exists(), reason="the charts are not beside the engine")
def test_every_panel_of_the_dashboard_has_something_to_show(engine: Engine) -> None:
    body = {"prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": True}
    assert engine.http.post("/v1/completions", json=body).status_code == 200
    page = engine.http.get("/metrics").text
    shown = set(re.findall(r"^(vllm:\w+)\{", page, re.MULTILINE))
    panels = json.loads(DASHBOARD.read_text())["panels"]
    for panel in panels:
        asked = re.findall(r"vllm:\w+", " ".join(each["expr"] for each in panel["targets"]))
        assert set(asked) <= shown, panel["title"]
        for name in asked:
            if name.endswith("_count"):
                assert engine.metric(name) > 0, panel["title"]


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


LABELS = {"model_name": "m", "engine": "0"}


def test_totals_of_the_core_are_applied_once() -> None:
    metrics = Metrics("m")
    for total in (2, 2, 5):
        metrics.apply_stats(
            EngineStats(prefix_cache_hits_total=total, preemptions_total=(total, 1, 0))
        )
    read = metrics.registry.get_sample_value
    assert read("vllm:prefix_cache_hits_total", LABELS) == 5
    assert read("vllm:prompt_tokens_cached_total", LABELS) == 5
    assert read("vllm:num_preemptions_total", LABELS) == 6
    by_cause = [
        read("exo:num_preemptions_by_cause_total", {**LABELS, "cause": cause})
        for cause in PREEMPTION_CAUSES
    ]
    assert by_cause == [5, 1, 0]


def test_tokens_of_a_step_are_observed_in_that_step_also_those_of_a_chunk() -> None:
    metrics = Metrics("m")
    for steps, computed, prompt in ((1, 512, 0), (2, 1000, 1000), (2, 1000, 1000), (3, 1001, 1000)):
        metrics.apply_stats(
            EngineStats(
                num_steps_total=steps, computed_tokens_total=computed, prompt_tokens_total=prompt
            )
        )
    read = metrics.registry.get_sample_value
    assert read("vllm:iteration_tokens_total_count", LABELS) == 3
    assert read("vllm:iteration_tokens_total_sum", LABELS) == 1001
    below = read("vllm:iteration_tokens_total_bucket", {**LABELS, "le": "256.0"})
    assert below == 1, "two steps had more than 256 tokens"


def test_what_the_core_did_not_take_yet_waits() -> None:
    metrics = Metrics("m")
    metrics.apply_stats(EngineStats(num_running=2))
    metrics.set_unfinished(5)
    assert metrics.registry.get_sample_value("vllm:num_requests_waiting", LABELS) == 3


def test_phases_are_told_as_far_as_a_sequence_came() -> None:
    metrics = Metrics("m")
    sizes = {"num_prompt_tokens": 9, "num_cached_tokens": 4, "num_preemptions": 3, "max_tokens": 7}
    whole = Times(10.0, scheduled=11.0, first_token=13.0, last_token=17.0)
    for times, num_tokens in (
        (whole, 5),
        (Times(10.0, scheduled=11.0), 0),
        (Times(10.0), 0),
    ):
        metrics.observe_end(
            reason="abort", seconds=9.0, times=times, num_generation_tokens=num_tokens, **sizes
        )

    def read(name: str) -> tuple[float | None, float | None]:
        read_one = metrics.registry.get_sample_value
        return read_one(f"vllm:{name}_count", LABELS), read_one(f"vllm:{name}_sum", LABELS)

    assert read("request_queue_time_seconds") == (2, 2)
    assert read("request_prefill_time_seconds") == (1, 2)
    assert read("request_decode_time_seconds") == (1, 4)
    assert read("request_inference_time_seconds") == (1, 6)
    assert read("request_time_per_output_token_seconds") == (1, 1)
    assert read("request_prefill_kv_computed_tokens") == (3, 15)
    assert read("request_num_preemptions") == (3, 9)


def test_phases_of_a_request_add_up(engine: Engine) -> None:
    phases = ("queue", "prefill", "decode")

    def read() -> list[float]:
        names = [f"vllm:request_{name}_time_seconds" for name in (*phases, "inference")]
        sums = [
            engine.metric(f"{name}_sum") for name in (*names, "vllm:e2e_request_latency_seconds")
        ]
        return [*(engine.metric(f"{name}_count") for name in names), *sums]

    before = read()
    body = {"prompt": [5, 6, 7, 8], "max_tokens": 6, "ignore_eos": True}
    assert engine.http.post("/v1/completions", json=body).status_code == 200
    *counts, queue, prefill, decode, inference, whole = (
        b - a for a, b in zip(before, read(), strict=True)
    )
    assert counts == [1, 1, 1, 1]
    assert min(queue, prefill, decode) > 0
    assert prefill + decode == pytest.approx(inference)
    assert queue + inference <= whole + 1e-6, (
        "what the server takes behind the last token is in neither"
    )
