"""The peak of the profile run, from the tensors that are alive: one step, the sampler, the image encoder.

`planning.py` asks for it. vLLM runs the image encoder, then one step of `max-num-batched-tokens`, then the sampler for
`max-num-seqs` rows, and keeps the encoder's input and output until the end (v1/worker/gpu_model_runner.py,
`profile_run`). All sizes are bytes on one GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from exo_inference.planner.compressed_cache import Workspaces, attention_workspaces
from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import MIB
from exo_inference.planner.memory import Component, Ranks
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.shapes import KvKind, Layer, MoeShape

if TYPE_CHECKING:
    from exo_inference.planner.resolved_setting import Setting


@dataclass(frozen=True, slots=True)
class ProfileBatch:
    """The profile run.

    Attributes:
        num_tokens: of one step.
        num_seqs: rows that are sampled; 0 where nothing is.
        num_patches: that the image encoder takes at once; 0 where it is not run.
        has_flashinfer_sampler: FlashInfer's kernels sample; None where nobody says.
        gathered_ranks: data-parallel ranks whose tokens each layer of experts gathers.
        max_model_len: of the start.
    """

    num_tokens: int
    num_seqs: int
    num_patches: int = 0
    has_flashinfer_sampler: bool | None = None
    gathered_ranks: int = 1
    max_model_len: int = 0


def profile_batch(
    setting: Setting, gathered_ranks: int, *, is_first: bool, is_last: bool
) -> ProfileBatch:
    """Return the profile run of a pipeline stage, of which the first encodes images and the last samples."""
    tokens = setting.max_num_batched_tokens
    samples = is_last and _samples(setting)
    return ProfileBatch(
        tokens, min(setting.max_num_seqs, tokens) if samples else 0, _encoded_patches(setting) if is_first else 0,
        setting.parameters.has_flashinfer_sampler, gathered_ranks, setting.max_model_len,
    )  # fmt: skip


def _samples(setting: Setting) -> bool:
    """Whether the profile run samples: not for embeddings, nor in V0 with chunked prefill."""
    is_pooling = setting.parameters.runner == "pooling" or setting.model.is_embedding
    is_v0_chunked = setting.rules.is_legacy and setting.max_model_len > 32768
    return not (is_pooling or is_v0_chunked)


def _encoded_patches(setting: Setting) -> int:
    """Return the image patches that the profile run encodes at once."""
    vision, parameters = setting.model.vision, setting.parameters
    if (
        vision is None
        or not setting.rules.profiles_encoder
        or parameters.skip_mm_profiling
        or parameters.language_model_only
    ):
        return 0
    # One item at least; more while they fit into the step. A token of text stands for about four patches.
    budget = 4 * setting.max_num_batched_tokens
    items = max(1, budget // max(1, vision.max_tokens))
    return min(items * vision.max_tokens, 4 * setting.max_model_len * items)


SORTING_LOGIT_BYTES = 38
"""Per logit with PyTorch's sort: as the model gives it (2), in fp32 (4), sorted values (4) and places (8), and what
the sort itself needs (places again 8, a second buffer of both 12: ATen/native/cuda/SortStable.cu)."""

_TRITON_PROGRAMS = 132
"""Rows of the buffer that vLLM's Triton kernel keeps: one per multiprocessor (topk_topp_triton.py @0.19.0)."""


def logit_bytes(rules: EngineRules, batch: ProfileBatch) -> float:
    """Return what the sampler holds per logit and sequence."""
    if not rules.samples_by_sort or batch.has_flashinfer_sampler:
        return rules.logit_bytes
    return SORTING_LOGIT_BYTES


def sampler_bytes(model: Architecture, rules: EngineRules, batch: ProfileBatch) -> float:
    """Return the sampler's peak."""
    size = batch.num_seqs * model.vocab_size * logit_bytes(rules, batch)
    if rules.keeps_sampler_rows and batch.num_seqs >= 8:
        size += min(batch.num_seqs, _TRITON_PROGRAMS) * model.vocab_size * 4
    return size


