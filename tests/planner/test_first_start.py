"""What widens a band and not the middle: a start that compiles, and sleep mode."""

from __future__ import annotations

import pytest

from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.verdict import Plan

GIB = 2**30


def planned(
    model: str, version: str = "0.28.0", gpu: str = "RTX 4090", count: int = 1, **flags: object
) -> Plan:
    parameters = EngineParameters.of(dict(flags), engine="vllm", engine_version=version)
    return plan(find_model(model), find_gpu(gpu), count, parameters)


def first_start(result: Plan) -> float:
    activations = result.component("activations")
    assert activations is not None
    return activations.first_start / GIB


def available(result: Plan) -> tuple[float, float, float]:
    low, middle = result.available_kv_bytes_low, result.available_kv_bytes_per_gpu
    return low / GIB, middle / GIB, result.available_kv_bytes_high / GIB


def test_a_start_that_compiles_may_take_what_was_printed() -> None:
    """0.47 GiB more on each of two RTX 4090 (vllm-project/vllm#54479): in the band, and not in the middle."""
    flags = {"tensor_parallel_size": 2, "max_num_batched_tokens": 3584, "max_model_len": 4096}
    result = planned("Qwen/Qwen3-32B-AWQ", count=2, **flags)
    assert first_start(result) == pytest.approx(0.6, abs=0.15)
    low, middle, high = available(result)
    assert middle - low > first_start(result)
    assert high - middle < middle - low


def test_a_longer_step_has_less_more_and_the_same_sum() -> None:
    """Inductor tunes with 8,192 tokens, whatever a step has: the larger of both peaks counts."""
    peaks = []
    for tokens in (2048, 4096):
        result = planned("Qwen/Qwen3-8B", max_num_batched_tokens=tokens, max_num_seqs=16)
        activations = result.component("activations")
        assert activations is not None
        peaks.append((activations.num_bytes + activations.first_start, activations.first_start))
    assert peaks[0][0] == pytest.approx(peaks[1][0], rel=0.001)
    assert peaks[0][1] > peaks[1][1] > 0
    whole = planned("Qwen/Qwen3-8B", gpu="H100", max_num_batched_tokens=65536)
    assert first_start(whole) == 0


@pytest.mark.parametrize(
    ("model", "version", "flags"),
    [
        ("Qwen/Qwen3-8B", "0.16.0", {}),
        ("Qwen/Qwen3-8B", "0.28.0", {"enforce_eager": True}),
        ("deepseek-ai/DeepSeek-V4-Flash", "0.28.0", {}),
    ],
    ids=["an earlier release", "eager", "compressed attention"],
)
def test_what_does_not_compile_in_the_measured_step_takes_no_more(
    model: str, version: str, flags: dict[str, object]
) -> None:
    assert first_start(planned(model, version, gpu="H200", **flags)) == 0


def test_exo_engine_compiles_nothing() -> None:
    parameters = EngineParameters.of({}, engine="exo", engine_version="0.1.0")
    assert first_start(plan(find_model("Qwen/Qwen3-8B"), find_gpu("L40S"), 1, parameters)) == 0


def sleep_difference(
    model: str, version: str = "0.19.0", count: int = 2
) -> tuple[float, float, float]:
    flags = {"tensor_parallel_size": count, "max_model_len": 2048}
    awake = available(planned(model, version, gpu="RTX 4090", count=count, **flags))
    asleep = available(
        planned(model, version, gpu="RTX 4090", count=count, enable_sleep_mode=True, **flags)
    )
    low, middle, high = (after - before for before, after in zip(awake, asleep, strict=True))
    return low, middle, high


def test_sleep_mode_may_leave_as_much_more_as_was_printed() -> None:
    """5.16 GiB instead of 3.17 on two RTX 4090 (vllm-project/vllm#40256): upwards, and not in the middle."""
    low, middle, high = sleep_difference("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4")
    assert (low, middle) == (0, 0)
    assert high == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize(
    ("model", "version"),
    [
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "0.15.1"),
        ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "0.28.0"),
        ("Qwen/Qwen3-14B", "0.19.0"),
    ],
    ids=["before it was counted so", "after it is measured", "weights that loading keeps"],
)
def test_elsewhere_sleep_mode_changes_nothing(model: str, version: str) -> None:
    assert sleep_difference(model, version) == (0, 0, 0)


def test_experts_in_4_bit_floats_leave_more() -> None:
    """14.44 GiB instead of 9.61 with 9.2 GiB of experts (vllm-project/vllm#49151)."""
    low, middle, high = sleep_difference("Qwen/Qwen3-30B-A3B-NVFP4", "0.24.0", count=1)
    assert (low, middle) == (0, 0)
    assert high == pytest.approx(4.8, rel=0.7)
