"""What a model computes: matrix products, those of experts apart, and attention; and the experts that a batch reads.

`estimate.py` turns it into times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from statistics import NormalDist
from typing import TYPE_CHECKING

from exo_inference.planner.memory import Ranks, expert_padding, rank_bytes
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind, Layer, Weight

if TYPE_CHECKING:
    from exo_inference.planner.speed.inputs import SpeedInputs


def read_bytes(inputs: SpeedInputs, batch: int) -> tuple[float, float]:
    """Return the bytes of a rank's weights that a batch reads, of the GPU's memory and of the host's.

    Not every expert is chosen by someone. What stays in the host's memory are layers, which are read but for such experts.
    """
    dtype_bytes = 4 if inputs.dtype == "float32" else 2
    is_processor = inputs.gpu.vendor == "cpu"
    experts, idle = _byte_shares(inputs.model, inputs.ranks, dtype_bytes, is_processor)
    touched = 1 - idle - experts * (1 - _most_chosen(inputs, batch))
    away = inputs.offloaded_bytes * touched / max(1e-9, 1 - idle)
    return max(0.0, (inputs.weights_bytes + inputs.offloaded_bytes) * touched - away), away


@lru_cache(maxsize=1024)
def _byte_shares(
    model: Architecture, ranks: Ranks, dtype_bytes: int, is_processor: bool
) -> tuple[float, float]:
    """Return the shares of a rank's bytes that are routed experts', and those that no step of text reads.

    Bytes and not numbers: experts in 4 bit are often beside attention in 16. Of an embedding table that is not the head,
    too, a step reads the rows of its tokens alone. On a processor all count as read, as its constants were set so: the model
    of docs/benchmarks/planner-processor.md that has such a table was nearer to its measurements with it.
    """
    if is_processor:
        unread: frozenset[str] = frozenset()
    elif any(each.part == "lm_head" for each in model.outer_weights):
        unread = _UNREAD | {"embedding"}
    else:
        unread = _UNREAD
    experts = idle = total = 0.0
    for weight, count in _counted_weights(model):
        size = count * rank_bytes(weight, ranks, dtype_bytes)
        total += size
        experts += size if weight.part == "routed_experts" else 0.0
        idle += size if weight.part in unread else 0.0
    return experts / max(1.0, total), idle / max(1.0, total)


_UNREAD = frozenset({"vision", "projector", "per_layer_embedding"})


def _counted_weights(model: Architecture) -> Iterator[tuple[Weight, int]]:
    for layer, count in model.layer_counts:
        yield from ((weight, count) for weight in layer.weights)
    yield from ((weight, 1) for weight in model.outer_weights)


def _most_chosen(inputs: SpeedInputs, batch: int) -> float:
    """Return the share of its experts that the busiest rank reads.

    Where ranks have whole experts they all wait for the one most of whose experts were chosen: of as many draws as
    there are ranks, the largest is expected where a normal distribution has 0.5264 to the power of 1 by their number.
    """
    chosen, ranks = 1 - unchosen_share(inputs.model, batch), inputs.ranks.expert
    if ranks < 2 or inputs.model.moe is None:
        return chosen
    each = inputs.model.moe.num_experts / ranks
    further = NormalDist().inv_cdf(0.5264 ** (1 / ranks))
    return min(1.0, chosen + further * math.sqrt(chosen * (1 - chosen) / each))


@lru_cache(maxsize=1024)
def _routed_share(model: Architecture) -> float:
    """Return the share of the weights that are routed experts'."""
    experts = sum(
        count * sum(w.num_elements for w in layer.weights if w.part == "routed_experts")
        for layer, count in model.layer_counts
    )
    return experts / max(1, model.num_parameters)


def unchosen_share(model: Architecture, batch: int) -> float:
    """Return the share of a layer's experts that no token of a batch is sent to."""
    moe = model.moe
    if moe is None or moe.num_experts < 1:
        return 0.0
    return (1 - min(1.0, moe.experts_per_token / moe.num_experts)) ** batch


def product_seconds(inputs: SpeedInputs, num_tokens: int, flops: float) -> float:
    """Return the seconds of all matrix products on one GPU that reached its stated arithmetic.

    Those of experts are no faster in 8 and 4 bit than in 16, and take the longer the narrower a rank's slice of each is:
    so much more of the stated arithmetic, whatever share of it the wide ones reach, as power does not hold back a GPU that
    is not filled.
    """
    model, ranks = inputs.model, inputs.ranks
    rows = max(num_tokens, _least_rows(inputs))
    if model.moe is None:
        return 2 * rows * model.num_active_parameters / flops
    routed = (1 - unchosen_share(model, 1)) * _routed_share(model) * model.num_parameters
    width = model.moe.intermediate_size / (1 if ranks.has_expert_parallel else ranks.tensor)
    narrow = inputs.constants.grouped_width / max(1.0, width)
    times = 1 + narrow * inputs.constants.compute_reached(inputs.gpu)
    grouped = routed * times * _unpacked(inputs) / half_rate(inputs, flops)
    return 2 * (rows * (model.num_active_parameters - routed) / flops + num_tokens * grouped)


_TILE_ROWS = 64
"""Rows of a product that compute capability 9 computes at least: its instructions multiply 64 (PTX ISA, `wgmma`)."""


