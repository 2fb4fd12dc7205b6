"""What an engine refuses before memory matters: parallel sizes, number types, lengths.

`planning.py` calls `check_request`. Each problem says what was found and what is expected.
"""

from __future__ import annotations

from dataclasses import replace

from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.memory import Ranks
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.model.asked_cache import asked_cache
from exo_inference.planner.model.quantization import WeightFormat
from exo_inference.planner.model.requantize import ONLINE
from exo_inference.planner.model.shapes import KvKind
from exo_inference.planner.parameters import AUTO_LENGTH, EngineParameters
from exo_inference.planner.problem import OF_PROCESSOR, Problem
from exo_inference.planner.releases.checkpoints import check_release
from exo_inference.planner.releases.dtypes import check_dtype
from exo_inference.planner.releases.gpus import check_gpu
from exo_inference.planner.releases.prompts import is_whole
from exo_inference.planner.releases.sparse import check_sparse
from exo_inference.planner.releases.splits import check_split
from exo_inference.planner.static.cache_types import type_problems

MAX_STAGES = 64
"""Most pipeline stages that are planned; each is planned for itself."""


def check_request(
    model: Architecture,
    gpu: Gpu,
    gpu_count: int,
    parameters: EngineParameters,
    ranks: Ranks,
    dtype: str,
) -> list[Problem]:
    """Return everything that is wrong apart from memory; which types an engine takes is known of vLLM and exo-engine."""
    rules = parameters.rules
    is_refused = bool(gpu.refusal) and rules.cpu_dtype is not None  # by exo-engine, in its words
    problems = [Problem(OF_PROCESSOR, gpu.refusal, says_step=True)] if is_refused else []
    if rules.spans_gpus or gpu_count <= 1:
        problems += _check_ranks(model, gpu, gpu_count, ranks, rules)
    problems += _check_length(model, parameters)
    if rules.static_share is not None:
        return [
            *problems,
            *_check_capability(model, gpu, rules),
            *check_gpu(gpu, rules),
            *type_problems(model, gpu, parameters),
        ]
    problems += _check_steps(model, gpu, parameters, rules)
    problems += _check_types(model, gpu, parameters)
    problems += check_dtype(model, gpu, parameters, dtype)
    return problems + _check_engine(model, gpu, gpu_count, rules)


def _check_ranks(
    model: Architecture, gpu: Gpu, gpu_count: int, ranks: Ranks, rules: EngineRules
) -> list[Problem]:
    problems = []
    if gpu_count < 1:
        problems.append(
            Problem("gpu-count", f"{gpu_count} GPUs were asked for, expected 1 or more")
        )
    if gpu_count > gpu.max_count and gpu.vendor != "cpu":
        detail = (
            f"{gpu_count} GPUs were asked for, a machine has {gpu.max_count} {gpu.name}: the replica spans "
            f"machines, which needs a fast network{rules.spans_nodes_with}"
        )
        step = f"take at most {gpu.max_count} to stay in one"
        problems.append(Problem("gpu-count", f"{detail}; {step}", refuses=False))
    used = ranks.tensor * ranks.pipeline * ranks.data
    if used != max(1, gpu_count):
        detail = (
            f"tensor {ranks.tensor} x pipeline {ranks.pipeline} x data {ranks.data} parallel ranks"
        )
        problems.append(
            Problem("parallel-size", f"{detail} need {used} GPUs, {gpu_count} are there")
        )
    if model.num_heads % ranks.tensor:
        detail = f"{model.num_heads} attention heads cannot be split over {ranks.tensor} GPUs"
        problems.append(
            Problem(
                "tensor-parallel", f"{detail}: expected a tensor-parallel size that divides them"
            )
        )
    # KV heads are repeated where there are fewer than GPUs, so either may divide the other.
    heads = {
        layer.kv.num_heads
        for layer, _ in model.layer_counts
        if layer.kv is not None and _splits(layer.kv.kind)
    }
    for count in sorted(heads):
        if count % ranks.tensor and ranks.tensor % count:
            detail = f"{count} KV heads and {ranks.tensor} GPUs: one must divide the other"
            problems.append(Problem("tensor-parallel", detail))
    problems += _check_blocks(model, ranks, rules)
    if ranks.pipeline > len(model.layers):
        detail = f"{len(model.layers)} layers cannot be split into {ranks.pipeline} pipeline stages"
        problems.append(Problem("pipeline-parallel", detail))
    elif ranks.pipeline > MAX_STAGES:
        detail = f"{ranks.pipeline} pipeline stages were asked for, expected {MAX_STAGES} or fewer"
        problems.append(Problem("pipeline-parallel", detail))
    return problems


