"""What the estimate of speed knows of engines: read in vLLM's source, release by release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from exo_inference.planner import EngineParameters, find_gpu, find_model, plan
from exo_inference.planner.speed.constants import load_speed_constants
from exo_inference.planner.speed.estimate import (
    batch_times,
    communication_seconds,
    floor_seconds,
    joining_seconds,
    prompt_seconds,
    prompt_times,
    token_seconds,
)
from exo_inference.planner.speed.inputs import SpeedInputs, arithmetic
from exo_inference.planner.speed.operations import (
    attention_flops,
    half_rate,
    product_seconds,
    read_bytes,
)


def inputs_of(
    model: str, gpu: str, count: int = 1, version: str = "0.20.0", **flags: Any
) -> SpeedInputs:
    parameters = EngineParameters.of({"max_model_len": 16384, **flags}, engine_version=version)
    found = plan(find_model(model), find_gpu(gpu), count, parameters)
    assert found.basis is not None
    return found.basis.speed


@pytest.mark.parametrize(
    ("version", "flags", "waits"),
    [
        ("0.13.0", {}, True),
        ("0.14.0", {}, False),
        ("0.11.0", {"async_scheduling": True}, False),
        ("0.20.0", {"async_scheduling": False}, True),
    ],
)
def test_a_step_waits_for_the_host_unless_it_is_scheduled_ahead(
    version: str, flags: dict[str, Any], waits: bool
) -> None:
    inputs, constants = (
        inputs_of("Qwen/Qwen3-8B", "H100", version=version, **flags),
        load_speed_constants(),
    )
    assert inputs.step(1) == pytest.approx(
        constants.step + constants.sequence + waits * constants.waiting
    )


@pytest.mark.parametrize(
    ("model", "version", "is_parsed"),
    [
        ("Qwen/Qwen3-8B", "0.10.2", False),
        ("Qwen/Qwen3-8B", "0.11.0", True),
        ("Qwen/Qwen3-8B", "0.11.2", False),
        ("openai/gpt-oss-20b", "0.11.0", False),
    ],
)
def test_one_release_parses_the_template_of_each_request(
    model: str, version: str, is_parsed: bool
) -> None:
    """In vLLM 0.11.0, entrypoints/chat_utils.py `resolve_chat_template_kwargs`; gpt-oss has no template."""
    inputs, constants = inputs_of(model, "H100", version=version), load_speed_constants()
    assert inputs.parsing == (constants.template if is_parsed else 0.0)
    assert inputs.taking_in == pytest.approx(constants.prompt + inputs.parsing)
    assert replace(inputs, through_chat=False).parsing == 0.0


@pytest.mark.parametrize(
    ("version", "flags", "is_ahead"),
    [("0.7.3", {}, False), ("0.13.0", {}, False), ("0.19.0", {}, True), ("0.19.0", {"async_scheduling": False}, False)],
)  # fmt: skip
def test_a_step_that_is_scheduled_ahead_takes_no_less_than_the_host_does(
    version: str, flags: dict[str, Any], is_ahead: bool
) -> None:
    inputs = inputs_of("Qwen/Qwen2.5-0.5B-Instruct", "H100", version=version, **flags)
    slow = replace(inputs, constants=replace(inputs.constants, ahead=1.0))
    assert (inputs.least_step(8) > 0) is is_ahead
    _, flops = arithmetic(slow)
    assert (token_seconds(slow, 8, 100, flops) > 1.0) is is_ahead


def test_everything_that_the_host_does_takes_its_processors_time() -> None:
    known = inputs_of("Qwen/Qwen3-8B", "H100", version="0.11.0")
    slow = replace(
        known,
        gpu=replace(known.gpu, processor="slow"),
        constants=replace(known.constants, hosts={"slow": 2.0}),
    )
    assert (known.host, slow.host) == (1.0, 2.0)
    for part in (lambda each: each.step(8), lambda each: each.taking_in, lambda each: each.parsing):
        assert part(slow) == pytest.approx(2 * part(known))
    launches = [
        prompt_times(each, 2048, arithmetic(each)[1])["kernel launches"] for each in (known, slow)
    ]
    assert launches[1] == pytest.approx(2 * launches[0])
    eager = [
        batch_times(replace(each, is_eager=True), 1, 100, arithmetic(each)[1])["kernel launches"]
        for each in (known, slow)
    ]
    assert eager[1] == pytest.approx(2 * eager[0])


@pytest.mark.parametrize(
    ("version", "context", "is_launched"),
    [("0.7.3", 8192, False), ("0.7.3", 8193, True), ("0.20.0", 16000, False)],
)
def test_v0_decodes_long_requests_without_graphs(
    version: str, context: int, is_launched: bool
) -> None:
    inputs = inputs_of("meta-llama/Llama-3.1-8B-Instruct", "H100", version=version)
    parts = batch_times(inputs, 1, context, arithmetic(inputs)[1])
    assert (parts["kernel launches"] > 0) is is_launched


@pytest.mark.parametrize(
    ("version", "flags", "times"),
    [
        ("0.8.5", {"kv_cache_dtype": "fp8"}, 2),
        ("0.11.2", {"kv_cache_dtype": "fp8"}, 2),
        ("0.12.0", {"kv_cache_dtype": "fp8"}, 1),
        ("0.11.2", {}, 1),
    ],
)
def test_a_cache_in_fp8_is_read_no_sooner_than_in_16_bit_before_attention_takes_it(
    version: str, flags: dict[str, Any], times: int
) -> None:
    """As docs/features/quantization/quantized_kvcache.md says to 0.11.2: "no latency improvements"."""
    inputs = inputs_of("Qwen/Qwen3-8B", "H100", version=version, **flags)
    parts = batch_times(inputs, 8, 1000, arithmetic(inputs)[1])
    as_stored = 8 * 1000 * inputs.kv_bytes_per_token / inputs.bandwidth
    assert parts["cache read"] == pytest.approx(times * as_stored)


@pytest.mark.parametrize(
    ("model", "version", "is_slow"),
    [
        ("deepseek-ai/DeepSeek-R1", "0.11.2", True),
        ("deepseek-ai/DeepSeek-R1", "0.12.0", False),
        ("zai-org/GLM-4.6", "0.11.0", True),
        ("Qwen/Qwen3-30B-A3B", "0.11.0", False),
        ("Qwen/Qwen3-8B", "0.11.0", False),
    ],
)
def test_choosing_experts_by_groups_took_several_kernels(
    model: str, version: str, is_slow: bool
) -> None:
    inputs = inputs_of(model, "H200", 8, version=version, tensor_parallel_size=8)
    free = replace(inputs, constants=replace(inputs.constants, early_groups=0.0))
    routed = sum(layer.uses_moe for layer in inputs.model.layers)
    added = floor_seconds(inputs) - floor_seconds(free)
    assert added == pytest.approx(is_slow * routed * inputs.constants.early_groups)


def test_a_layer_of_experts_has_a_floor_however_many_a_token_is_sent_to() -> None:
    inputs = inputs_of("Qwen/Qwen3-30B-A3B", "H100")
    free = replace(inputs, constants=replace(inputs.constants, experts=0.0))
    added = floor_seconds(inputs) - floor_seconds(free)
    assert added == pytest.approx(48 * inputs.constants.experts)


def test_a_prompts_layers_of_experts_take_more_launches() -> None:
    inputs = inputs_of("Qwen/Qwen3-30B-A3B", "H100")
    constants = inputs.constants
    launches = prompt_times(inputs, 2048, arithmetic(inputs)[1])["kernel launches"]
    assert launches == pytest.approx(48 * constants.expert_launches * constants.prompt_layer)


def test_narrow_slices_of_experts_compute_slower() -> None:
    def share_of_dense(count: int, **flags: Any) -> float:
        inputs = inputs_of("Qwen/Qwen3-235B-A22B", "H200", count, **flags)
        _, flops = arithmetic(inputs)
        dense = 2 * 1000 * inputs.model.num_active_parameters / flops
        return dense / product_seconds(inputs, 1000, flops)

    narrow = share_of_dense(8, tensor_parallel_size=8)
    whole = share_of_dense(8, tensor_parallel_size=8, enable_expert_parallel=True)
    assert narrow < whole < 1


def test_dense_products_reach_what_the_gpu_does() -> None:
    inputs = inputs_of("Qwen/Qwen3-8B", "H100")
    _, flops = arithmetic(inputs)
    assert product_seconds(inputs, 100, flops) == 200 * inputs.model.num_active_parameters / flops


@pytest.mark.parametrize(
    ("model", "gpu", "version", "rows"),
    [
        ("Qwen/Qwen3-8B", "H100", "0.20.0", 64),
        ("Qwen/Qwen3-8B", "A100 80GB", "0.20.0", 8),
        ("Qwen/Qwen3-8B-FP8", "H100", "0.9.2", 64),
        ("Qwen/Qwen3-8B-FP8", "H100", "0.10.0", 8),
        ("Qwen/Qwen3-8B-AWQ", "H100", "0.20.0", 8),  # unpacked: instructions of 16 rows
    ],
)
def test_compute_capability_9_multiplies_64_rows_at_least(
    model: str, gpu: str, version: str, rows: int
) -> None:
    inputs = inputs_of(model, gpu, version=version)
    _, flops = arithmetic(inputs)
    assert product_seconds(inputs, 8, flops) == pytest.approx(
        2 * rows * inputs.model.num_active_parameters / flops
    )


def test_a_prompts_latents_are_expanded_to_heads() -> None:
    """DeepSeek-R1: 128 heads, 192 elements of each key and 128 of each value."""
    inputs = inputs_of("deepseek-ai/DeepSeek-R1", "H200", 8, tensor_parallel_size=8)
    length = 1000
    assert attention_flops(inputs, length) == 61 * 2 * 128 * (192 + 128) * length * length / 2


@pytest.mark.parametrize(("gpu", "times"), [("A100 80GB", 6.1), ("H100", 1.0), ("L40S", 6.1)])
def test_heads_with_sinks_attend_slower_before_hopper(gpu: str, times: float) -> None:
    inputs = inputs_of("openai/gpt-oss-20b", gpu, max_model_len=32768)
    plain = replace(inputs, rules=replace(inputs.rules, sinks_times=1.0))
    assert attention_flops(inputs, 32000) == pytest.approx(times * attention_flops(plain, 32000))
    dense = inputs_of("Qwen/Qwen3-8B", gpu)
    without = replace(dense, rules=replace(dense.rules, sinks_times=1.0))
    assert attention_flops(dense, 32000) == attention_flops(without, 32000)


@pytest.mark.parametrize(("gpu", "is_slower"), [("T4", True), ("A100 80GB", False), ("MI300X", False)])  # fmt: skip
def test_prompts_attend_slower_where_flash_attention_does_not_run(
    gpu: str, is_slower: bool
) -> None:
    inputs = inputs_of("Qwen/Qwen2.5-0.5B-Instruct", gpu)
    plain = replace(inputs, constants=replace(inputs.constants, early_attention=1.0))
    times = inputs.constants.early_attention if is_slower else 1.0
    assert attention_flops(inputs, 8000) == pytest.approx(times * attention_flops(plain, 8000))


def test_a_prompt_has_logits_of_its_last_token_alone() -> None:
    """Of a model with a head of a quarter of its weights the products of a long prompt are a quarter fewer."""
    inputs = inputs_of("Qwen/Qwen3-0.6B", "H100")
    model, flops = inputs.model, 1e15
    reached = inputs.constants.compute_reached(inputs.gpu)
    computed = prompt_times(inputs, 2000, flops)["compute"] * reached * flops
    products = computed - attention_flops(inputs, 2000) * flops / half_rate(inputs, flops)
    head = model.vocab_size * model.hidden_size
    expected = 2 * 2000 * (model.num_active_parameters - head) + 2 * head
    assert products == pytest.approx(expected)


@pytest.mark.parametrize(
    ("gpu", "ranks", "heads"),
    [("H200", 8, 64), ("B200", 8, 128), ("B200", 4, 128), ("H200", 1, 128)],
)
def test_sparse_attention_pads_heads(gpu: str, ranks: int, heads: int) -> None:
    """DeepSeek-V3.2: each token attends to 2,048 of 576 elements, found by 64 heads of 128."""
    inputs = inputs_of("deepseek-ai/DeepSeek-V3.2", gpu, ranks, tensor_parallel_size=ranks)
    length = 10_000
    each = 2 * 2 * 576 * heads * 2048 + 2 * 64 * 128 * length / 2
    assert attention_flops(inputs, length) == 61 * length * ranks * each


def test_a_prompts_reading_and_computing_follow_one_another() -> None:
    inputs = inputs_of("Qwen/Qwen3-8B", "H100")
    parts = {"compute": 0.03, "memory bandwidth": 0.02, "offloaded weights": 0.01, "kernel launches": 0.04, "communication": 0.0}  # fmt: skip
    host = inputs.step(1) + inputs.taking_in
    assert prompt_seconds(inputs, parts, 200) == pytest.approx(0.06 + host)
    assert prompt_seconds(inputs, {**parts, "kernel launches": 0.07}, 200) == pytest.approx(
        0.07 + host
    )


def test_latents_have_a_floor_of_their_own() -> None:
    inputs = inputs_of("deepseek-ai/DeepSeek-R1", "H200", 8, tensor_parallel_size=8)
    constants = load_speed_constants()
    parts = batch_times(inputs, 1, 1000, arithmetic(inputs)[1])
    experts = 58 * constants.experts
    assert parts["small kernels"] == pytest.approx(
        61 * (2 * constants.layer + constants.latent) + experts
    )


def test_a_compiled_model_launches_a_prompt_sooner() -> None:
    times = []
    for version in ("0.7.3", "0.20.0"):
        inputs = inputs_of("Qwen/Qwen3-8B", "H100", version=version)
        times.append(prompt_times(inputs, 2048, arithmetic(inputs)[1])["kernel launches"])
    assert times[0] > 1.5 * times[1]


def test_v0_launches_each_all_reduce_of_a_prompt_by_itself() -> None:
    """Llama 3.1 70B: 80 layers, after each half of which the ranks add up."""
    name, flags = "meta-llama/Llama-3.1-70B-Instruct", {"max_model_len": 4096}
    times = []
    for version in ("0.7.3", "0.20.0"):
        inputs = inputs_of(name, "H100", 4, version=version, tensor_parallel_size=4, **flags)
        without = replace(inputs, constants=replace(inputs.constants, old_reduce=0.0))
        each = [
            prompt_times(one, 2048, arithmetic(one)[1])["kernel launches"]
            for one in (inputs, without)
        ]
        times.append(each[0] - each[1])
    assert times == [pytest.approx(160 * load_speed_constants().old_reduce), 0.0]


def test_a_step_reads_bytes_of_experts_and_no_embedding_table() -> None:
    """GPT-OSS-120B: 128 experts in 4 bit, of which a token is sent to 4, and all else in 16 bit."""
    inputs = inputs_of("openai/gpt-oss-120b", "H100", max_model_len=8192)
    model = inputs.model
    routed = sum(
        count * weight.num_elements
        for layer, count in model.layer_counts
        for weight in layer.weights
        if weight.part == "routed_experts"
    )
    table = model.vocab_size * model.hidden_size
    others = 2 * (model.num_parameters - routed - table)
    read, away = read_bytes(inputs, 1)
    assert away == 0.0
    # Padding of the experts, and pages, are read with them.
    assert read == pytest.approx(others + routed * 4 / 128 * 4.25 / 8, rel=0.06)


def test_a_tied_embedding_table_is_read_as_the_head() -> None:
    inputs = inputs_of("Qwen/Qwen2.5-0.5B-Instruct", "H100")
    assert read_bytes(inputs, 1) == (pytest.approx(inputs.weights_bytes), 0.0)


def test_ranks_with_whole_experts_wait_for_the_busiest() -> None:
    flags = {"tensor_parallel_size": 8}
    split = inputs_of("Qwen/Qwen3-235B-A22B", "H200", 8, **flags)
    whole = inputs_of("Qwen/Qwen3-235B-A22B", "H200", 8, **flags, enable_expert_parallel=True)
    few, many = ([read_bytes(each, size)[0] for each in (split, whole)] for size in (4, 4096))
    assert few[1] > 1.2 * few[0]
    assert many[1] == pytest.approx(many[0], rel=0.01)


def test_v1_computes_a_prompt_in_the_steps_of_the_others() -> None:
    name = "meta-llama/Llama-3.1-8B-Instruct"
    old, new = (inputs_of(name, "A100 80GB", version=each) for each in ("0.7.3", "0.20.0"))
    _, flops = arithmetic(new)
    parts = prompt_times(new, 4096, flops)
    assert joining_seconds(new, 4096, 8, flops) == pytest.approx(parts["compute"])
    alone = prompt_seconds(old, prompt_times(old, 4096, flops), 4096) - old.taking_in
    assert joining_seconds(old, 4096, 8, flops) == pytest.approx(alone)


def test_prompts_at_once_share_the_waits_of_an_all_reduce() -> None:
    inputs = inputs_of("Qwen/Qwen3-32B", "H100", 4, tensor_parallel_size=4)
    one, two = (communication_seconds(inputs, 100, steps) for steps in (1, 2))
    assert two - one == pytest.approx(2 * 64 * load_speed_constants().switch)


def test_a_refused_start_is_taken_to_hold_one_request() -> None:
    inputs = inputs_of("meta-llama/Llama-3.1-70B-Instruct", "H100")
    assert inputs.capacity_tokens == 16384


@pytest.mark.parametrize(
    ("gpu", "longer"),
    [
        ("A100 80GB SXM4", 3072 / 2880 * 2944 / 2880),  # Marlin pads both sides
        ("H100", 1 / 0.61),  # Triton pads the width to 64, which it is a multiple of
        ("B200", None),  # computes in four bit
    ],
)
def test_experts_in_mxfp4_are_unpacked_where_the_gpu_has_no_such_arithmetic(
    gpu: str, longer: float | None
) -> None:
    inputs = inputs_of("openai/gpt-oss-20b", gpu)
    plain = replace(inputs, model=replace(inputs.model, quantization=None))
    assert grouped_seconds(inputs) == pytest.approx((longer or 1.0) * grouped_seconds(plain))


def grouped_seconds(inputs: SpeedInputs) -> float:
    """Return what a factor of 2 on the products of experts adds to those of all."""
    assert inputs.model.moe is not None
    _, flops = arithmetic(replace(inputs, model=replace(inputs.model, quantization=None)))
    both = [
        product_seconds(
            replace(inputs, constants=replace(inputs.constants, grouped_width=width)), 1000, flops
        )
        for width in (0.0, float(inputs.model.moe.intermediate_size))
    ]
    return both[1] - both[0]
