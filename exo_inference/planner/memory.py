"""What takes a GPU's memory, component by component, for one rank of one pipeline stage.

`planning.py` calls these functions; each returns a `Component` with a value, the band it is believed to be
in, and where the formula comes from. All sizes are bytes on one GPU. Weights come from exact shapes;
activations and overheads follow formulas checked on real starts (docs/benchmarks/planner.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.model.shapes import Layer, Shard, Weight

if TYPE_CHECKING:
    from exo_inference.planner.model.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Component:
    """One part of a GPU's memory.

    Attributes:
        name: weights, activations, cuda_graphs, non_torch, communication, draft_model, lora, kv_cache, reserve.
        num_bytes, low, high: the value and the band around it.
        source: formula and where it is from.
        is_in_budget: whether it comes out of gpu-memory-utilization.
        alternative: bytes less, which `low` has, where another kernel of the same release runs that nobody has named.
        first_start: bytes more than `high` in a start that compiles, which no plan knows.
    """

    name: str
    num_bytes: int
    low: int
    high: int
    source: str
    is_in_budget: bool = True
    alternative: int = 0
    first_start: int = 0

    @property
    def spread_down(self) -> int:
        """How much less it may be with the kernel that is counted."""
        return max(0, self.num_bytes - self.low - self.alternative)


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

    @property
    def expert_split(self) -> int:
        """Ranks that each have a slice of every expert; those of all data-parallel ranks share them.

        Source: vLLM's fused_moe/config.py, `flatten_tp_across_dp` (0.10.2) and `flatten_tp_across_dp_and_pcp` (0.32.0).
        """
        return 1 if self.has_expert_parallel else self.tensor * self.data


def found_bytes(gpu: Gpu, free_bytes: int | None) -> int:
    """Return the bytes of a GPU that an engine finds, CUDA's own included: all, or at most what is free."""
    return gpu.reported_bytes if free_bytes is None else min(gpu.reported_bytes, free_bytes)


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
    padding: ExpertPadding | None = None,
    offload: int = 0,
) -> Component:
    """Return the weights of one rank, rotary tables included, after CPU offload."""
    layers, outer = _stage_bytes(model, ranks, stage, dtype_bytes, padding)
    if rules.absorbs_latents and not offload:  # else they follow their layers to the host
        layers += absorbed_bytes(model, ranks, dtype_bytes)
    total = layers + outer - min(offload, int(layers))
    if model.checkpoint_bytes is not None:
        # In the checkpoint's own format: it may run in another one, such as float32 on a CPU.
        total *= model.checkpoint_bytes / max(1.0, _all_bytes(model, model.dtype_bytes))
    total += rotary_bytes(model, dtype_bytes, rules)
    if rules.fills_qkv:
        total += unstored_bytes(model, ranks, stage, dtype_bytes)
    if rules.counts_pages and not offload:
        total += page_bytes(model, ranks, stage, dtype_bytes, padding)
    band = model.weights_error
    low = total * (1 - band)
    if padding is not None and padding.least is not None:
        least, _ = _stage_bytes(model, ranks, stage, dtype_bytes, padding.least)
        low -= max(0.0, layers - least)
    source = (
        "tensor shapes of the config, each in its stored format, as split over ranks; rotary tables"
    )
    if model.checkpoint_bytes is not None:
        source = "the checkpoint's own tensor headers, as split over ranks; rotary tables"
    return Component(
        "weights", int(total), int(low), int(total * (1 + max(band, model.weights_more))), source
    )


@lru_cache(maxsize=1024)
def unstored_bytes(model: Architecture, ranks: Ranks, stage: int, dtype_bytes: int) -> float:
    """Return the rows of a stage's fused projections that the checkpoint does not fill."""
    sizes = stage_sizes(len(model.layers), ranks.pipeline)
    start = sum(sizes[:stage])
    total = 0.0
    for layer in model.layers[start : start + sizes[stage]]:
        form = next((w.format for w in layer.weights if w.path.endswith(".q_proj")), None)
        total += sum(
            rank_bytes(replace(w, format=form), ranks, dtype_bytes) for w in layer.unstored
        )
    return total


