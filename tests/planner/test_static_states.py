"""States in SGLang's pools, and what it is that its GPUs and contexts must be."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, Plan, Verdict, find_gpu, find_model, plan
from exo_inference.planner.kv_cache import state_page_bytes
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.static.share import static_share

NEXT = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def planned(
    model: str, gpu: str, count: int = 1, version: str = "0.5.17", **settings: object
) -> Plan:
    parameters = EngineParameters.of(settings, engine="sglang", engine_version=version)
    return plan(find_model(model), find_gpu(gpu), count, parameters)


def state_bytes(result: Plan) -> int:
    assert result.basis is not None
    specs = [spec for spec in result.basis.stage.specs if spec.kind is KvKind.STATE]
    return sum(state_page_bytes(spec, result.basis.setting.kv) for spec in specs)


def test_states_are_in_float32_where_the_config_says_nothing_and_convolutions_in_16_bit() -> None:
    each = 36 * (3 * 8192 * 2 + 524_288 * 4)
    assert state_bytes(planned(NEXT, "b200")) == each
    assert state_bytes(planned(NEXT, "b200", dtype="float32")) == each
    halved = planned(NEXT, "b200", mamba_ssm_cache_dtype="bfloat16")
    assert state_bytes(halved) == 36 * (3 * 8192 * 2 + 524_288 * 2)
    assert halved.max_num_seqs > planned(NEXT, "b200").max_num_seqs


@pytest.mark.parametrize(
    ("version", "model", "each"),
    [
        ((0, 5, 12), NEXT, 3),
        ((0, 5, 14), NEXT, 5),
        ((0, 5, 17), NEXT, 5),
        ((0, 5, 17), "LiquidAI/LFM2-8B-A1B", 3),
        ((0, 5, 16), "moonshotai/Kimi-K3", 3),
        ((0, 5, 17), "moonshotai/Kimi-K3", 5),
    ],
)
def test_a_running_request_takes_states_of_the_pool_by_the_release(
    version: tuple[int, int, int], model: str, each: int
) -> None:
    assert static_share(version).states_each(find_model(model)) == each


def test_requests_at_once_are_bound_by_the_states_but_for_a_spare_one() -> None:
    result = planned(NEXT, "b200")
    share = 0.9 / 1.9
    states = int(result.available_kv_bytes_per_gpu * share // state_bytes(result)) - 1
    assert result.max_num_seqs == states // 5


def test_hybrids_that_sglang_has_no_class_for_are_not_planned() -> None:
    for model in ("ai21labs/AI21-Jamba-1.5-Mini", "Zyphra/Zamba2-7B-Instruct"):
        result = planned(model, "h100", 4)
        assert result.verdict is Verdict.UNKNOWN
        assert "its states are not planned" in result.problems[0].detail


def test_a_model_with_longrope_has_its_longer_context_by_itself() -> None:
    result = planned("microsoft/Phi-4-mini-instruct", "h100")
    assert result.max_model_len == 131_072
    assert plan(
        find_model("microsoft/Phi-4-mini-instruct"), find_gpu("h100"), 1, EngineParameters()
    ).max_model_len == 4096  # fmt: skip


@pytest.mark.parametrize(
    ("model", "gpu", "words"),
    [
        ("Qwen/Qwen3-0.6B", "gpu2", "SGLang needs compute capability 7.5, "),
        ("Qwen/Qwen3-8B-FP8", "t4", "fp8-block weights need compute capability 8.0, "),
    ],
)
def test_gpus_that_are_too_old_are_refused(model: str, gpu: str, words: str) -> None:
    result = planned(model, gpu, max_model_len=2048)
    assert result.verdict is Verdict.REFUSED
    assert words in " ".join(problem.detail for problem in result.problems)
    assert planned("Qwen/Qwen3-0.6B", "t4").verdict is not Verdict.REFUSED