def encoder_bytes(
    model: Architecture, ranks: Ranks, patches: int, dtype_bytes: int
) -> tuple[float, float]:
    """Return the image encoder's peak, and what of its input and output stays until the end.

    Hidden states are whole on each rank, what the feed-forward computes is split (`ColumnParallelLinear`).
    """
    vision = model.vision
    if vision is None or not patches:
        return 0.0, 0.0
    peak = (
        patches
        * dtype_bytes
        * (4 * vision.hidden_size + 3 * vision.intermediate_size / ranks.tensor)
    )
    kept = patches * dtype_bytes * (vision.hidden_size + model.hidden_size / 4)
    return peak, min(kept, peak)


def activations_component(
    model: Architecture, ranks: Ranks, rules: EngineRules, batch: ProfileBatch, dtype_bytes: int
) -> Component:
    """Return the peak of the profile run."""
    own_step = batch.num_tokens * dtype_bytes * _elements_per_token(model, ranks, rules)
    workspaces = _workspaces(model, ranks, batch)
    own_step = max(own_step, workspaces.step)
    step = max(own_step, gathered_bytes(model, ranks, rules, batch, dtype_bytes))
    sampler = sampler_bytes(model, rules, batch)
    encoder, kept = encoder_bytes(model, ranks, batch.num_patches, dtype_bytes)
    kept += workspaces.kept
    peak = int(max(step + kept, sampler + kept, encoder))
    source = (
        f"largest of one step of {batch.num_tokens} tokens ({step / MIB:.0f} MiB), the sampler's "
        f"{logit_bytes(rules, batch):g} bytes for each of {batch.num_seqs} x {model.vocab_size} logits "
        f"({sampler / MIB:.0f} MiB), the image encoder ({encoder / MIB:.0f} MiB, {kept / MIB:.0f} kept)"
    )
    if workspaces.kept:
        source += f"; workspaces of compressed attention ({workspaces.kept / MIB:.0f} MiB kept)"
    low = min(peak, int(0.9 * max(step, 0.6 * encoder, sampler)))
    # Whether the experts' kernel has rows for all gathered tokens or for its own alone hangs on the kernel.
    other = peak - int(max(own_step + kept, sampler + kept, encoder))
    if rules.may_have_flashinfer and batch.has_flashinfer_sampler is None:
        lean = sampler_bytes(model, rules, replace(batch, has_flashinfer_sampler=True))
        other = peak - int(max(own_step + kept, lean + kept, encoder))
    if batch.gathered_ranks > 1:
        source += f"; {batch.gathered_ranks} ranks' tokens are gathered for the experts"
    if other and rules.may_have_flashinfer:
        source += f"; with FlashInfer installed, as in vLLM's images, {other / MIB:.0f} MiB less"
    return Component(
        "activations",
        peak,
        max(0, low - other),
        int(1.1 * peak) + 64 * MIB,
        source,
        alternative=other,
    )


_COMPILED_TOKENS = 8192
"""Tokens that Inductor tunes kernels with where it does not know a step's (PyTorch's `unbacked_symint_fallback`, "e.g., in
autotuning"; vLLM's blocks of tuning have so many: vllm-project/vllm#33668)."""

_COMPILED = 1.1
"""How many times the compiled tensors of so many tokens a start that compiles has at its peak, at most: Qwen3.8-27B has 0.95 GiB
on an RTX 3090 and 0.92 on a 4090 beside a step of 0.28, 1.1 and 1.08 times 1.11 GiB (vLLM 0.29.0, syv-ai/qwen38-27b-rtx3090#148);
Qwen3-32B on two 4090 0.47 GiB on each beside a step of 0.39, 0.96 times 0.90 (0.28.0, vllm-project/vllm#54479). Steps of 1,536 and
3,584 tokens make no difference to the latter (#54383). A fork on Turing had 2.5 GiB, and none on V100 (1CatAI/1Cat-vLLM#518)."""


