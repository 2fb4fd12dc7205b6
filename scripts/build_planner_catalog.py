"""Write the planner's catalogue from the project's collected facts about models and GPUs.

    python -m scripts.build_planner_catalog MODELS.json GPUS.json

Replaces `exo_inference/planner/catalog/models.json` and `gpus.json`. Each entry keeps its source. Of a
config only the fields that the planner reads are kept; the script refuses to write an entry that
the planner would read differently from the full config.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

from exo_inference.planner.model.architecture import read_architecture
from scripts.planner_module_lists import with_module_list

TARGET = Path(__file__).parents[1] / "exo_inference" / "planner" / "catalog"

KEEP = frozenset(
    [
        "architectures",
        "attention_bias",
        "attention_chunk_size",
        "attention_k_eq_v",
        "attn_output_gate",
        "audio_config",
        "altup_num_inputs",
        "block_configs",
        "compress_ratios",
        "conv_kernel",
        "decoder_sparse_step",
        "deepstack_visual_indexes",
        "default_output_length",
        "dense_intermediate_size",
        "depth",
        "dtype",
        "embed_dim",
        "enable_moe_block",
        "experts_per_token",
        "expert_dtype",
        "ffn_dim",
        "first_k_dense_replace",
        "full_attention_interval",
        "global_head_dim",
        "hc_mult",
        "head_dim",
        "attention_head_dim",
        "hidden_size",
        "hidden_size_per_layer_input",
        "hybrid_layer_pattern",
        "hybrid_override_pattern",
        "image_size",
        "index_head_dim",
        "index_n_heads",
        "indexer_types",
        "init_pos_emb_height",
        "init_pos_emb_width",
        "interleave_moe_layer_step",
        "intermediate_size",
        "intermediate_size_mlp",
        "kv_lora_rank",
        "laurel_rank",
        "layer_types",
        "layers_block_type",
        "linear_attn_config",
        "linear_conv_kernel_dim",
        "linear_key_head_dim",
        "linear_num_key_heads",
        "linear_num_value_heads",
        "linear_value_head_dim",
        "mamba_conv_bias",
        "mamba_d_conv",
        "mamba_d_head",
        "mamba_d_state",
        "mamba_head_dim",
        "mamba_n_groups",
        "mamba_n_heads",
        "mamba_num_heads",
        "mamba_ssm_cache_dtype",
        "mamba_ssm_dtype",
        "max_position_embeddings",
        "max_window_layers",
        "mla_use_output_gate",
        "mlp_bias",
        "mlp_layer_types",
        "mlp_only_layers",
        "mlp_ratio",
        "model_type",
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_layer_freq",
        "moe_shared_expert_intermediate_size",
        "mtp_hybrid_override_pattern",
        "mtp_num_hidden_layers",
        "multi_query",
        "n_embd",
        "n_groups",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "n_routed_experts",
        "n_shared_experts",
        "new_decoder_architecture",
        "num_attention_heads",
        "num_attention_heads_per_layer",
        "num_experts",
        "num_experts_per_tok",
        "num_experts_per_token",
        "num_global_key_value_heads",
        "num_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_kv_heads",
        "num_kv_shared_layers",
        "num_local_experts",
        "num_nextn_predict_layers",
        "num_position_embeddings",
        "num_shared_experts",
        "o_groups",
        "o_lora_rank",
        "original_max_position_embeddings",
        "out_hidden_size",
        "partial_rotary_factor",
        "patch_size",
        "pooling_kernel_size",
        "position_embedding_size",
        "projector_input_dim",
        "projector_output_dim",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "qkv_hidden_size",
        "quantization_config",
        "rope_parameters",
        "rope_scaling",
        "routed_expert_hidden_size",
        "share_expert_dim",
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "sliding_window",
        "sliding_window_pattern",
        "spatial_merge_size",
        "ssm_state_size",
        "standardize",
        "swa_head_dim",
        "swa_num_attention_heads",
        "swa_num_key_value_heads",
        "swa_v_head_dim",
        "temporal_patch_size",
        "text_config",
        "tie_word_embeddings",
        "top_k_experts",
        "torch_dtype",
        "use_conv_bias",
        "use_double_wide_mlp",
        "use_qk_norm",
        "use_sliding_window",
        "v_head_dim",
        "vision_config",
        "vocab_size",
        "vocab_size_per_layer_input",
        "vt_hidden_size",
        "vt_intermediate_size",
        "vt_num_attention_heads",
        "vt_num_hidden_layers",
        "window_size",
    ]
)
NESTED = ("text_config", "vision_config")

# Memory as torch reports it in real logs (GiB): data/vllm-memory.md §1; the middle where logs differ.
REPORTED_GIB = {
    "t4": 14.56, "l4": 22.06, "a10": 22.06, "a10g": 22.06, "rtx-3090": 23.57, "rtx-4090": 23.65,
    "rtx-5090": 31.36, "a100-40gb-sxm": 39.49, "a100-40gb-pcie": 39.49, "l40s": 44.45,
    "h100-sxm": 79.19, "h100-pcie": 79.19, "a100-80gb-sxm": 79.25, "a100-80gb-pcie": 79.25,
    "rtx-pro-6000": 95.01, "h200": 139.81,
}  # fmt: skip
# NVLink bridges join two cards (NVIDIA's product briefs of each); SXM boards join all of a machine.
BRIDGED = frozenset(
    {
        "a30",
        "a40",
        "rtx-a5000",
        "rtx-3090",
        "a100-40gb-pcie",
        "a100-80gb-pcie",
        "h100-pcie",
        "h100-nvl",
    }
)
# T4s print 14.56 and 14.74 GiB; under Windows and WSL GeForce cards print all that is on them (an RTX 5090 31.84).
REPORTED_ERROR_MIB = {"t4": 185, "rtx-3090": 440, "rtx-4090": 346, "rtx-5090": 494}
# Found again after the facts were collected, which have no address of these.
_LLMFIT = "bandwidth as github:AlexsJones/llmfit@3f44fd30a43d:llmfit-core/src/hardware.rs; "
FOUND_AGAIN = {
    "rtx-4090": f"{_LLMFIT}arithmetic: NVIDIA's whitepaper, recalled, not re-read",
    "rtx-5090": f"{_LLMFIT}arithmetic: NVIDIA's whitepaper, recalled, not re-read",
    "h100-nvl": "bandwidth (3.9 TB/s) and NVLink as aiminingco.com/gpu/h100-nvl/specs; arithmetic: NVIDIA datasheet, recalled, not re-read",
}  # fmt: skip
# Not in the collected facts, but in the collected starts.
EXTRA_GPUS = {
    "gb10": {
        "name": "NVIDIA GB10 (DGX Spark)", "vendor": "nvidia", "aliases": ["dgx-spark"], "memory_mib": 124518,
        "marketing_gb": 128, "bandwidth_gbps": 273, "tflops": {"fp16": 62, "bf16": 62, "fp8": 125, "fp4": 250},
        "compute_capability": "12.1", "native": ["bf16", "fp16", "fp8", "int8", "mxfp4", "nvfp4"],
        "nvlink_gbps": None, "pcie_gbps": 25, "reported_mib": 124518, "unified": True,
        "reported_source": "about 121.6 GiB of unified memory in real logs (vllm-memory.md §1)",
        "source": "bandwidth as huggingface.co/blog/exolabs/the-dgx-spark-handbook; "
        "arithmetic: NVIDIA product page, recalled, not re-read",
    },
}  # fmt: skip
# Of every four layers of Laguna one sees everything, with fewer query heads.
_LAGUNA_FULL = [index % 4 == 0 for index in range(48)]
EXTRA_MODELS = {
    "llava-hf/llava-1.5-7b-hf": {
        "model_type": "llava",
        "config": {
            "model_type": "llava", "image_token_index": 32000, "tie_word_embeddings": False, "torch_dtype": "float16",
            "text_config": {
                "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
                "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064,
                "max_position_embeddings": 4096,
            },
            "vision_config": {
                "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
                "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336, "patch_size": 14,
            },
        },
        # The same count is asserted for the published checkpoint in public code.
        "param_check": {"computed": 7063427072},
        "sources": ["transformers 5.23.0: models/llava and models/clip, Vicuna-7B and CLIP ViT-L/14-336"],
    },
    "poolside/Laguna-S-2.1-FP8": {
        "model_type": "laguna",
        "config": {
            "model_type": "laguna", "vocab_size": 100352, "hidden_size": 3072, "intermediate_size": 12288,
            "num_hidden_layers": 48, "num_attention_heads": 48, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 262144, "num_experts": 256, "num_experts_per_tok": 10,
            "moe_intermediate_size": 1024, "shared_expert_intermediate_size": 1024, "sliding_window": 512,
            "mlp_only_layers": [0], "torch_dtype": "bfloat16", "tie_word_embeddings": False,
            "layer_types": ["full_attention" if full else "sliding_attention" for full in _LAGUNA_FULL],
            "num_attention_heads_per_layer": [48 if full else 72 for full in _LAGUNA_FULL],
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "targets": ["Linear"],
                        "weights": {
                            "num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128],
                        },
                    },
                },
                "ignore": [
                    "lm_head", "model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj",
                    "model.layers.0.mlp.down_proj", "re:.*\\.self_attn\\.(q|k|v|o|g)_proj$", "re:.*\\.mlp\\.gate$",
                    "re:.*\\.mlp\\.shared_experts?\\.(gate|up|down)_proj$",
                ],
                "kv_cache_scheme": {"num_bits": 8, "type": "float"},
            },
        },
        # Instantiated like the others (transformers 5.23.0, meta device).
        "param_check": {"computed": 117561977600},
        "sources": [
            "github:ai-dynamo/aiconfigurator@1cab08cb527e:aic-core/src/aiconfigurator_core/model_configs/"
            "poolside--Laguna-S-2.1-FP8_config.json"
        ],
    },
}  # fmt: skip
# The copies that the facts were taken from lost the audio encoder; counted with it (transformers 5.23.0, meta device).
WITH_AUDIO = {"google/gemma-4-E2B-it": 5104297504, "google/gemma-4-E4B-it": 7941100832}
REPORTED_SOURCE = "totals printed by vLLM in real logs (collected in vllm-memory.md §1)"


def told(source: str) -> str:
    """Return a source without the number under which whoever collected the facts has kept its text."""
    return re.sub(r" ?\(?\b\w+ id \d{6,}\)?", "", source).strip()


def reduce_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the planner reads, in the same structure."""
    kept = {key: value for key, value in config.items() if key in KEEP and value is not None}
    for name in NESTED:
        if isinstance(kept.get(name), dict):
            kept[name] = reduce_config(kept[name])
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(kept.get(name), dict):
            wanted = (
                "type",
                "rope_type",
                "factor",
                "original_max_position_embeddings",
                "partial_rotary_factor",
            )
            kept[name] = {key: value for key, value in kept[name].items() if key in wanted}
    blocks = kept.get("block_configs")
    if blocks:
        names = ("n_heads_in_group", "no_op", "replace_with_linear", "ffn_mult")
        kept["block_configs"] = [
            {
                part: {k: v for k, v in block[part].items() if k in names and v}
                for part in ("attention", "ffn")
            }
            for block in blocks
        ]
    if isinstance(kept.get("quantization_config"), dict):
        kept["quantization_config"] = reduce_quantization(kept["quantization_config"])
    return kept