def _check_blocks(model: Architecture, ranks: Ranks, rules: EngineRules) -> list[Problem]:
    """Check that experts in block FP8 split into whole blocks (vLLM refuses others; MiniMax-M2 at TP8)."""
    forms = {
        w.format
        for layer, _ in model.layer_counts
        for w in layer.weights
        if w.part == "routed_experts"
    }
    block = next((form.block for form in forms if form is not None and form.block), None)
    if block is None or model.moe is None or ranks.has_expert_parallel or ranks.tensor == 1:
        return []
    width = model.moe.intermediate_size
    if width % (ranks.tensor * block) == 0:
        return []
    detail = f"experts of width {width} in FP8 blocks of {block} cannot be split over {ranks.tensor} GPUs"
    step = f"use {rules.flag('enable-expert-parallel')} or fewer GPUs"
    return [Problem("tensor-parallel", f"{detail}: {step}")]


def _splits(kind: KvKind) -> bool:
    return kind not in (KvKind.LATENT, KvKind.STATE, KvKind.COMPRESSED)


def _check_length(model: Architecture, parameters: EngineParameters) -> list[Problem]:
    asked, own = parameters.max_model_len, model.longest_model_len or model.max_model_len
    if not isinstance(asked, int) or own is None or asked <= own:
        return []
    flag = parameters.rules.flag("max-model-len")
    detail = f"{flag} is {asked}, the model allows {own} by its config.json"
    return [Problem("max-model-len", f"{detail}: set {flag}={own} or less")]


def _check_steps(
    model: Architecture, gpu: Gpu, parameters: EngineParameters, rules: EngineRules
) -> list[Problem]:
    """Check what the engine's scheduler and attention kernels ask for."""
    problems, tokens = [], parameters.max_num_batched_tokens
    seqs = parameters.max_num_seqs
    if tokens is not None and seqs is not None and tokens < seqs:
        detail = f"--max-num-batched-tokens is {tokens}, expected at least --max-num-seqs ({seqs})"
        step = f"set --max-num-batched-tokens={seqs} or more"
        problems.append(Problem("max-num-batched-tokens", f"{detail}: {step}"))
    problems += _check_whole(model, parameters, rules)
    kinds = {layer.kv.kind for layer, _ in model.layer_counts if layer.kv is not None}
    is_any = (
        gpu.vendor == "amd" and KvKind.LATENT in kinds
    )  # AITER's latent attention has blocks of 1
    block, unit = parameters.block_size, 1 if is_any else rules.block_multiple
    if block is not None and block % unit:
        detail = f"--block-size is {block}, {rules.title}'s attention kernels expect a multiple of {unit}"
        step = f"set --block-size={-(-block // unit) * unit}"
        problems.append(Problem("block-size", f"{detail}: {step}"))
    return problems


def _check_whole(
    model: Architecture, parameters: EngineParameters, rules: EngineRules
) -> list[Problem]:
    """Check that a prompt fits into a step where it cannot be cut."""
    asked, tokens = parameters.max_model_len, parameters.max_num_batched_tokens
    length = asked if isinstance(asked, int) else model.max_model_len
    if rules.prompts is None or tokens is None or length is None or asked == AUTO_LENGTH:
        return []
    if tokens >= length or not is_whole(model, parameters, length):
        return []
    why, other = "this model's prompts are computed whole", f"set --max-model-len={tokens} or less"
    if not is_whole(model, replace(parameters, enable_chunked_prefill=None), length):
        why, other = "of --no-enable-chunked-prefill", "leave --no-enable-chunked-prefill out"
    detail = f"--max-num-batched-tokens is {tokens}, expected at least the {length} of --max-model-len, because {why}"
    step = f"set --max-num-batched-tokens={length}, or {other}"
    return [Problem("max-num-batched-tokens", f"{detail}: {step}")]


_SGLANG_LEAST = 7.5
_SGLANG_METHODS = {
    "fp8": 8.0, "fp8-block": 8.0, "modelopt": 8.9, "modelopt_fp4": 8.0, "modelopt_mixed": 8.0, "mxfp4": 8.0,
}  # fmt: skip
"""Oldest GPUs of SGLang and of its quantized checkpoints (0.5.17: `maybe_downgrade_dtype_for_legacy_gpu`, and `get_min_capability`
in srt/layers/quantization)."""


def _check_capability(model: Architecture, gpu: Gpu, rules: EngineRules) -> list[Problem]:
    """Check the GPU against the oldest that SGLang starts on, and that its kernels for a checkpoint take."""
    capability = gpu.capability
    if capability is None:
        return []
    if capability < _SGLANG_LEAST:
        detail = (
            f"{rules.title} needs compute capability {_SGLANG_LEAST}, {gpu.name} has {capability}"
        )
        return [Problem("gpu-type", detail)]
    method = model.quantization.method if model.quantization is not None else ""
    least = _SGLANG_METHODS.get(method, 0.0)
    if capability >= least:
        return []
    detail = f"{method} weights need compute capability {least}, {gpu.name} has {capability}"
    return [Problem("quantization", detail)]


