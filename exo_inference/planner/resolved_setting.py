"""What is settled before memory is looked at: the model as loaded, ranks, dtypes, step sizes.

`planning.py` calls `settle` and budgets from the result; `explain.py` reads it again. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from exo_inference.planner.draft_acceptance import Drafting
from exo_inference.planner.engine_rules import (
    SECOND_RUNNERS_DRAFTS,
    EngineRules,
    default_batch,
    of_second_runner,
)
from exo_inference.planner.gpu_catalog import GIB, Gpu
from exo_inference.planner.kv_cache import KvLayout, KvSettings
from exo_inference.planner.memory import Component, ExpertPadding, Ranks, expert_padding
from exo_inference.planner.model.architecture import DTYPE_BYTES, Architecture
from exo_inference.planner.model.asked_cache import asked_cache
from exo_inference.planner.model.config_fields import ASSUMED_MAX_MODEL_LEN
from exo_inference.planner.model.requantize import (
    INT8_HEAD,
    ONLINE,
    with_int8_head,
    with_quantization,
)
from exo_inference.planner.model.shapes import KvKind, KvSpec
from exo_inference.planner.parallel.all_to_all import BATCHED, BATCHED_TOKENS, spreads_experts
from exo_inference.planner.parameters import AUTO_LENGTH, EngineParameters
from exo_inference.planner.releases.dtypes import SAME_TYPES, types_taken
from exo_inference.planner.releases.prompts import default_step
from exo_inference.planner.releases.sparse import is_packed
from exo_inference.planner.speculation import Speculation, read_speculation
from exo_inference.planner.static import cache_types


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything that is settled before memory is looked at."""

    model: Architecture
    gpu: Gpu
    gpu_count: int
    parameters: EngineParameters
    rules: EngineRules
    ranks: Ranks
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv: KvSettings
    speculation: Speculation
    asks_auto: bool
    free_bytes: int | None = None
    """On each GPU before the start, where that is known."""

    @property
    def dtype_bytes(self) -> int:
        """Bytes per unquantized weight and activation of the run."""
        return DTYPE_BYTES.get(self.dtype, 2)

    @property
    def is_eager(self) -> bool:
        """Whether kernels are launched one by one instead of replayed as CUDA graphs."""
        return bool(self.parameters.enforce_eager) and self.rules.captures_graphs

    @property
    def memory_share(self) -> float:
        """The share of each GPU's memory that is budgeted: as asked, or by default."""
        asked, static = self.parameters.gpu_memory_utilization, self.rules.static_share
        if asked is not None or static is None:
            return asked or self.rules.default_utilization
        ranks, tokens = self.ranks, self.max_num_batched_tokens
        return static.default(self.model, self.gpu, ranks.tensor, ranks.pipeline, tokens)

    @property
    def found_bytes(self) -> int:
        """The bytes of a GPU that the engine finds, CUDA's own included."""
        reported = self.gpu.reported_bytes
        return reported if self.free_bytes is None else min(reported, self.free_bytes)

    @property
    def state_share(self) -> float:
        """The bytes for states for each byte of the cache beside them, where a static share has both."""
        static = self.rules.static_share
        return (static.state_share or 0.0) if static is not None else 0.0

    @property
    def drafting(self) -> Drafting | None:
        """What a decode step drafts."""
        return self.speculation.drafting(self.ranks, self.dtype_bytes, self.kv)

    @property
    def padding(self) -> ExpertPadding | None:
        """How experts in MXFP4 are padded."""
        return expert_padding(self.model, self.rules, self.gpu)

    @property
    def offload(self) -> int:
        """Bytes of each GPU's weights that may stay in the host's memory."""
        return int((self.parameters.cpu_offload_gb or 0) * GIB)


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage on one of its GPUs."""

    components: tuple[Component, ...]
    layout: KvLayout | None
    budget: int
    available: int
    low: int
    high: int
    index: int = 0
    specs: tuple[KvSpec, ...] = ()


def settle(
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    parameters: EngineParameters,
    draft: Architecture | None,
) -> Setting:
    """Return what the flags come to for this model on these GPUs, defaults filled in."""
    model = _as_loaded(model, parameters)
    rules = _running_rules(model, gpu, parameters)
    ranks = _ranks(gpu_count, parameters)
    asked = parameters.max_model_len
    length = asked if isinstance(asked, int) else _own_length(model, rules)
    tokens, seqs = _step_size(model, gpu, parameters, rules, length, ranks)
    speculation = read_speculation(model, parameters, draft)
    dtype = _run_dtype(model, gpu, parameters)
    if _has_int8_head(model, gpu, parameters, dtype):
        model = with_int8_head(model)
    cache_bytes, is_static = (
        _kv_bytes(model, gpu, parameters, dtype),
        rules.static_share is not None,
    )
    kv = KvSettings(
        rules,
        tensor_parallel_size=ranks.tensor,
        dtype_bytes=cache_bytes,
        state_bytes=2 if is_static else DTYPE_BYTES.get(dtype, 2),
        block_size=parameters.block_size or _default_block(model, rules),
        speculative_tokens=speculation.num_tokens,
        context_parallel_size=parameters.decode_context_parallel_size or 1,
        state_element_bytes=DTYPE_BYTES.get(parameters.mamba_ssm_cache_dtype or "auto"),
        unstated_state_bytes=4 if is_static else None,  # srt/configs/mamba_utils.py
        scale_bytes=_scale_bytes(rules, parameters, cache_bytes),
        caches_states=_caches_states(parameters),
        window_share=_window_share(model, gpu, rules),
        **_static_types(model, gpu, parameters),
    )
    return Setting(
        model, gpu, gpu_count, parameters, rules, ranks, dtype, length, seqs, tokens, kv, speculation,
        asks_auto=asked == AUTO_LENGTH,
    )  # fmt: skip


def _caches_states(parameters: EngineParameters) -> bool:
    asked = parameters.enable_prefix_caching
    return parameters.rules.caches_states if asked is None else asked


def _static_types(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> dict[str, int]:
    if parameters.rules.static_share is None:
        return {}
    sparse = cache_types.sparse_latent_bytes(model, gpu, parameters)
    layers = cache_types.workspace_layers(parameters)
    return {"sparse_latent_bytes": sparse, "workspace_layers": layers}


def _own_length(model: Architecture, rules: EngineRules) -> int:
    """Return the context that an engine takes by itself: vLLM since 0.11.1 and exo-engine leave LongRoPE's longer one out."""
    own = model.max_model_len or ASSUMED_MAX_MODEL_LEN
    return max(own, model.longest_model_len or 0) if rules.takes_longrope else own


