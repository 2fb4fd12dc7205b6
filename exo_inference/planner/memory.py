"""What takes a GPU's memory, component by component, for one rank of one pipeline stage.

`planning.py` calls these functions; each returns a `Component` with a value, the band it is believed to be
in, and where the formula comes from. All sizes are bytes on one GPU. Weights come from exact shapes;
activations and overheads follow formulas checked on real starts (docs/benchmarks/planner.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import GIB, MIB, Gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import Layer, MoeShape, Shard, Weight


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a GPU's memory.

    Attributes:
        name: weights, activations, cuda_graphs, non_torch, draft_model, lora, kv_cache, reserve.
        num_bytes, low, high: the value and the band around it.
        source: formula and where it is from.
        is_in_budget: whether it comes out of gpu-memory-utilization.
    """

    name: str
    num_bytes: int
    low: int
    high: int
    source: str
    is_in_budget: bool = True


@dataclass(frozen=True, slots=True)
class Ranks:
    """How the model is spread: sizes of tensor, pipeline and expert parallelism."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    has_expert_parallel: bool = False

    @property
    def expert(self) -> int:
        """Ranks over which whole experts are spread."""
        return self.tensor * self.data if self.has_expert_parallel else 1


def stage_sizes(num_layers: int, stages: int) -> list[int]:
    """Return the decoder layers of each pipeline stage (vLLM: distributed/utils.py get_pp_indices).

    What is left over goes to the last stages but one, which have no embedding and no head.
    """
    base, rest = divmod(num_layers, stages)
    sizes = [base] * stages
    for index in range(2, rest + 2):
        sizes[-index if index <= stages else -1] += 1
    return sizes


def weights_component(
    model: Architecture,
    ranks: Ranks,
    stage: int,
    dtype_bytes: int,
    rules: EngineRules,
    *,
    offload: int = 0,
) -> Component:
    """Return the weights of one rank, rotary tables included, after CPU offload."""
    layers, outer = _stage_bytes(model, ranks, stage, dtype_bytes, pads_experts(model, rules))
    if rules.absorbs_latents:
        layers += absorbed_bytes(model, ranks, dtype_bytes)
    total = layers + outer - min(offload, int(layers))
    if model.checkpoint_bytes is not None:
        # In the checkpoint's own format: it may run in another one, such as float32 on a CPU.
        total *= model.checkpoint_bytes / max(1.0, _all_bytes(model, model.dtype_bytes))
    total += rotary_bytes(model, dtype_bytes, rules)
    band = model.weights_error
    source = (
        "tensor shapes of the config, each in its stored format, as split over ranks; rotary tables"
    )
    if model.checkpoint_bytes is not None:
        source = "the checkpoint's own tensor headers, as split over ranks; rotary tables"
    return Component(
        "weights", int(total), int(total * (1 - band)), int(total * (1 + band)), source
    )


def offloaded_bytes(
    model: Architecture, ranks: Ranks, dtype_bytes: int, rules: EngineRules, offload: int
) -> int:
    """Return what `--cpu-offload-gb` moves of one rank: layers, the first stage's standing for all."""
    layers, _ = _stage_bytes(model, ranks, 0, dtype_bytes, pads_experts(model, rules))
    return min(offload, int(layers))


def rotary_bytes(model: Architecture, dtype_bytes: int, rules: EngineRules) -> int:
    """Return the rotary tables that count as weights: exo-engine makes its own after sizing the cache."""
    return model.rope_elements * dtype_bytes if rules.counts_rotary else 0


