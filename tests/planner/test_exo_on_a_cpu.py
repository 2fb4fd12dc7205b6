"""exo-engine on a CPU as its starts measure it, and formats that a checkpoint is converted to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exo_inference.planner import (
    Verdict,
    advise,
    cpu_as_gpu,
    explain,
    find_gpu,
    find_model,
    plan,
    read_architecture,
)
from exo_inference.planner.model.checkpoint import with_total_bytes
from exo_inference.planner.model.requantize import INT8_HEAD, has_int8_head
from exo_inference.planner.resolved_setting import settle
from exo_inference.preflight import Subject, judge
from tests.planner.flags import settings_of

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 3072,
    "hidden_size": 192, "intermediate_size": 512, "num_hidden_layers": 6, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 2048,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip
LAYER = 192 * (192 + 2 * 64) + 192 * 192 + 3 * 192 * 512 + 2 * 192
NUM_PARAMETERS = 3072 * 192 + 6 * LAYER + 192


@pytest.mark.parametrize("has_headers", [True, False])
def test_exo_engine_on_a_cpu_holds_its_parameters_in_float32(has_headers: bool) -> None:
    model = read_architecture(CONFIG, name="tiny")
    if has_headers:
        model = with_total_bytes(model, 2 * NUM_PARAMETERS)
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, settings_of([], engine="exo"))
    assert found.weights_bytes_per_gpu == pytest.approx(4 * NUM_PARAMETERS, rel=1e-4)
    halved = settings_of(["--dtype=bfloat16"], engine="exo")
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, halved)
    assert found.weights_bytes_per_gpu == pytest.approx(2 * NUM_PARAMETERS, rel=1e-4)


def test_exo_engine_holds_bfloat16_where_checkpoint_and_processor_have_it() -> None:
    cpu = cpu_as_gpu(16 * 2**30, is_fast_in_bfloat16=True)
    for dtype, num_bytes in (("bfloat16", 2), ("float16", 4), ("float32", 4)):
        model = read_architecture({**CONFIG, "torch_dtype": dtype}, name="tiny")
        found = plan(model, cpu, 1, settings_of([], engine="exo"))
        assert found.weights_bytes_per_gpu == pytest.approx(num_bytes * NUM_PARAMETERS, rel=1e-4)


@pytest.mark.parametrize("num_blocks", [100, 9000], ids=["fewer", "more than sequences use"])
def test_exo_engine_on_a_cpu_has_the_blocks_asked_for(num_blocks: int) -> None:
    flags = [f"--num-gpu-blocks-override={num_blocks}", "--kv-cache-memory-bytes=1G"]
    model = read_architecture(CONFIG, name="tiny")
    parameters = settings_of(flags, engine="exo")
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, parameters)
    assert (found.num_kv_blocks, found.kv_capacity_tokens) == (num_blocks, 16 * num_blocks)


def test_a_cache_that_is_asked_for_too_small_is_told_by_its_flag() -> None:
    model = read_architecture(CONFIG, name="tiny")
    parameters = settings_of(["--kv-cache-memory-bytes=1000"], engine="exo")
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, parameters)
    [problem] = [each.detail for each in found.problems if each.code == "memory"]
    block = 16 * 6 * 2 * 2 * 32 * 4  # tokens, layers, keys and values, heads, dimensions, float32
    assert f"--kv-cache-memory-bytes is 1000; set {block} or more, or leave it out" in problem
    assert "are left" not in problem


def test_memory_that_a_cpu_lacks_is_no_gpus() -> None:
    model = read_architecture({**CONFIG, "num_hidden_layers": 4000}, name="big")
    found = plan(model, cpu_as_gpu(2**30), 1, settings_of([], engine="exo"))
    [problem] = [each.detail for each in found.problems if each.code == "memory"]
    assert problem.startswith("weights and overheads take")
    assert "GPU" not in problem


def test_vllm_loads_a_float32_checkpoint_in_16_bit() -> None:
    model = read_architecture({**CONFIG, "torch_dtype": "float32"}, name="tiny")
    model = replace(with_total_bytes(model, 4 * NUM_PARAMETERS), rope_elements=0)
    found = plan(model, find_gpu("L4"), 1, settings_of([]))
    assert found.weights_bytes_per_gpu == pytest.approx(2 * NUM_PARAMETERS, rel=1e-4)


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("has_headers", [True, False])
def test_int8_takes_a_byte_per_weight_of_linear_layers(
    has_headers: bool, dtype: str, size: int
) -> None:
    model = read_architecture(CONFIG, name="tiny")
    if has_headers:
        model = with_total_bytes(model, 2 * NUM_PARAMETERS)
    flags = ["--quantization=int8", f"--dtype={dtype}"]
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, settings_of(flags, engine="exo"))
    rows = 192 + 2 * 64 + 192 + 2 * 512 + 192  # a scale each, counted with 4 bytes
    linear = LAYER - 2 * 192
    vocab = CONFIG["vocab_size"] if dtype == "bfloat16" else 0  # kernels have the head in INT8, too
    plain = NUM_PARAMETERS - 6 * linear - vocab * 192
    expected = size * plain + 6 * (linear + 4 * rows) + vocab * (192 + 4)
    assert found.weights_bytes_per_gpu == pytest.approx(expected, rel=1e-4)
    assert found.problems == ()


@pytest.mark.parametrize("kernels", ["avx2", "plain", ""])
def test_without_kernels_the_head_keeps_its_bits(kernels: str) -> None:
    model = read_architecture(CONFIG, name="tiny")
    flags = settings_of(["--quantization=int8", "--dtype=bfloat16"], engine="exo")
    settled = settle(model, cpu_as_gpu(16 * 2**30, kernels=kernels), 1, flags, None)
    assert has_int8_head(settled.model) == bool(kernels)


@pytest.mark.parametrize(
    ("kernels", "dtype", "told"),
    [
        ("avx512_bf16", "auto", ""),
        ("avx512_bf16", "float32", "compute in bfloat16 alone, not in float32"),
        ("plain", "auto", "have no vectors here"),
        (
            "",
            "auto",
            "not installed here with compiled kernels, or EXO_ENGINE_CPU_KERNELS switches",
        ),
        ("", "float32", "not installed here with compiled kernels"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--quantization=int4"], ["--quantization=int8"]])
def test_no_speed_of_kernels_is_promised_where_they_do_not_compute(
    kernels: str, dtype: str, told: str, more: list[str]
) -> None:
    model = read_architecture(CONFIG, name="tiny")
    cpu = cpu_as_gpu(16 * 2**30, is_fast_in_bfloat16=True, kernels=kernels)
    found = plan(model, cpu, 1, settings_of([f"--dtype={dtype}", *more], engine="exo"))
    assert (found.speed is None) == bool(told)
    assert [told in note for note in found.notes] == ([True] if told else [])


def test_loops_without_vectors_are_as_fast_as_they_were_measured() -> None:
    model = read_architecture(CONFIG, name="tiny")
    rates = {"plain": 3e10, "int8": 2e10, "int4": 2e10}
    cpu = cpu_as_gpu(
        2**34, is_fast_in_bfloat16=True, kernels="plain", bandwidth=2e10, operations=rates
    )
    found = plan(model, cpu, 1, settings_of([], engine="exo"))
    assert found.speed is not None
    assert found.notes == ()


def test_a_machine_on_which_no_engine_starts_is_refused() -> None:
    model = read_architecture(CONFIG, name="tiny")
    cpu = replace(cpu_as_gpu(16 * 2**30, kernels=""), refusal="it says no")
    found = plan(model, cpu, 1, settings_of([], engine="exo"))
    assert [(each.code, each.detail) for each in found.problems] == [("processor", "it says no")]
    assert (found.verdict, found.speed, found.notes) == (Verdict.REFUSED, None, ())
    large, flags = find_model("Qwen/Qwen3-8B"), ("--max-model-len=40960", "--dtype=float32")
    assert not judge(Subject(large, cpu, 1, flags, engine="exo")).advice


@pytest.mark.parametrize("release", ["0.12.0", "0.28.0"])
def test_another_engine_is_not_sized_on_a_cpu_by_the_rules_of_this_one(release: str) -> None:
    cpu, model = cpu_as_gpu(64 * 2**30), find_model("Qwen/Qwen3-8B")
    found = plan(model, cpu, 1, settings_of([], engine_version=release))
    assert (found.verdict, found.components) == (Verdict.UNKNOWN, ())
    assert [each.code for each in found.problems] == ["unknown-model"]
    assert "not sized for vLLM on a CPU" in found.problems[0].detail
    assert "exo-engine" not in str(explain(found))
    assert plan(model, cpu, 1, settings_of([], engine="exo")).verdict is not Verdict.UNKNOWN


@pytest.mark.parametrize("flag", ["int4", "int4_per_group_128"])
def test_of_an_untied_model_the_head_alone_is_in_int8(flag: str) -> None:
    vocab = CONFIG["vocab_size"]
    sizes = {}
    for is_tied in (True, False):
        model = read_architecture({**CONFIG, "tie_word_embeddings": is_tied}, name="tiny")
        flags = settings_of([f"--quantization={flag}", "--dtype=bfloat16"], engine="exo")
        sizes[is_tied] = plan(model, cpu_as_gpu(16 * 2**30), 1, flags).weights_bytes_per_gpu
    # Beside the head in INT8 there is an embedding of 16 bits.
    assert sizes[False] - sizes[True] == pytest.approx(2 * vocab * 192, rel=1e-4)


def test_on_a_gpu_the_head_keeps_its_bits() -> None:
    model, flags = read_architecture(CONFIG, name="tiny"), ["--quantization=int8"]
    found = plan(model, find_gpu("L4"), 1, settings_of(flags, engine="exo"))
    layers = 6 * (LAYER - 2 * 192) + 6 * 4 * (192 + 2 * 64 + 192 + 2 * 512 + 192) + 2 * 13 * 192
    assert found.weights_bytes_per_gpu == pytest.approx(
        layers + 2 * CONFIG["vocab_size"] * 192, rel=1e-4
    )


@pytest.mark.parametrize("runner", ["pooling", "generate"])
def test_where_no_logits_are_computed_the_embedding_keeps_its_bits(runner: str) -> None:
    model = read_architecture(CONFIG, name="tiny")
    flags = ["--quantization=int8", "--dtype=bfloat16", f"--runner={runner}"]
    settled = settle(model, cpu_as_gpu(16 * 2**30), 1, settings_of(flags, engine="exo"), None)
    assert has_int8_head(settled.model) == (runner == "generate")


@pytest.mark.parametrize(
    ("named", "changes", "is_embedding"),
    [
        ("LlamaForCausalLM", {}, False),
        ("LlamaModel", {}, True),
        ("LlamaForSequenceClassification", {}, True),
        ("LlamaForRewardModel", {}, False),
        ("LlamaLMHeadModel", {}, False),
        ("EagleLlamaModel", {}, False),
        ("InternVLChatModel", {}, False),
        ("LlamaModel", {"vision_config": {}}, False),
        ("LlamaModel", {"quantization_config": {}}, True),
    ],
)
def test_what_computes_no_logits_is_told_by_its_class(
    named: str, changes: dict[str, object], is_embedding: bool
) -> None:
    config = {**CONFIG, "architectures": [named], **changes}
    assert read_architecture(config, name="tiny").is_embedding == is_embedding


@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_decoder_that_was_saved_without_its_head_is_planned_without(
    quantization: str | None,
) -> None:
    config = {**CONFIG, "architectures": ["LlamaModel"], "tie_word_embeddings": False}
    flags = ["--dtype=bfloat16", *([f"--quantization={quantization}"] if quantization else [])]
    found, tied = (
        plan(
            read_architecture(each, name="tiny"),
            cpu_as_gpu(16 * 2**30),
            1,
            settings_of(flags, engine="exo"),
        )
        for each in (config, {**CONFIG, "architectures": ["LlamaModel"]})
    )
    assert found.weights_bytes_per_gpu == tied.weights_bytes_per_gpu
    assert found.weights_bytes_per_gpu > 2 * 3072 * 192


def test_the_engine_has_its_head_in_int8_with_what_plans_count_so() -> None:
    formats = pytest.importorskip("exo_engine.weight_formats")
    names = formats.formats_made_at_load()
    assert {name for name in names if formats.load_format(name).has_int8_head} == INT8_HEAD


WINDOWS = {
    "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 256,
    "layer_types": ["full_attention"] * 3 + ["sliding_attention"] * 3,
}  # fmt: skip
HYBRID = {
    "model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "layer_types": ["linear_attention", "linear_attention", "full_attention"] * 2,
}  # fmt: skip
NEXT = {
    **HYBRID, "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
}  # fmt: skip
LATENT = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "kv_lora_rank": 64,
    "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32, "q_lora_rank": None,
    "num_key_value_heads": 6, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 16,
    "n_shared_experts": 1, "moe_intermediate_size": 64, "first_k_dense_replace": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "flags", "block", "per_token"),
    [
        pytest.param({}, [], 16, 6 * 2 * 2 * 32 * 4, id="one kind"),
        pytest.param({}, ["--kv-cache-dtype=int8"], 16, 6 * 2 * 2 * (32 + 4), id="scales"),
        pytest.param({}, ["--kv-cache-dtype=bfloat16"], 16, 6 * 2 * 2 * 32 * 2, id="16 bits"),
        pytest.param(WINDOWS, [], 16, 3 * 2 * 2 * 32 * 4, id="windows"),
        # A state has 3 x 192 inputs of the convolution and 4 x 16 x 32 numbers, a token's row 512 bytes.
        pytest.param(HYBRID, [], 32, 2 * 2 * 2 * 32 * 4, id="states"),
        pytest.param(NEXT, [], 32, 2 * 2 * 2 * 32 * 4, id="states and experts"),
        pytest.param(LATENT, [], 16, 6 * (64 + 16) * 4, id="latents"),
    ],
)
def test_the_cache_is_laid_out_as_the_engine_does(
    changes: dict[str, object], flags: list[str], block: int, per_token: int
) -> None:
    """`per_token`: over the layers of one group, of which `exo_engine.attention.cache_plan` says how many."""
    model = read_architecture({**CONFIG, **changes}, name="tiny")
    settings = settings_of([*flags, "--kv-cache-memory-bytes=64M"], engine="exo")
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, settings)
    assert not [problem.detail for problem in found.problems]
    assert (found.kv_block_size, found.num_kv_blocks) == (block, 2**26 // (block * per_token))


def test_int8_is_advised_where_weights_are_too_large() -> None:
    model = find_model("Qwen/Qwen3-8B")
    advised = advise(model, cpu_as_gpu(24 * 2**30), 1, settings_of([], engine="exo"))
    assert any(option == "--quantization=int8" for each in advised for option in each.flags)


@pytest.mark.parametrize(
    ("changes", "per_request"),
    [
        pytest.param(WINDOWS, 2 * 16, id="a window has no more blocks than the request"),
        pytest.param(HYBRID, 8 + 2 * 2, id="a state is read and written"),
    ],
)
def test_the_cache_is_no_larger_than_all_requests_use(
    changes: dict[str, object], per_request: int
) -> None:
    """Groups of three and of two layers; a block has 16 tokens, or 32 where it must hold a state."""
    flags = ["--max-num-seqs=2", "--max-model-len=256"]
    model = read_architecture({**CONFIG, **changes}, name="tiny")
    found = plan(model, cpu_as_gpu(16 * 2**30), 1, settings_of(flags, engine="exo"))
    assert found.num_kv_blocks == 2 * per_request