_FP8_CACHE = 8.0
"""Below Ada vLLM reads an FP8 cache with FlashInfer, whose kernels begin at Ampere
(v1/attention/backends/flashinfer.py, 0.28.0)."""


_MODELOPT = {
    "modelopt": ((0, 27, 0), 8.9, 8.0), "modelopt_mixed": ((0, 24, 0), 8.9, 7.5),
    "modelopt_fp4": ((0, 15, 1), 8.0, 7.5), "modelopt_mxfp8": ((0, 20, 0), 10.0, 8.0),
}  # fmt: skip
"""Oldest GPUs of ModelOpt's checkpoints: the release that changed it, before and since."""


def _least_capability(form: WeightFormat, method: str, rules: EngineRules) -> float:
    """Return the oldest GPU a format runs on, by release.

    Source: `get_min_capability` in model_executor/layers/quantization: the Marlin kernels that unpack
    FP8 and NVFP4 began at Ampere until 0.15.1; ModelOpt's checkpoints have rules of their own.
    """
    if not rules.quantizes:
        return form.min_capability
    if method in _MODELOPT:
        since, before, after = _MODELOPT[method]
        return max(form.min_capability, after if rules.version >= since else before)
    if rules.version < (0, 15, 1) and form.native in ("fp8", "nvfp4"):
        return max(8.0, form.min_capability)
    return form.min_capability


_LEAST = 7.0
"""Oldest GPUs of vLLM (its installation page: "compute capability 7.0 or higher") and of Triton, which exo-engine's kernels
are compiled by."""


