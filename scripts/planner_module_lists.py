"""Which modules of NVIDIA's Nemotron 3 checkpoints are in which format, where the collected facts have no list of them.

`build_planner_catalog.py` lays them over those facts. Each list is written out per layer, as `hf_quant_config.json` is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RECIPE = (
    "NVIDIA/Model-Optimizer@2a0c85283253:modelopt_recipes/models/Nemotron-3-Super-120B-A12B/super-nvfp4.yaml "
    '("mirrors the published hf_quant_config.json")'
)
_KEPT_IN_8_BIT = [
    "lm_head",
    "mtp*",
    *(
        f"*.mixer.{each}"
        for each in (
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "fc1_latent_proj",
            "fc2_latent_proj",
        )
    ),
]
_KINDS = {"mamba": "M", "attention": "*", "moe": "E", "mlp": "-"}


def with_module_list(name: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's facts with the list of its checkpoint's modules, where that was looked up."""
    found = dict(model)
    looked_up = _looked_up(name, _pattern(model["config"]))
    if looked_up is None:
        return found
    quantized, source = looked_up
    first = found["sources"][0]
    return found | {
        "hf_quant_config": quantized,
        "sources": [f"{first}; modules: {source}", *found["sources"][1:]],
    }


def _looked_up(name: str, pattern: str) -> tuple[dict[str, Any], str] | None:
    if name == "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4":
        return _mixed(pattern, latent={1, 3, 5}), _RECIPE
    if name == "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4":
        page = "docs.nvidia.com/nemotron/nightly/nemotron/ultra3/quantization.html"
        return _mixed(pattern, latent=set()), f"{page}, which names the recipe of Super: {_RECIPE}"
    if name == "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8":
        kept = {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": _KEPT_IN_8_BIT,
        }
        return kept, "docs.nvidia.com/nemotron/latest/nemotron/super3/quantization.html"
    if name == "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4":
        source = (
            "hf_quant_config.json at ollama.com/dhiltgen/nemotron-3-nano:30b-a3b-nvfp4 "
            "(to layer 41; the rest by its rule and its count of 60)"
        )
        return _before_attention(pattern), source
    return None


def _pattern(config: Mapping[str, Any]) -> str:
    """Return one letter per layer, as `hybrid_override_pattern` has them."""
    listed = config.get("layers_block_type")
    if listed is not None:
        return "".join(_KINDS.get(str(each), "?") for each in listed)
    return str(config.get("hybrid_override_pattern") or "")


def _mixed(pattern: str, latent: set[int]) -> dict[str, Any]:
    """Return routed experts in 4-bit floats, shared ones and the states' projections in 8 bit, the rest in 16.

    Args:
        pattern: one letter per layer.
        latent: layers whose projections to and from the experts' width are in 8 bit, too.
    """
    layers: dict[str, Any] = {}
    for index, kind in enumerate(pattern):
        names = {"M": ("in_proj", "out_proj"), "E": ("shared_experts",)}.get(kind, ())
        names += ("fc1_latent_proj", "fc2_latent_proj") if index in latent else ()
        for each in names:
            layers[f"backbone.layers.{index}.mixer.{each}"] = {"quant_algo": "FP8"}
        if kind == "E":
            layers[f"backbone.layers.{index}.mixer.experts"] = {"quant_algo": "NVFP4"}
    return {
        "quant_algo": "MIXED_PRECISION",
        "kv_cache_quant_algo": "FP8",
        "quantized_layers": layers,
    }


def _before_attention(pattern: str) -> dict[str, Any]:
    """Return all in 4-bit floats but attention and the states that feed it."""
    kept = ["lm_head"]
    for index, (kind, following) in enumerate(zip(pattern, pattern[1:] + " ", strict=True)):
        names: tuple[str, ...] = ()
        if kind == "*":
            names = ("q_proj", "k_proj", "v_proj", "o_proj")
        elif kind == "M":
            names = ("in_proj", "out_proj", "conv1d") if following == "*" else ("conv1d",)
        kept += [f"backbone.layers.{index}.mixer.{each}" for each in names]
    return {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": kept,
    }