def _least_rows(inputs: SpeedInputs) -> int:
    """Return the rows that a product computes at least, those that are padding included.

    Of products in FP8 vLLM swaps the sides for few rows since 0.10, as 64 rows are mostly padding then
    (vllm-project/vllm#20396, 2025-07). Weights that are unpacked to 16 bit have other instructions, of 16 rows.
    """
    quantization = inputs.model.quantization
    native = quantization.default.native if quantization is not None else "bf16"
    is_tiled = inputs.gpu.capability == 9.0 and native is not None and inputs.gpu.supports(native)
    return _TILE_ROWS if is_tiled and not (native == "fp8" and inputs.rules.swaps_sides) else 1


_HOPPER_SHARE = 0.61
"""Of what products of 16 bit reach, with weights in MXFP4 on compute capability 9: 49 % of the stated rate
(triton-lang/triton#6833, 2025-05-15, the layout that vLLM's kernels have) beside 80.3 % (`constants.py`)."""


def _unpacked(inputs: SpeedInputs) -> float:
    """Return how much longer products of experts in MXFP4 take where they are unpacked to 16 bit: padded, and slower."""
    model, gpu, ranks = inputs.model, inputs.gpu, inputs.ranks
    native = model.quantization.default.native if model.quantization is not None else None
    if model.moe is None or native != "mxfp4" or gpu.supports(native):
        return 1.0
    padding = expert_padding(model, inputs.rules, gpu)
    larger = 1.0
    if padding is not None:
        width = model.moe.intermediate_size / (1 if ranks.has_expert_parallel else ranks.tensor)
        sides = ((model.moe.hidden_size, padding.hidden), (width, padding.width))
        larger = math.prod(-(-size // multiple) * multiple / size for size, multiple in sides)
    return larger / (_HOPPER_SHARE if gpu.capability == 9.0 else 1.0)


def logits_operations(model: Architecture, num_tokens: int) -> int:
    """Return the operations of so many tokens' logits, over all GPUs."""
    return 2 * num_tokens * model.vocab_size * model.hidden_size


def half_rate(inputs: SpeedInputs, flops: float) -> float:
    """Return the operations per second in 16 bit, in which attention computes."""
    tflops = inputs.gpu.tflops
    half = (tflops.get("bf16") or tflops.get("fp16") or 0.0) * 1e12
    return min(flops, half or flops)


def attention_flops(inputs: SpeedInputs, length: int) -> float:
    """Return the operations of attention scores and values over a prompt (causal: half of them).

    Those of a slower kernel count as so many more.
    """
    total = 0.0
    for layer, count in inputs.model.layer_counts:
        kv = layer.kv
        if kv is None or kv.kind is KvKind.STATE:
            continue
        seen = min(length, kv.window) if kv.window else length / 2
        if kv.kind is KvKind.LATENT and kv.is_sparse:
            total += count * length * _sparse_flops(inputs, layer, seen)
            continue
        width = inputs.model.num_heads * (kv.key_dim + (kv.value_dim or kv.key_dim))
        if (
            kv.kind is KvKind.LATENT
        ):  # vLLM expands a prompt's latents into keys and values of each head
            width = _outputs(layer, "q_b_proj", "q_proj") + _inputs(layer, "o_proj") or width
        total += count * 2 * width * length * seen * _kernel_times(inputs, layer)
    return total


def _kernel_times(inputs: SpeedInputs, layer: Layer) -> float:
    """Return how much longer a layer's attention takes than with the kernel that most layers have."""
    if inputs.gpu.vendor == "nvidia" and (inputs.gpu.capability or 8.0) < 8.0:
        return inputs.constants.early_attention
    has_sinks = any(weight.path.endswith(".sinks") for weight in layer.weights)
    is_before_hopper = 8 <= (inputs.gpu.capability or 0.0) < 9
    return inputs.rules.sinks_times if has_sinks and is_before_hopper else 1.0


_SPARSE_TOKENS = 2048
"""Tokens that each attends to by an index (`index_topk` of DeepSeek-V3.2 and GLM-5)."""
_SPARSE_HEADS = 64
"""Heads that the kernel computes at least on each rank, 128 on GPUs of compute capability 10
(v1/attention/backends/mla/flashmla_sparse.py, `prefill_padding`, 0.24.0)."""


def _sparse_flops(inputs: SpeedInputs, layer: Layer, seen: float) -> float:
    """Return the operations of a prompt's token that attends to latents by an index, over all ranks."""
    kv, ranks = layer.kv, inputs.ranks.tensor
    if kv is None:
        return 0.0
    least = _SPARSE_HEADS * (2 if 10 <= (inputs.gpu.capability or 0.0) < 11 else 1)
    heads = max(least, inputs.model.num_heads // ranks)
    attended = 2 * 2 * kv.key_dim * heads * min(seen, _SPARSE_TOKENS)
    indexed = 2 * _outputs(layer, "indexer.wq_b") * seen
    return ranks * (attended + indexed)


def _outputs(layer: Layer, *names: str) -> int:
    return sum(each.out_features for each in layer.weights if each.path.endswith(names))


def _inputs(layer: Layer, *names: str) -> int:
    return sum(each.in_features for each in layer.weights if each.path.endswith(names))