@lru_cache(maxsize=256)
def absorbed_bytes(model: Architecture, ranks: Ranks, dtype_bytes: int) -> float:
    """Return the products of MLA projections that vLLM 0.7 kept (mla/utils.py, W_Q_UK and W_UV_O).

    Checked on DeepSeek-R1 TP8 (4.1 of 4.6 GiB above the checkpoint) and DeepSeek-V2-Lite TP8 (0.21 of
    0.24). Models in FP8 keep them in FP8.
    """
    is_fp8 = model.quantization is not None and model.quantization.default.bits == 8
    total = 0.0
    for layer, count in model.layer_counts:
        sizes = {w.path.rpartition(".")[2]: w for w in layer.weights if w.part == "attention"}
        if layer.kv is None or "kv_b_proj" not in sizes:
            continue
        q, latent = sizes.get("q_b_proj") or sizes["q_proj"], sizes["kv_b_proj"].in_features
        heads = model.num_heads / ranks.tensor
        total += count * heads * latent * (q.in_features + model.hidden_size)
    return total * (1 if is_fp8 else dtype_bytes) / ranks.pipeline


def pads_experts(model: Architecture, rules: EngineRules) -> bool:
    """Whether experts are padded: vLLM's Marlin kernel for MXFP4 rounds hidden to 256, width to 128."""
    return rules.pads_experts and model.moe is not None and model.pads_experts


@lru_cache(maxsize=4096)
def _stage_bytes(
    model: Architecture, ranks: Ranks, stage: int, dtype_bytes: int, pads_mxfp4: bool
) -> tuple[float, float]:
    """Return the bytes of a stage's layers and of what lies outside them."""
    inner, outer = stage_weights(model, ranks, stage)
    layers = sum(
        count * rank_bytes(w, ranks, dtype_bytes, pads_mxfp4=pads_mxfp4) for w, count in inner
    )
    return layers, sum(rank_bytes(weight, ranks, dtype_bytes) for weight in outer)


def stage_weights(
    model: Architecture, ranks: Ranks, stage: int
) -> tuple[list[tuple[Weight, int]], list[Weight]]:
    """Return the weights of a stage's layers, with how often each occurs, and those outside layers."""
    sizes = stage_sizes(len(model.layers), ranks.pipeline)
    start = sum(sizes[:stage])
    here = model.layers[start : start + sizes[stage]]
    counts = Counter(id(layer) for layer in here)
    unique = {id(layer): layer for layer in here}
    inner = [(w, counts[key]) for key, layer in unique.items() for w in layer.weights]
    is_first, is_last = stage == 0, stage == ranks.pipeline - 1
    is_tied = not any(w.part == "lm_head" for w in model.outer_weights)
    at_start = [w for w in model.outer_weights if w.part not in ("lm_head", "norm")]
    outer = at_start if is_first else []
    if is_last:
        outer = outer + [w for w in model.outer_weights if w.part in ("lm_head", "norm")]
    if is_last and is_tied and not is_first:
        outer = outer + [w for w in at_start if w.part == "embedding"]
    return inner, outer


@lru_cache(maxsize=512)
def _all_bytes(model: Architecture, dtype_bytes: int) -> float:
    layers, outer = _stage_bytes(model, Ranks(), 0, dtype_bytes, False)
    return layers + outer


