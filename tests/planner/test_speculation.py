"""Speculative decoding: what the draft takes, and what it does to the time between tokens."""

from __future__ import annotations

import json

import pytest

from exo_inference.planner import Plan, explain, find_gpu, find_model, plan
from exo_inference.planner.draft_acceptance import ACCEPTANCE, expected_tokens
from exo_inference.planner.speed.figures import BatchSpeed
from tests.planner.flags import settings_of

LLAMA = "meta-llama/Llama-3.1-70B-Instruct"
SMALL = "meta-llama/Llama-3.2-1B-Instruct"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"


def plan_with(
    config: dict[str, object] | None, name: str = LLAMA, gpu: str = "H200", count: int = 4
) -> Plan:
    flags = [] if config is None else [f"--speculative-config={json.dumps(config)}"]
    return plan(find_model(name), find_gpu(gpu), count, settings_of(flags))


def batches(result: Plan) -> tuple[BatchSpeed, ...]:
    assert result.speed is not None
    return result.speed.batches


def test_expected_tokens_follow_leviathan() -> None:
    assert expected_tokens(0.5, 1) == 1.5
    assert expected_tokens(0.8, 3) == pytest.approx(1 + 0.8 + 0.64 + 0.512)
    assert all(0 < a.low < a.rate < a.high < 1 and a.source for a in ACCEPTANCE.values())


@pytest.mark.parametrize(
    ("name", "count", "config"),
    [
        (LLAMA, 4, {"method": "ngram", "num_speculative_tokens": 4}),
        (LLAMA, 4, {"model": SMALL, "num_speculative_tokens": 4}),
        (LLAMA, 4, {"method": "eagle", "num_speculative_tokens": 4}),
        (LLAMA, 4, {"method": "eagle3", "num_speculative_tokens": 4}),
        (DEEPSEEK, 8, {"method": "mtp", "num_speculative_tokens": 1}),
    ],
)  # fmt: skip
def test_a_request_alone_gets_its_tokens_sooner(
    name: str, count: int, config: dict[str, object]
) -> None:
    without, drafted = plan_with(None, name, count=count), plan_with(config, name, count=count)
    plain, fast = batches(without)[0].inter_token_seconds, batches(drafted)[0].inter_token_seconds
    assert plain / 4 < fast < plain
    assert drafted.speed is not None
    assert "assumed acceptance" in drafted.speed.source
    assert any("assumed accepted" in note for note in drafted.notes)
    assert any("tokens that a step yields" in step.formula for step in explain(drafted))


def test_drafting_and_verifying_take_time() -> None:
    tokens = 4
    without = batches(plan_with(None))
    ngram = batches(plan_with({"method": "ngram", "num_speculative_tokens": tokens}))
    drafted = batches(plan_with({"model": SMALL, "num_speculative_tokens": tokens}))
    step = ngram[0].inter_token_seconds * expected_tokens(0.2, tokens)
    assert step >= without[0].inter_token_seconds
    longer = drafted[0].inter_token_seconds * expected_tokens(0.7, tokens) - step
    reads = tokens * 2 * 1_235_814_400 / 4 / (find_gpu("H200").bandwidth * 0.75)
    assert reads < longer < 10 * reads


def test_verifying_costs_large_batches_what_it_gives() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    without = {b.batch: b.tokens_per_second for b in batches(plan_with(None, name, count=1))}
    config: dict[str, object] = {"method": "ngram", "num_speculative_tokens": 8}
    drafted = {b.batch: b.tokens_per_second for b in batches(plan_with(config, name, count=1))}
    largest = max(without.keys() & drafted.keys())
    assert drafted[largest] / without[largest] < drafted[1] / without[1]


def test_an_eagle_3_head_has_the_size_of_the_published_one() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    result = plan_with({"method": "eagle3", "num_speculative_tokens": 3}, name, count=1)
    draft = result.component("draft_model")
    assert draft is not None
    assert draft.num_bytes == pytest.approx(850e6, rel=0.02)  # yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
    assert draft.high > 1.2 * draft.num_bytes
    assert any("EAGLE-3 head" in note and "assumed" in note for note in result.notes)


def test_an_eagle_head_of_a_model_of_experts_is_a_dense_layer() -> None:
    for name in ("Qwen/Qwen3-30B-A3B", DEEPSEEK):
        result = plan_with({"method": "eagle3", "num_speculative_tokens": 3}, name, count=8)
        draft, hidden = result.component("draft_model"), find_model(name).hidden_size
        assert draft is not None
        assert draft.num_bytes > 2 * 3 * hidden * hidden  # more than the joining projection
        assert draft.high >= 1.5 * draft.num_bytes


def test_a_draft_named_eagle_is_a_head() -> None:
    named = plan_with(
        {"model": "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B", "num_speculative_tokens": 3}
    )
    assert any("EAGLE-3 head yuhuili/" in note for note in named.notes)
    assert not any(problem.code == "draft-model" for problem in named.problems)


def test_a_prediction_layer_of_nemotron_has_attention_and_experts() -> None:
    model = find_model("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16")
    # What the published checkpoint has beyond the class without it (safetensors.total of the Hub).
    assert sum(weight.num_elements for weight in model.mtp_weights) == 2_942_324_736
