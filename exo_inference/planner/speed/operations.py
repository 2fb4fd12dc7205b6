"""What a model computes: matrix products, those of experts apart, and attention; and the experts that a batch reads.

`estimate.py` turns it into times.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from exo_inference.planner.memory import expert_padding
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind, Layer

if TYPE_CHECKING:
    from exo_inference.planner.speed.inputs import SpeedInputs


def touched_share(model: Architecture, batch: int) -> float:
    """Return the share of the weights that a batch reads: not every expert is chosen by someone."""
    return 1 - _routed_share(model) * unchosen_share(model, batch)


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

    Those of experts are no faster in 8 and 4 bit than in 16, and slower the narrower a rank's slice of each is.
    """
    model, ranks = inputs.model, inputs.ranks
    if model.moe is None:
        return 2 * num_tokens * model.num_active_parameters / flops
    routed = (1 - unchosen_share(model, 1)) * _routed_share(model) * model.num_parameters
    width = model.moe.intermediate_size / (1 if ranks.has_expert_parallel else ranks.tensor)
    times = 1 + inputs.constants.grouped_width / max(1.0, width)
    grouped = routed * times * _unpacked(inputs) / half_rate(inputs, flops)
    return 2 * num_tokens * ((model.num_active_parameters - routed) / flops + grouped)


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