def rank_bytes(
    weight: Weight, ranks: Ranks, dtype_bytes: int, *, pads_mxfp4: bool = False
) -> float:
    """Return the bytes of a weight on one rank."""
    rows, columns = weight.out_features, weight.in_features
    form = weight.format
    if form is None:
        size = float(rows * columns * dtype_bytes)
    else:
        if pads_mxfp4 and form.name == "mxfp4":
            rows, columns = _padded(weight, rows, columns)
        size = form.matrix_bytes(rows, columns)
    size *= weight.copies
    if weight.shard is Shard.REPLICATED:
        return size
    if weight.shard is Shard.KV_HEADS:
        return size * max(1, weight.heads // ranks.tensor) / weight.heads
    if weight.shard is Shard.EXPERTS and ranks.has_expert_parallel:
        return size * -(-weight.copies // ranks.expert) / weight.copies
    return size / ranks.tensor


def _padded(weight: Weight, rows: int, columns: int) -> tuple[int, int]:
    if weight.path.endswith("down_proj"):
        return -(-rows // 256) * 256, -(-columns // 128) * 128
    return -(-rows // 128) * 128, -(-columns // 256) * 256


def activations_component(
    model: Architecture, ranks: Ranks, rules: EngineRules, batch: ActivationBatch, dtype_bytes: int
) -> Component:
    """Return the peak of the profile run: the largest of one step, the sampler and the encoder.

    A step holds four hidden vectors per token and what the widest feed-forward computes; the sampler
    holds fp32 copies of the logits of every sequence.
    """
    step = batch.num_tokens * dtype_bytes * _elements_per_token(model, ranks, rules)
    sampler = 0.0
    if batch.has_sampler:
        sampler = batch.num_seqs * model.vocab_size * 4 * rules.sampler_copies
    encoder = 0.0
    if model.vision is not None and batch.num_patches:
        vision = model.vision
        encoder = (
            batch.num_patches
            * dtype_bytes
            * (4 * vision.hidden_size + 3 * vision.intermediate_size)
        )
    peak = int(max(step, sampler, encoder))
    source = (
        f"largest of one step of {batch.num_tokens} tokens ({step / MIB:.0f} MiB), the sampler's "
        f"{rules.sampler_copies} fp32 copies of {batch.num_seqs} x {model.vocab_size} logits "
        f"({sampler / MIB:.0f} MiB), the image encoder ({encoder / MIB:.0f} MiB)"
    )
    low = int(0.6 * peak) if encoder < peak else int(max(step, sampler) * 0.6)
    return Component("activations", peak, low, int(1.4 * peak) + 128 * MIB, source)


@dataclass(frozen=True, slots=True)
class ActivationBatch:
    """The profile run: tokens of one step, sequences that are sampled, patches that are encoded."""

    num_tokens: int
    num_seqs: int
    num_patches: int = 0
    has_sampler: bool = True


@lru_cache(maxsize=4096)
def _elements_per_token(model: Architecture, ranks: Ranks, rules: EngineRules) -> float:
    """Return the numbers that one token has alive in the widest layer."""
    dense = 0.0
    for layer, _ in model.layer_counts:
        dense = max(dense, _layer_elements(layer, model.moe, ranks, rules))
    return 4 * model.hidden_size + dense


def _layer_elements(layer: Layer, moe: MoeShape | None, ranks: Ranks, rules: EngineRules) -> float:
    widths = {"mlp": 0.0, "attention": 0.0}
    for weight in layer.weights:
        name = weight.path.rpartition(".")[2]
        if weight.part == "mlp" and name in ("gate_proj", "up_proj"):
            widths["mlp"] += weight.out_features
            widths["mlp"] += weight.out_features if name == "up_proj" else 0
        elif weight.part == "attention" and name.startswith(
            ("q_", "k_", "v_", "qkv", "in_", "kv_b")
        ):
            widths["attention"] += weight.out_features
    per_token = max(widths.values()) / ranks.tensor
    if layer.uses_moe and moe is not None:
        per_token = max(per_token, _moe_elements(moe, ranks, rules))
    return per_token


def _moe_elements(moe: MoeShape, ranks: Ranks, rules: EngineRules) -> float:
    """Return what the fused experts hold per token (vLLM: fused_moe.py intermediate_cache1-3)."""
    split = 1 if ranks.has_expert_parallel else ranks.tensor
    wide, hidden = moe.intermediate_size / split, moe.hidden_size
    if rules.is_legacy:  # three separate buffers
        routed = moe.experts_per_token * (3 * wide + hidden)
    else:  # the first and the third share one
        routed = moe.experts_per_token * (max(2 * wide, hidden) + wide)
    return routed + 3 * moe.shared_intermediate_size / ranks.tensor


def graphs_component(
    model: Architecture, ranks: Ranks, rules: EngineRules, max_num_seqs: int, *, is_eager: bool
) -> Component:
    """Return the memory of captured CUDA graphs.

    vLLM captures every batch size of a list up to twice max-num-seqs, 512 at most; 0.4 MiB per layer and
    size is the middle of what starts printed. The estimate that newer versions subtract is loose
    itself: from a third to three times of what was then used.
    """
    in_budget = rules.subtracts_graphs
    if is_eager or not rules.captures_graphs:
        return Component("cuda_graphs", 0, 0, 0, "no CUDA graphs are captured", in_budget)
    largest = min(512, 2 * max_num_seqs)
    small = sum(1 for size in (1, 2, 4) if size <= largest)
    sizes = small + min(largest, 248) // 8 + max(0, (largest - 240) // 16)
    layers = -(-len(model.layers) // ranks.pipeline)
    value = int(layers * sizes * 0.4 * MIB)
    source = f"{sizes} batch sizes x {layers} layers x 0.4 MiB (middle of printed figures)"
    return Component("cuda_graphs", value, value // 3, 2 * value + 100 * MIB, source, in_budget)


def non_torch_component(ranks: Ranks, rules: EngineRules, gpu: Gpu) -> Component:
    """Return what CUDA, cuBLAS and NCCL hold outside torch.

    One GPU: 0.01 to 0.26 GiB printed, 0.1 in the middle; with the accounting since 0.26 also what torch
    keeps, 0.3. Tensor parallel over NVLink: 1.38 at TP2, 0.93 to 2.15 at TP8 (DeepSeek-R1 on V0: 7.2);
    over PCIe, where there are no peer-to-peer buffers, 0.21 at TP8. Where CPU and GPU share memory,
    the page cache of loading counts: 2 GiB in six of six starts.
    """
    if gpu.vendor == "cpu":
        return Component("non_torch", 0, 0, 0, "nothing on a CPU")
    low, (value, high) = 0.0, rules.non_torch_gib
    source = "middle of what starts printed on one GPU"
    linked = _linked_ranks(ranks.tensor, gpu)
    if linked > 1:
        value += 1.04 + 0.12 * linked
        low, high, source = 0.4, 2 * value, "middle of printed figures with NCCL over NVLink"
        if ranks.tensor > linked:  # the network's buffers come on top
            value, high = value + 0.1, high + 0.9
            source += f" in a machine of {linked}; between machines as over PCIe"
    elif ranks.tensor * ranks.pipeline > 1:
        value, high, source = value + 0.1, high + 0.9, "printed figures with NCCL over PCIe"
    if gpu.is_unified:
        value, high, source = (
            value + 2.0,
            high + 4.5,
            f"{source}; shared memory: 2 GiB of page cache",
        )
    return Component("non_torch", int(value * GIB), int(low * GIB), int(high * GIB), source)


def _linked_ranks(tensor: int, gpu: Gpu) -> int:
    """Return how many ranks NVLink joins: all of them, or those of one machine of a larger replica."""
    if gpu.is_linked(tensor):
        return tensor
    has_switch = gpu.has_nvlink and gpu.nvlink_size > 2  # bridges join two, and are not used beyond
    return gpu.nvlink_size if has_switch else 1


def lora_component(
    model: Architecture, ranks: Ranks, slots: int, rank: int, dtype_bytes: int
) -> Component:
    """Return the LoRA slots: A and B of every linear layer, `slots` times (vLLM: lora/layers)."""
    total = 0.0
    for layer, count in model.layer_counts:
        for weight in layer.weights:
            if weight.part in ("attention", "mlp", "shared_experts") and weight.in_features > 1:
                a, b = weight.in_features * rank, weight.out_features * rank / ranks.tensor
                total += count * (a + b) * dtype_bytes
    value = int(total * slots / ranks.pipeline)
    source = f"{slots} slots of rank {rank} for every linear layer"
    return Component("lora", value, int(0.9 * value), int(1.2 * value), source)


def draft_component(
    weights: Sequence[Weight], ranks: Ranks, dtype_bytes: int, source: str, error: float
) -> Component:
    """Return the weights of a draft model, an EAGLE head or prediction layers."""
    value = int(sum(rank_bytes(weight, ranks, dtype_bytes) for weight in weights))
    return Component(
        "draft_model", value, int(value * (1 - error)), int(value * (1 + error)), source
    )