def reduce_quantization(config: dict[str, Any]) -> dict[str, Any]:
    """Return a quantization config without what has no bearing on sizes."""
    kept = {
        k: v
        for k, v in config.items()
        if v is not None and k not in ("producer", "quantization_status")
    }
    for name in ("ignore", "modules_to_not_convert", "exclude_modules"):
        if isinstance(kept.get(name), list):
            kept[name] = [entry for entry in kept[name] if "norm" not in entry]
    if isinstance(kept.get("quantized_layers"), dict):
        layers = kept["quantized_layers"].items()
        kept["quantized_layers"] = {
            name: {"quant_algo": form["quant_algo"]} for name, form in layers
        }
        kept.pop("config_groups", None)
    return kept


def model_entry(name: str, model: dict[str, Any]) -> dict[str, Any]:
    """Return one model's catalogue entry, checked against the full config."""
    config = dict(model["config"])
    config.setdefault("model_type", model["model_type"])
    if name in WITH_AUDIO:
        config["audio_config"] = {"model_type": "gemma4_audio"}
    for field in ("quantization_config", "tie_word_embeddings"):
        if config.get(field) is None and model.get(field) is not None:
            config[field] = model[field]
    entry: dict[str, Any] = {"config": reduce_config(config), "source": told(model["sources"][0])}
    hf_quant = model.get("hf_quant_config")
    if hf_quant:
        entry["hf_quant_config"] = hf_quant
    check = {"computed": WITH_AUDIO[name]} if name in WITH_AUDIO else model["param_check"]
    if check.get("computed"):
        entry["num_parameters"] = check["computed"]
    weights = model.get("weights") or {}
    if weights.get("published_bytes"):
        entry["published_bytes"] = weights["published_bytes"]
    if model.get("gated") is not None:
        entry["gated"] = model["gated"]
    full = read_architecture(config, name=name, hf_quant_config=hf_quant)
    small = read_architecture(entry["config"], name=name, hf_quant_config=hf_quant)
    # The lists of unquantized modules are shortened; what they lead to is in layers and weights.
    different = [
        k for k, v in vars(full).items() if k != "quantization" and v != vars(small).get(k)
    ]
    if different:
        raise SystemExit(f"{name}: the reduced config is read differently ({', '.join(different)})")
    return entry