def offloaded_bytes(
    model: Architecture, ranks: Ranks, dtype_bytes: int, padding: ExpertPadding | None, offload: int
) -> int:
    """Return what `--cpu-offload-gb` moves of one rank: layers, the first stage's standing for all."""
    layers, _ = _stage_bytes(model, ranks, 0, dtype_bytes, padding)
    return min(offload, int(layers))


def rotary_bytes(model: Architecture, dtype_bytes: int, rules: EngineRules) -> int:
    """Return the rotary tables that count as weights: exo-engine makes its own after sizing the cache."""
    elements, width = rotary_table(model, dtype_bytes, rules)
    return elements * width


def rotary_table(model: Architecture, dtype_bytes: int, rules: EngineRules) -> tuple[int, int]:
    """Return the entries of those tables, and the bytes of one."""
    if not rules.counts_rotary:
        return 0, dtype_bytes
    if rules.keeps_rotary_exact:
        return model.rope_elements // model.rope_stretch, 4
    return model.rope_elements, dtype_bytes


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


@dataclass(frozen=True, slots=True)
class ExpertPadding:
    """How a kernel for MXFP4 lays one rank's experts out: sizes are rounded up to these multiples.

    Attributes:
        hidden, width: of the two sides of an expert, where whole matrices are padded.
        reduced: of the side that is summed over, where only the packed values are padded, not their scales.
        least: how another kernel lays them out that the same release takes where it is installed.
    """

    hidden: int = 1
    width: int = 1
    reduced: int = 1
    least: ExpertPadding | None = None

    def matrix(self, weight: Weight, split: int) -> tuple[int, int]:
        """Return rows and columns of one expert on one of `split` ranks, as they are stored."""
        is_down = weight.path.endswith("down_proj")
        hidden, width = weight.in_features, -(-weight.out_features // split)
        if is_down:
            hidden, width = weight.out_features, -(-weight.in_features // split)
        hidden, width = _up(hidden, self.hidden), _up(width, self.width)
        return (hidden, _up(width, self.reduced)) if is_down else (width, _up(hidden, self.reduced))


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


_MARLIN = ExpertPadding(hidden=256, width=128)
_HOPPER = ExpertPadding(width=64, reduced=256)
_BLACKWELL = ExpertPadding(hidden=256, width=256)
_EARLY_HOPPER = replace(_MARLIN, least=_HOPPER)


def expert_padding(model: Architecture, rules: EngineRules, gpu: Gpu) -> ExpertPadding | None:
    """Return how vLLM or SGLang pads experts in MXFP4 on this GPU; None where it does not.

    Source: `mxfp4_round_up_hidden_size_and_intermediate_size` (fused_moe/oracle/mxfp4.py @0.19.0; in
    quantization/mxfp4.py before). On Hopper, Triton's kernels, which its images have since 0.12, pad the packed
    values alone.
    """
    if not rules.pads_experts or model.moe is None or not model.pads_experts:
        return None
    if rules.static_share is not None:
        return _sglang_padding(gpu, rules)
    if gpu.capability is not None and 10 <= gpu.capability < 11:
        return _BLACKWELL
    if gpu.capability != 9.0 or rules.version < (0, 11, 0):
        return _MARLIN
    # Both were printed by starts of 0.11.0: 13.72 and 13.47 GiB for the 20B model.
    return _HOPPER if rules.version >= (0, 12, 0) else _EARLY_HOPPER


def _sglang_padding(gpu: Gpu, rules: EngineRules) -> ExpertPadding:
    """Return how SGLang does: FlashInfer's kernels on Blackwell, Triton's elsewhere, those on Hopper as vLLM's.

    Source: `Mxfp4MoEMethod.create_weights` (srt/layers/quantization/mxfp4.py, 0.5.8 and 0.5.17).
    """
    capability = gpu.capability or 0.0
    if capability >= 10:
        multiple = 128 if rules.version >= (0, 5, 17) else 256
        return ExpertPadding(hidden=multiple, width=multiple)
    return _HOPPER if capability >= 9 else ExpertPadding(width=64)


@lru_cache(maxsize=4096)
def _stage_bytes(
    model: Architecture, ranks: Ranks, stage: int, dtype_bytes: int, padding: ExpertPadding | None
) -> tuple[float, float]:
    """Return the bytes of a stage's layers and of what lies outside them."""
    inner, outer = stage_weights(model, ranks, stage)
    layers = sum(count * rank_bytes(w, ranks, dtype_bytes, padding) for w, count in inner)
    return layers, sum(rank_bytes(weight, ranks, dtype_bytes) for weight in outer)


_PAGE = 2 * 2**20
_LARGE = 10 * 2**20
_SMALLEST_REST = 2**20


def page_rest(size: float) -> float:
    """Return what PyTorch's allocator gives a tensor of `size` bytes beyond these.

    From 10 MiB on a tensor gets whole pages of 2 MiB, of which a rest of at most 1 MiB is not split off
    (c10/cuda/CUDACachingAllocator.cpp: kMinLargeAlloc, kRoundLarge, kSmallSize), and "Model loading took"
    is what the allocator gave.
    """
    rest = -size % _PAGE
    return rest if size >= _LARGE and rest <= _SMALLEST_REST else 0.0


_FUSED = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
}


@lru_cache(maxsize=4096)
def page_bytes(
    model: Architecture, ranks: Ranks, stage: int, dtype_bytes: int, padding: ExpertPadding | None
) -> float:
    """Return the rests of pages of all of a stage's tensors, as the engine fuses them."""
    sizes = stage_sizes(len(model.layers), ranks.pipeline)
    start = sum(sizes[:stage])
    here = Counter(model.layers[start : start + sizes[stage]])
    total = sum(
        count * _layer_rests(layer, ranks, dtype_bytes, padding) for layer, count in here.items()
    )
    _, outer = stage_weights(model, ranks, stage)
    return total + sum(page_rest(rank_bytes(w, ranks, dtype_bytes)) for w in outer if w.copies == 1)


def _layer_rests(
    layer: Layer, ranks: Ranks, dtype_bytes: int, padding: ExpertPadding | None
) -> float:
    tensors: Counter[str] = Counter()
    for weight in layer.weights:
        tensors[fused_name(weight)] += rank_bytes(weight, ranks, dtype_bytes, padding)  # type: ignore[assignment]
    return sum(page_rest(size) for size in tensors.values())


def fused_name(weight: Weight) -> str:
    """Return the path of the tensor that an engine makes of a weight and its neighbours."""
    head, _, name = weight.path.rpartition(".")
    return f"{head}.{_FUSED.get(name, name)}"


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
    layers, outer = _stage_bytes(model, Ranks(), 0, dtype_bytes, None)
    return layers + outer


def rank_bytes(
    weight: Weight, ranks: Ranks, dtype_bytes: int, padding: ExpertPadding | None = None
) -> float:
    """Return the bytes of a weight on one rank."""
    form = weight.format
    if form is not None and form.name == "mxfp4" and padding is not None:
        return _padded_bytes(weight, ranks, padding)
    if form is None:
        size = float(weight.out_features * weight.in_features * dtype_bytes)
    else:
        size = form.matrix_bytes(weight.out_features, weight.in_features)
    size *= weight.copies
    if weight.shard is Shard.REPLICATED:
        return size
    if weight.shard is Shard.KV_HEADS:
        return size * max(1, weight.heads // ranks.tensor) / weight.heads
    if weight.shard is Shard.EXPERTS:
        whole = -(-weight.copies // ranks.expert) / weight.copies
        return size * whole / ranks.expert_split
    return size / ranks.tensor


_MXFP4_SCALE_SHARE = 1 / 17
"""Of 32 weights: 16 bytes of values and one of scale."""


def _padded_bytes(weight: Weight, ranks: Ranks, padding: ExpertPadding) -> float:
    """Return one rank's experts in MXFP4: whole experts, or a part of each, padded on the rank."""
    assert weight.format is not None
    copies, split = -(-weight.copies // ranks.expert), ranks.expert_split
    size = weight.format.matrix_bytes(*padding.matrix(weight, split))
    if padding.reduced > 1:
        plain = weight.format.matrix_bytes(*replace(padding, reduced=1).matrix(weight, split))
        size -= (size - plain) * _MXFP4_SCALE_SHARE
    return size * copies


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