def with_first_start(
    activations: Component, model: Architecture, ranks: Ranks, rules: EngineRules
) -> Component:
    """Return the peak with what compilation takes where nothing is compiled yet, which is no more for longer steps.

    Both peaks are in one figure, so that it is the larger one. Experts and compressed attention are not compiled.
    """
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    if not rules.counts_compilation or KvKind.COMPRESSED in kinds:
        return activations
    compiled = max(_compiled_elements(layer, ranks) for layer, _ in model.layer_counts)
    width = model.dtype_bytes * (4 * model.hidden_size + compiled)
    more = max(0, int(_COMPILED * _COMPILED_TOKENS * width) - activations.num_bytes)
    source = f"{activations.source}; up to {more / MIB:.0f} MiB more in a start that compiles"
    return replace(activations, first_start=more, source=source if more else activations.source)


def _workspaces(model: Architecture, ranks: Ranks, batch: ProfileBatch) -> Workspaces:
    specs = [layer.kv for layer, _ in model.layer_counts if layer.kv is not None]
    compressed = [each for each in specs if each.kind is KvKind.COMPRESSED]
    if not compressed:
        return Workspaces(0, 0)
    heads = -(-model.num_heads // ranks.tensor)
    return attention_workspaces(
        compressed, model.hidden_size, heads, batch.max_model_len, batch.num_tokens
    )


def gathered_bytes(
    model: Architecture, ranks: Ranks, rules: EngineRules, batch: ProfileBatch, dtype_bytes: int
) -> float:
    """Return the peak of a layer of experts that gathers the tokens of all data-parallel ranks; 0 where none does.

    The gathered tokens and their sums are whole on each rank, and what experts hold in between is for so many rows at
    once (vLLM's all2all.py, `AgRsAll2AllManager`, 0.32.0; envs.py, `VLLM_FUSED_MOE_CHUNK_SIZE`, to 0.17).
    """
    if batch.gathered_ranks == 1 or model.moe is None:
        return 0.0
    rows = batch.num_tokens * batch.gathered_ranks
    at_once = min(rows, _chunk(rules) or rows)
    own = 4 * model.hidden_size * batch.num_tokens
    experts = 2 * model.hidden_size * rows + at_once * _moe_elements(model.moe, ranks, rules)
    return dtype_bytes * (own + experts)


def _chunk(rules: EngineRules) -> int | None:
    """Return how many rows experts compute at once: 32,768 to 0.11, 16,384 to 0.17, all since."""
    if rules.version < (0, 12, 0):
        return 32_768
    return 16_384 if rules.version < (0, 18, 0) else None


@lru_cache(maxsize=4096)
def _elements_per_token(model: Architecture, ranks: Ranks, rules: EngineRules) -> float:
    """Return the numbers that one token has alive in the widest layer."""
    dense = 0.0
    for layer, _ in model.layer_counts:
        dense = max(dense, _layer_elements(layer, model.moe, ranks, rules))
    return 4 * model.hidden_size + dense


def _layer_elements(layer: Layer, moe: MoeShape | None, ranks: Ranks, rules: EngineRules) -> float:
    per_token = _compiled_elements(layer, ranks)
    if layer.uses_moe and moe is not None:
        per_token = max(per_token, _moe_elements(moe, ranks, rules))
    return per_token


def _compiled_elements(layer: Layer, ranks: Ranks) -> float:
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
    return max(widths.values()) / ranks.tensor


def _moe_elements(moe: MoeShape, ranks: Ranks, rules: EngineRules) -> float:
    """Return what the fused experts hold per token (vLLM: fused_moe.py intermediate_cache1-3)."""
    wide, hidden = moe.intermediate_size / ranks.expert_split, moe.hidden_size
    if rules.is_legacy:  # three separate buffers
        routed = moe.experts_per_token * (3 * wide + hidden)
    else:  # the first and the third share one
        routed = moe.experts_per_token * (max(2 * wide, hidden) + wide)
    return routed + 3 * moe.shared_intermediate_size / ranks.tensor
