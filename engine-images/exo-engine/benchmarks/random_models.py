"""Models with random weights, written to disk without `transformers`: shapes to check and to time.

Used by `gpu_check.py`, `throughput.py` and `compare_trees.py` beside it. The weights are seeded, and
large enough that the likeliest token stands out from the next one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from exo_engine.config import ResolvedConfig
from exo_engine.core.loading import DTYPES, has_fixed_sums
from exo_engine.core.ranks.group import RankGroup
from exo_engine.models.config_file import read_spec
from exo_engine.models.decoder import Decoder
from exo_engine.models.spec import DecoderSpec
from safetensors.torch import save_file

_SMALL: dict[str, Any] = {
    "vocab_size": 499,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "dtype": "float32",
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {
        **_SMALL,
        "architectures": ["LlamaForCausalLM"],
        "rope_parameters": {**_LLAMA3_ROPE, "original_max_position_embeddings": 64},
        "tie_word_embeddings": True,
    },
    "mistral": {**_SMALL, "architectures": ["MistralForCausalLM"], "sliding_window": 48},
    "qwen2": {**_SMALL, "architectures": ["Qwen2ForCausalLM"]},
    "qwen3": {**_SMALL, "architectures": ["Qwen3ForCausalLM"], "head_dim": 32},
    "qwen3-moe": {
        **_SMALL,
        "architectures": ["Qwen3MoeForCausalLM"],
        "head_dim": 32,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    "gpt-oss": {
        **_SMALL,
        "architectures": ["GptOssForCausalLM"],
        "head_dim": 32,
        "intermediate_size": 64,
        "sliding_window": 48,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
    "deepseek-v3": {
        **_SMALL,
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_key_value_heads": 8,
        "kv_lora_rank": 32,
        "q_lora_rank": 48,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "first_k_dense_replace": 1,
    },
}
"""One small model per family."""

LATER_FAMILIES: dict[str, dict[str, Any]] = {
    "gemma2": {
        **_SMALL,
        "architectures": ["Gemma2ForCausalLM"],
        "head_dim": 32,
        "sliding_window": 48,
        "query_pre_attn_scalar": 32,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 15.0,
    },
    "qwen3.5": {
        **_SMALL,
        "architectures": ["Qwen3_5ForCausalLM"],
        "head_dim": 32,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
    },
}
"""Those that are compared in fewer ways: soft caps and windows, states instead of keys and values."""

SIZES: dict[str, dict[str, Any]] = {
    # The shape of Llama 3.2 1B.
    "1b": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_parameters": _LLAMA3_ROPE,
        "dtype": "bfloat16",
    },
    # The shape of SmolLM2 135M.
    "135m": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "rope_theta": 100000.0,
        "dtype": "bfloat16",
    },
    # The shape of Qwen2.5 0.5B.
    "0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
        "dtype": "bfloat16",
    },
    # The shape of TinyLlama 1.1B.
    "1.1b": {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "dtype": "bfloat16",
    },
    # Runs in seconds on one CPU core.
    "tiny": {
        **_SMALL,
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "tie_word_embeddings": True,
        "max_position_embeddings": 4096,
    },
}
"""Models to time."""


GPU_SIZES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        **SIZES["1b"],
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "head_dim": 128,
        "tie_word_embeddings": False,
        "rope_parameters": {**_LLAMA3_ROPE, "factor": 8.0},
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 151936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "rope_theta": 1000000.0,
        "dtype": "bfloat16",
    },
}
"""Shapes to time on a GPU, whose weights are made there."""


def write_config(directory: Path, config: dict[str, Any]) -> None:
    """Write config.json for a configuration."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(config), indent=2))


def config_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the content of config.json for a configuration."""
    model_type = config["architectures"][0].removesuffix("ForCausalLM").lower()
    return {**config, "model_type": model_type, "hidden_act": "silu"}


def fill_randomly(
    spec: DecoderSpec,
    settings: ResolvedConfig,
    progress: Callable[[str], None],
    group: RankGroup | None = None,
) -> Decoder:
    """Do what `core.loading.load_decoder` does, with random weights made on the device, in one rank."""
    assert group is None
    del progress
    device = torch.device(settings.device)
    decoder = Decoder(
        spec,
        dtype=DTYPES[settings.dtype],
        device=device,
        weight_format=settings.weight_format,
        is_fixed=has_fixed_sums(settings),
    )
    spread = 2.5 / spec.hidden_size**0.5
    with torch.inference_mode():
        for layer in decoder.weighted_layers:
            for name, slot in layer.slots.items():
                values = torch.randn(slot.stored.shape, device=device, dtype=DTYPES[settings.dtype])
                is_norm = name.endswith("norm.weight")
                slot.load(1.0 + 0.2 * values if is_norm else spread * values)
            layer.finish()
    return decoder


def write_model(
    directory: Path, config: dict[str, Any], *, seed: int = 0, device: str = "cpu"
) -> Path:
    """Write config.json and model.safetensors for a configuration and return the directory."""
    write_config(directory, config)
    sketch = Decoder(read_spec(directory), dtype=torch.float32, device=torch.device("meta"))
    slots = {name: slot for layer in sketch.weighted_layers for name, slot in layer.slots.items()}
    generator = torch.Generator(device).manual_seed(seed)
    dtype = getattr(torch, config["dtype"])
    # Wide matrices sum more terms: keep activations about as large in every model.
    spread = 2.5 / config["hidden_size"] ** 0.5
    tensors = {}
    for name, slot in slots.items():
        values = torch.randn(slot.stored.shape, generator=generator, device=device)
        is_norm = name.endswith("norm.weight")
        values = 1.0 + 0.2 * values if is_norm else spread * values
        tensors[name] = values.to(dtype).cpu().contiguous()
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory
