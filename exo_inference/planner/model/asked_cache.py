"""The type of the cache that a checkpoint asks for, and whether a release takes it without a flag.

`resolved_setting.py` and `checks.py` ask. ModelOpt's files say it in `kv_cache_quant_algo` or `kv_cache_scheme`, those of
compressed-tensors in `kv_cache_scheme`. Of a file that is known by its name alone, a public account says it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_inference.planner.engine_rules import EngineRules
    from exo_inference.planner.model.architecture import Architecture

_PLAIN = "auto"

ASKED: Mapping[str, tuple[str, str]] = {
    name.lower(): ("fp8", source)
    for name, source in {
        "nvidia/Qwen3-8B-NVFP4": "FP8 scales of keys and values (public notes on its tensors, 2026-07-04: "
        "vLLM 0.24.0 has an fp8_e4m3 cache for it)",
        "nvidia/Qwen3-30B-A3B-NVFP4": "vllm-project/vllm#34752 (hf_quant_config.json, line 8)",
        "nvidia/Qwen3-32B-NVFP4": "huggingface.co/gdubicki/Qwen3-32B-NVFP4 (a copy of the same bytes)",
        "Salyut1/GLM-4.7-NVFP4": "eugr/spark-vllm-docker#307 (k_scale and v_scale)",
        "unsloth/Qwen3.8-27B-NVFP4": "github.com/zji996/vllm-qwen38-27b @4f182d3 (kv_cache_scheme: an fp8_e4m3 cache "
        "without a flag)",
    }.items()
}
"""Types and sources of files that are planned as another model in the form that the name says."""


def asked_cache(model: Architecture, rules: EngineRules) -> str:
    """Return the type that the engine takes from the checkpoint where no flag says one; `auto` is that of the run."""
    quantization = model.quantization
    if quantization is None:
        return _PLAIN
    method, kind = quantization.method, quantization.kv_cache_dtype
    if kind is None and model.name.lower() in ASKED:
        method, kind = "modelopt", ASKED[model.name.lower()][0]
    if kind is None:
        return _PLAIN
    since = next(
        (v for name, v in rules.takes_cache_since.items() if method.startswith(name)), None
    )
    return kind if since is None or rules.version >= since else _PLAIN
