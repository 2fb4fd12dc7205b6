"""Flags that do not go with the model or the GPU."""

import pytest

from exo_inference.engines import vllm
from exo_inference.engines.model_rules import (
    GpuFacts,
    ModelFacts,
    check_draft,
    check_dtype,
    check_kv_cache_dtype,
    check_model_rules,
    check_parallelism,
    check_quantization,
)

V100 = GpuFacts("gpu2", 1, (7, 0))
A5000 = GpuFacts("gpua5000", 1, (8, 6))
B300 = GpuFacts("gpub300", 1, (10, 3))
LLAMA_70B = ModelFacts(num_attention_heads=64, num_key_value_heads=8, num_layers=80)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8, 16])
def test_split_that_divides_the_heads_is_accepted(tensor: int) -> None:
    assert check_parallelism(tensor, 1, 1, model=LLAMA_70B, gpu_count=tensor) == []


def test_split_that_does_not_divide_the_heads_is_refused_with_one_that_does() -> None:
    (text,) = check_parallelism(6, 1, 1, model=LLAMA_70B, gpu_count=6)
    assert "6 does not divide the model's 64 attention heads" in text
    assert text.endswith("write --tensor-parallel-size=2 --pipeline-parallel-size=3")
    assert check_parallelism(2, 3, 1, model=LLAMA_70B, gpu_count=6) == []


def test_split_that_does_not_go_with_key_value_heads_is_refused() -> None:
    model = ModelFacts(num_attention_heads=12, num_key_value_heads=4)
    (text,) = check_parallelism(3, 1, 1, model=model, gpu_count=3)
    assert "4 key-value heads" in text
    assert check_parallelism(2, 1, 1, model=model, gpu_count=2) == []
    assert check_parallelism(12, 1, 1, model=model, gpu_count=12) == []


def test_sizes_must_use_the_gpus_of_the_deployment() -> None:
    (text,) = check_parallelism(2, 2, 1, model=ModelFacts(), gpu_count=8)
    assert "uses 4 GPUs, expected the 8 of the deployment" in text
    assert check_parallelism(2, 2, 2, model=ModelFacts(), gpu_count=8) == []


def test_more_stages_than_layers_are_refused() -> None:
    (text,) = check_parallelism(1, 4, 1, model=ModelFacts(num_layers=2), gpu_count=4)
    assert "more than the model's 2 layers" in text


def test_suggested_split_is_always_right() -> None:
    for heads in (1, 3, 8, 12, 20, 40, 64):
        for count in range(1, 17):
            model = ModelFacts(num_attention_heads=heads)
            for text in check_parallelism(count, 1, 1, model=model, gpu_count=count):
                sizes = [int(word.partition("=")[2]) for word in text.split() if "size=" in word]
                tensor, pipeline = [*sizes, 1][:2]
                assert check_parallelism(tensor, pipeline, 1, model=model, gpu_count=count) == []


@pytest.mark.parametrize(
    ("method", "gpu", "version", "runs"),
    [
        ("fp8", V100, "0.28.0", False),
        ("fp8", A5000, "0.28.0", True),
        ("fp8", GpuFacts("T4", 1, (7, 5)), "0.12.0", False),
        ("fp8", GpuFacts("T4", 1, (7, 5)), "0.16.0", True),
        ("awq", V100, "0.28.0", False),
        ("mxfp4", V100, "0.28.0", False),
        ("modelopt", A5000, "0.26.0", False),
        ("modelopt", A5000, "0.28.0", True),
        ("compressed-tensors", V100, "0.28.0", True),
        ("some-plugin", V100, "0.28.0", True),
        ("fp8", GpuFacts("MI300X", 1, None), "0.28.0", True),
    ],
)
def test_quantization_needs_its_generation(
    method: str, gpu: GpuFacts, version: str, runs: bool
) -> None:
    text = check_quantization(method, gpu, version)
    assert (text is None) == runs
    if text is not None:
        assert gpu.name in text
        assert method in text


def test_formats_of_cache_and_activations_need_their_generation() -> None:
    assert check_kv_cache_dtype("fp8", A5000) is None
    assert check_kv_cache_dtype("auto", V100) is None
    assert "8.0 or later" in (check_kv_cache_dtype("fp8_e5m2", V100) or "")
    assert "10.0 or later" in (check_kv_cache_dtype("nvfp4", A5000) or "")
    assert check_kv_cache_dtype("nvfp4", B300) is None
    assert "--dtype=float16" in (check_dtype("bfloat16", V100) or "")
    assert check_dtype("bfloat16", A5000) is None


def test_draft_needs_the_vocabulary_of_the_model() -> None:
    assert check_draft(ModelFacts(vocab_size=32000)) is None
    assert "32000" in (check_draft(ModelFacts(vocab_size=32000, draft_vocab_size=151936)) or "")


def test_remote_code_needs_a_pinned_revision() -> None:
    def found(*flags: str, pinned: bool | None) -> list[str]:
        problems = check_model_rules(
            vllm.ENGINE.read(flags), model=ModelFacts(revision_pinned=pinned)
        )
        return [problem.reason for problem in problems]

    assert found("--trust-remote-code", pinned=False) == ["policy"]
    assert found("--trust-remote-code", pinned=True) == []
    assert found("--trust-remote-code", pinned=None) == []
    assert found("--no-trust-remote-code", pinned=False) == []


def test_problems_stand_at_the_flags_they_come_from() -> None:
    flags = ["--seed=1", "-tp", "3", "-q", "fp8", "--kv-cache-dtype=fp8"]
    model = ModelFacts(num_attention_heads=40)
    gpu = GpuFacts("gpu2", 3, (7, 0))
    problems = check_model_rules(vllm.ENGINE.read(flags), model=model, gpu=gpu)
    assert [(p.index, p.flag, p.reason) for p in problems] == [
        (1, "-tp", "model"),
        (3, "-q", "model"),
        (5, "--kv-cache-dtype", "model"),
    ]


def test_checkpoint_of_a_wrong_format_is_refused_without_any_flag() -> None:
    (problem,) = check_model_rules(
        vllm.ENGINE.read([]), model=ModelFacts(quantization="fp8"), gpu=V100
    )
    assert problem.index == 0
    assert problem.flag == "--quantization"


def test_nothing_is_refused_where_nothing_is_known() -> None:
    gpu = GpuFacts("some GPU", 8)
    assert (
        check_model_rules(
            vllm.ENGINE.read(["--quantization=fp8", "-tp=8"]), model=ModelFacts(), gpu=gpu
        )
        == []
    )