def gpu_entry(key: str, gpu: dict[str, Any], exoscale: dict[str, Any]) -> dict[str, Any]:
    """Return one GPU's catalogue entry."""
    reported = REPORTED_GIB.get(key)
    sources = gpu["sources"]
    entry = {
        "name": gpu["name"],
        "vendor": gpu["vendor"],
        "aliases": gpu["aliases"],
        "memory_mib": gpu["memory_mib"],
        "marketing_gb": gpu["memory_gb_marketing"],
        "bandwidth_gbps": gpu["memory_bandwidth_gbps"],
        "tflops": {kind: value for kind, value in gpu["tflops_dense"].items() if value is not None},
        "compute_capability": gpu["compute_capability"],
        "native": sorted(kind for kind, has in gpu["native"].items() if has),
        "nvlink_gbps": gpu["interconnect"]["nvlink_gbps_per_gpu_bidirectional"],
        "pcie_gbps": (gpu["interconnect"]["pcie"] or {}).get("gbps_per_direction"),
        "source": FOUND_AGAIN.get(key)
        or sources.get("all")
        or sources.get("bandwidth")
        or next(iter(sources.values())),
    }
    if key in BRIDGED:
        entry["nvlink_size"] = 2
    if reported is not None:
        entry["reported_mib"] = round(reported * 1024)
        entry["reported_source"] = REPORTED_SOURCE
    if key in REPORTED_ERROR_MIB:
        entry["reported_error_mib"] = REPORTED_ERROR_MIB[key]
    prices = gpu["price_usd_hour"]
    market = next((price for price in prices if "Exoscale" not in price["source"]), None)
    if market is not None:
        entry["market_price"] = {
            "usd_hour": market["usd"],
            "date": market["date"],
            "source": market["source"],
        }
    for family, offer in exoscale.items():
        if offer["gpu"] == key:
            sizes = {size["gpus"]: size["usd_hour"] for size in offer["sizes"].values()}
            entry["family"] = {
                "name": family, "zones": offer["zones"], "usd_hour": sizes,
                "source": told(offer.get("price_source") or offer.get("zone_source")),
            }  # fmt: skip
    return entry


def write(path: Path, data: dict[str, Any]) -> None:
    """Write one entry per line, so that changes can be reviewed."""
    lines = [
        f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}"
        for key, value in data.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def main() -> None:
    """Build both files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("gpus", type=Path)
    arguments = parser.parse_args()
    models = json.loads(arguments.models.read_text(encoding="utf-8"))["models"] | EXTRA_MODELS
    facts = json.loads(arguments.gpus.read_text(encoding="utf-8"))
    TARGET.mkdir(exist_ok=True)
    write(
        TARGET / "models.json",
        {name: model_entry(name, with_module_list(name, model)) for name, model in models.items()},
    )
    gpus = {key: gpu_entry(key, gpu, facts["exoscale"]) for key, gpu in facts["gpus"].items()}
    gpus.update(EXTRA_GPUS)
    write(TARGET / "gpus.json", gpus)


if __name__ == "__main__":
    main()
