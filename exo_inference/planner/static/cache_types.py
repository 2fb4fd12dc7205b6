"""Number types of SGLang's cache: what `auto` is, what a number takes, and what a GPU or model does not take.

`resolved_setting.py` and `checks.py` ask. Read in srt/mem_cache/kv_cache_dtype.py, srt/arg_groups/overrides.py
(`_dsa_kv_cache_dtype_default`, `_dsa_split_backend_resolution`) and srt/model_executor/pool_configurator.py of 0.5.4 to 0.5.18.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.problem import Problem
from exo_inference.planner.releases.sglang_families import types_with

if TYPE_CHECKING:
    from exo_inference.planner.gpu_catalog import Gpu
    from exo_inference.planner.model.architecture import Architecture
    from exo_inference.planner.parameters import EngineParameters

_BLACKWELL = 10.0
_FP4 = ("nvfp4", "fp4_mx_block16", "fp4_e2m1")
_SCALED = {"mxfp8": 1 + 1 / 32} | dict.fromkeys(_FP4, 0.5 + 1 / 16)
"""Bytes of a number with its part of a scale."""


def cache_type(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> str:
    """Return the type of the cache, in small letters; `auto` is that of the run."""
    asked = (parameters.kv_cache_dtype or "auto").lower()
    if asked != "auto":
        return asked
    if is_eight_bit_unasked(model, gpu, parameters):
        return "fp8_e4m3"
    quantization = model.quantization  # other checkpoints' types are not looked for
    if quantization is None or not quantization.method.startswith("modelopt"):
        return "auto"
    return quantization.kv_cache_dtype or "auto"


def is_eight_bit_unasked(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> bool:
    """Whether attention over an index, on Blackwell, has its cache in 8 bit though no flag says so."""
    is_unasked = (parameters.kv_cache_dtype or "auto").lower() == "auto"
    is_new = gpu.capability is not None and gpu.capability >= _BLACKWELL
    return is_unasked and is_new and _is_sparse(model) and parameters.rules.version >= (0, 5, 4)


def element_bytes(kind: str, run_bytes: float) -> float:
    """Return what a number takes; `run_bytes` is what one of the run does."""
    if kind.startswith("fp8"):
        return 1
    if kind in ("bf16", "bfloat16"):
        return 2
    return _SCALED.get(kind, run_bytes)


def sparse_latent_bytes(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> int:
    """Return what a token and layer takes of attention over an index in 8 bit, its index apart.

    TensorRT-LLM's kernels, which Blackwell has by default, keep 576 plain numbers; others have scales, and positions in 16 bit.
    To 0.5.16 those were counted as 576 as well.
    """
    capability, version = gpu.capability or 0.0, parameters.rules.version
    has_scales = model.model_type in types_with("scaled_cache", version)
    is_scaled = capability < _BLACKWELL or (capability >= 12 and has_scales)
    return 656 if is_scaled and version >= (0, 5, 17) else 576


def workspace_layers(parameters: EngineParameters) -> int:
    """Return how many layers' keys and values in 8 bit lie beside a cache in 4 bit, for what a prompt reads of it."""
    asked = (parameters.kv_cache_dtype or "auto").lower()
    return 1 if asked in _FP4 and parameters.rules.version >= (0, 5, 16) else 0


def type_problems(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> list[Problem]:
    """Return why a type that was asked for is refused at the start."""
    flag, rules = parameters.rules.flag("kv-cache-dtype"), parameters.rules
    asked = (parameters.kv_cache_dtype or "auto").lower()
    detail = ""
    if asked == "fp4_e2m1" and rules.version >= (0, 5, 16):
        detail = f"{flag} is fp4_e2m1, which {rules.title} does not take any more: set {flag}=fp4_mx_block16"
    elif _is_sparse(model) and asked not in ("auto", "bf16", "bfloat16", "fp8_e4m3"):
        detail = f"{flag} is {asked}, expected bfloat16 or fp8_e4m3 for this model's attention"
    elif asked in ("mxfp8", "nvfp4") and gpu.capability is not None and gpu.capability < _BLACKWELL:
        detail = f"{flag} is {asked}, which needs compute capability {_BLACKWELL:g}, {gpu.name} has {gpu.capability}"
    return [Problem("kv-cache-dtype", detail)] if detail else []


def _is_sparse(model: Architecture) -> bool:
    return any(layer.kv is not None and layer.kv.is_sparse for layer, _ in model.layer_counts)