def _check_types(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> list[Problem]:
    problems: list[Problem] = []
    rules, capability = parameters.rules, gpu.capability
    if capability is not None and capability < _LEAST:
        detail = f"{rules.title} needs compute capability {_LEAST}, {gpu.name} has {capability}"
        problems.append(Problem("gpu-type", detail))
    problems += check_gpu(gpu, rules)
    if capability is not None and model.quantization is not None:
        for form in model.quantization.formats():
            least = _least_capability(form, model.quantization.method, rules)
            if least > capability:
                detail = f"{form.name} weights need compute capability {least}"
                problems.append(Problem("quantization", f"{detail}, {gpu.name} has {capability}"))
    problems += check_sparse(model, gpu, parameters)
    problems += _check_cache_type(model, gpu, parameters)
    problems += _check_compressed_cache(model, gpu, parameters)
    return problems


_ONLY_IN_FP8 = 9.0
"""The compute capability on which compressed attention reads its cache in FP8 alone (FlashMLA's kernels, of Hopper)."""


def _check_compressed_cache(
    model: Architecture, gpu: Gpu, parameters: EngineParameters
) -> list[Problem]:
    asked = (parameters.kv_cache_dtype or "auto").lower()
    is_read = asked.startswith("fp8") or gpu.capability != _ONLY_IN_FP8
    if is_read or not _is_compressed(model) or not parameters.rules.chooses_cache_type:
        return []
    detail = (
        f"on {gpu.name} {parameters.rules.title} reads the cache of compressed attention in FP8 alone, and does not start "
        f"with --kv-cache-dtype={asked}: set --kv-cache-dtype=fp8, as the model's recipes do"
    )
    return [Problem("kv-cache-dtype", detail, says_step=True, ways=(("kv_cache_dtype", "fp8"),))]


def _check_cache_type(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> list[Problem]:
    """Check an FP8 cache, which a checkpoint may ask for as well as the flag.

    `auto` takes it from `kv_cache_quant_algo` (utils/torch_utils.py, `resolve_kv_cache_dtype_string`) or
    `kv_cache_scheme` (compressed_tensors.py, `CompressedTensorsKVCacheMethod`).
    """
    kv, asked_by = (parameters.kv_cache_dtype or "auto").lower(), "--kv-cache-dtype is"
    rules = parameters.rules
    if kv == "auto" and rules.chooses_cache_type:
        kv = asked_cache(model, rules)
        asked_by = "the checkpoint's KV cache (--kv-cache-dtype=auto) is"
    capability = gpu.capability
    if not kv.startswith("fp8") or capability is None or capability >= _FP8_CACHE:
        return []
    if rules.cache_scale_bytes:
        return []
    detail = (
        f"{asked_by} {kv}, which needs compute capability {_FP8_CACHE}, {gpu.name} has {capability}"
    )
    step = "use a GPU of at least that"
    if asked_by.startswith("--"):
        step = "leave the flag out"
    elif rules.version >= (0, 18, 0):
        step = "set --kv-cache-dtype=float16"  # a choice since 0.18
    return [Problem("kv-cache-dtype", f"{detail}: {step}")]


_SAME_CHECKPOINT = (
    {"awq", "awq_marlin", "moe_wna16"}, {"gptq", "gptq_marlin", "auto_gptq", "moe_wna16", "auto-round", "inc"},
    {"fp8", "fp8_per_tensor", "fp8_per_channel", "fp8_per_block"}, {"modelopt", "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed"},
    {"mxfp4", "gpt_oss_mxfp4"},
)  # fmt: skip
"""Values of --quantization that read the same checkpoints: kernels of one format."""

_NEEDS_QUANTIZED = frozenset(
    {
        "awq", "awq_marlin", "gptq", "gptq_marlin", "auto_gptq", "moe_wna16", "compressed-tensors", "modelopt",
        "modelopt_fp4", "modelopt_mxfp8", "modelopt_mixed", "auto-round", "inc", "fbgemm_fp8", "gguf", "hqq",
    }
)  # fmt: skip
"""Values of --quantization that read what was quantized before, and quantize nothing themselves."""


_METHODS = frozenset(
    {"awq", "gptq", "fp8", "mxfp4", "bitsandbytes", "compressed-tensors", "gguf", "modelopt", "modelopt_fp4",
     "modelopt_mxfp8", "modelopt_mixed", "fbgemm_fp8", "hqq"}
)  # fmt: skip
"""What config.json says; other names were read from a model's name, and the checkpoint is not known."""


def check_quantization(
    model: Architecture, parameters: EngineParameters, ranks: Ranks
) -> list[Problem]:
    """Check how the checkpoint is quantized against the GPUs that share it, the release and the flag.

    Args:
        model: as the checkpoint is, before `--quantization` is applied.
        parameters: the flags.
        ranks: the GPUs.
    """
    split = check_split(model, ranks, parameters.rules)
    return [*split, *_check_quantization_flag(model, parameters)]


def _check_quantization_flag(model: Architecture, parameters: EngineParameters) -> list[Problem]:
    """Check --quantization against the checkpoint, as vLLM does (config/model.py `_verify_quantization`).

    Where the checkpoint has no such settings, it stops with "Cannot find the config file" (weight_utils.py).
    An engine that reads no quantized checkpoint may quantize a plain one.
    """
    rules = parameters.rules
    if rules.static_share is not None:
        return []
    if model.quantization is not None and not rules.quantizes:
        found = model.quantization.method
        detail = f"{rules.title} reads unquantized weights; {model.name} is {found}"
        return [Problem("quantization", detail)]
    unread = check_release(model, parameters)
    asked = (parameters.quantization or "").lower()
    if unread or not asked or not rules.quantizes:
        return unread
    if model.quantization is None and asked in ONLINE:
        return []
    if model.quantization is None:
        if asked in _NEEDS_QUANTIZED:
            detail = f"--quantization is {asked}, which reads quantized checkpoints; {model.name} is not quantized"
            return [
                Problem("quantization", f"{detail}: leave the flag out, or use --quantization=fp8")
            ]
        detail = f"--quantization is {parameters.quantization}, which is not planned"
        return [Problem("quantization", f"{detail}: weights are counted as they are stored", False)]
    own = model.quantization.method
    is_same = asked == own or any({asked, own} <= names for names in _SAME_CHECKPOINT)
    if is_same or own not in _METHODS or asked not in _NEEDS_QUANTIZED | set(ONLINE):
        return []
    detail = f"--quantization is {asked}, the checkpoint is quantized by {own}, expected {own} or nothing"
    return [Problem("quantization", f"{detail}: leave the flag out")]


def _is_compressed(model: Architecture) -> bool:
    return any(
        layer.kv is not None and layer.kv.kind is KvKind.COMPRESSED
        for layer, _ in model.layer_counts
    )


def _check_engine(
    model: Architecture, gpu: Gpu, gpu_count: int, rules: EngineRules
) -> list[Problem]:
    """Check what the engine serves: families, models over several GPUs."""
    problems, served = [], rules.families
    if served is not None and (model.model_type not in served or model.vision is not None):
        found = model.model_type or "of no stated type"
        detail = f"{rules.title} serves {', '.join(sorted(served))}; {model.name} is {found}"
        problems.append(Problem("engine", detail))
    if gpu_count > 1 and not rules.spans_gpus:
        device = "processor" if gpu.vendor == "cpu" else "GPU"
        detail = f"{rules.title} runs on one {device}, {gpu_count} were asked for; ask for 1"
        problems.append(Problem("gpu-count", detail))
    return problems