def _running_rules(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> EngineRules:
    """Return the rules by which this model starts: those of the release, or of its second model runner."""
    rules = parameters.rules
    if gpu.vendor == "amd" and rules.subtracts_graphs and not rules.subtracts_amd_graphs:
        rules = _without_estimate(rules)
    types, drafting = rules.second_runner, parameters.speculative_config
    if types is None or parameters.runner == "pooling" or model.is_embedding:
        return rules
    method = str((drafting or {}).get("method") or "")
    if drafting and "mtp" not in method and method not in SECOND_RUNNERS_DRAFTS:
        return rules
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    is_dense = model.moe is None and KvKind.STATE not in kinds
    has_second = model.model_type in types or (rules.runs_dense_second and is_dense)
    return of_second_runner(rules) if has_second else rules


@lru_cache(maxsize=64)
def _without_estimate(rules: EngineRules) -> EngineRules:
    return replace(rules, subtracts_graphs=False)


def _as_loaded(model: Architecture, parameters: EngineParameters) -> Architecture:
    """Return the model as the flags load it: quantized on the way, or without parts."""
    asked = (parameters.quantization or "").lower()
    if model.quantization is None and asked in ONLINE:
        model = with_quantization(model, ONLINE[asked])
    if parameters.runner == "pooling" or model.is_embedding:
        model = _without(model, ("lm_head",))
        if parameters.rules.pools_without_cache:
            model = replace(model, layers=tuple(replace(each, kv=None) for each in model.layers))
    static = parameters.rules.static_share
    is_text = static is not None and model.model_type in static.without_encoder
    if _skips_encoder(parameters) or is_text:
        model = _without(model, ("vision", "projector"))
    return model


def _has_int8_head(model: Architecture, gpu: Gpu, parameters: EngineParameters, dtype: str) -> bool:
    """Whether exo-engine's kernels for processors compute logits, with a head that they hold in INT8."""
    computes_logits = not (parameters.runner == "pooling" or model.is_embedding)
    asked = (parameters.quantization or "").lower()
    has_kernels = gpu.vendor == "cpu" and dtype == "bfloat16" and bool(gpu.kernels)
    return has_kernels and asked in INT8_HEAD and computes_logits


def _step_size(
    model: Architecture,
    gpu: Gpu,
    parameters: EngineParameters,
    rules: EngineRules,
    length: int,
    ranks: Ranks,
) -> tuple[int, int]:
    """Return max-num-batched-tokens and max-num-seqs in effect."""
    tokens, seqs = default_batch(rules, gpu)
    seqs = parameters.max_num_seqs or seqs
    if rules.static_share is not None:
        return parameters.max_num_batched_tokens or tokens, seqs
    is_batched = parameters.all2all_backend in BATCHED and spreads_experts(model, ranks)
    if is_batched and rules.version >= (0, 20, 0) and parameters.max_num_batched_tokens is None:
        return BATCHED_TOKENS, min(seqs, BATCHED_TOKENS)  # engine/arg_utils.py, 0.32.0
    if parameters.max_num_batched_tokens is not None:
        tokens = parameters.max_num_batched_tokens
    else:
        tokens = default_step(model, parameters, tokens, seqs, length)
    return tokens, seqs if parameters.max_num_seqs is not None else min(seqs, tokens)


@lru_cache(maxsize=64)
def _without(model: Architecture, parts: tuple[str, ...]) -> Architecture:
    """Return the model without what is not loaded: a head, or an encoder that is switched off."""
    kept = tuple(weight for weight in model.outer_weights if weight.part not in parts)
    least = model.min_batched_tokens if "vision" not in parts else 0
    vision = model.vision if "vision" not in parts else None
    return replace(
        model, outer_weights=kept, checkpoint_bytes=None, min_batched_tokens=least, vision=vision
    )


def _skips_encoder(parameters: EngineParameters) -> bool:
    """Whether no image and no video may be sent, so that vLLM leaves the encoder out."""
    limits = parameters.mm_limits
    none = all(limits.get(kind) == 0 for kind in ("image", "video"))
    return bool(parameters.language_model_only) or none


def _ranks(gpu_count: int, parameters: EngineParameters) -> Ranks:
    pipeline, data = parameters.pipeline_parallel_size or 1, parameters.data_parallel_size or 1
    tensor = parameters.tensor_parallel_size or max(1, gpu_count // (pipeline * data))
    return Ranks(tensor, pipeline, data, bool(parameters.enable_expert_parallel))


def _run_dtype(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> str:
    asked = parameters.dtype or "auto"
    if asked in DTYPE_BYTES:
        return asked
    rules = parameters.rules
    if gpu.vendor == "cpu" and rules.cpu_dtype is not None:
        is_quantized = model.quantization is not None or bool(parameters.quantization)
        may_round = model.dtype == "bfloat16" or is_quantized
        return "bfloat16" if may_round and gpu.supports("bf16") else rules.cpu_dtype
    own = SAME_TYPES.get(model.dtype, model.dtype)
    own = own if own in DTYPE_BYTES else "bfloat16"
    if gpu.vendor == "cpu":
        return own
    taken = types_taken(model, gpu, rules)
    is_halved = own == "float32" and rules.halves_float32
    return taken[0] if is_halved or own not in taken else own


def _scale_bytes(rules: EngineRules, parameters: EngineParameters, cache_bytes: float) -> int:
    """Return the bytes of a scale: vLLM keeps one in float32 per token and head where the type says so.

    Source: vLLM's v1/attention/ops/triton_quant_kv, `INT8_CONFIG`.
    """
    if (parameters.kv_cache_dtype or "").endswith("_per_token_head"):
        return 4
    return rules.cache_scale_bytes if cache_bytes == 1 else 0


def _kv_bytes(model: Architecture, gpu: Gpu, parameters: EngineParameters, dtype: str) -> float:
    asked = (parameters.kv_cache_dtype or "auto").lower()
    if not parameters.rules.chooses_cache_type:
        return DTYPE_BYTES.get(dtype, 2)
    if parameters.rules.static_share is not None:
        kind = cache_types.cache_type(model, gpu, parameters)
        return cache_types.element_bytes(kind, DTYPE_BYTES.get(dtype, 2))
    if asked == "auto":
        asked = asked_cache(model, parameters.rules)
    if asked.startswith(("fp8", "int8")) or is_packed(model, gpu, parameters.rules):
        return 1
    if asked in ("nvfp4", "fp4", "fp4_e2m1", "int4"):
        return 0.5625
    return DTYPE_BYTES.get(asked, DTYPE_BYTES.get(dtype, 2))


def _default_block(model: Architecture, rules: EngineRules) -> int:
    """Return tokens per block; MLA kernels force theirs."""
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    return rules.latent_block if KvKind.LATENT in kinds else rules.default_block


def _window_share(model: Architecture, gpu: Gpu, rules: EngineRules) -> float:
    """Return how many tokens a layer with a window keeps for each token of the others, where pools are of tokens."""
    static = rules.static_share
    return static.tokens_in_windows(model, gpu) if static is not None else 1.0
