"""Twelve starts of exo-engine on a CPU, of models and settings drawn at random: what it measures is what was planned.

Each is a whole start: a checkpoint with random weights is written, loaded and given its cache. The plan knows
config.json and the flags alone.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from exo_engine.config import EngineConfig
from exo_engine.core.engine import EngineCore

from exo_inference.planner import Plan, cpu_as_gpu, plan, read_architecture
from tests.planner.flags import settings_of

pytestmark = pytest.mark.slow
KINDS = [
    "Llama",
    "Mistral",
    "Qwen2",
    "Qwen3",
    "Qwen3Moe",
    "Gemma2",
    "Gemma3",
    "Qwen3Next",
    "DeepseekV2",
    "GptOss",
]
WINDOWED = {"Gemma2", "Gemma3", "GptOss"}
MIXTURES = {"Qwen3Moe", "Qwen3Next", "DeepseekV2", "GptOss"}


def drawn_config(kind: str, rng: random.Random) -> dict[str, Any]:
    """Return sizes that a model of this kind can have: multiples of 64, as published ones are, which no kernel pads."""
    heads = rng.choice([4, 8])
    config: dict[str, Any] = {
        "vocab_size": rng.choice([512, 1024, 2048]), "hidden_size": 64 * rng.choice([2, 3, 5]),
        "intermediate_size": 64 * rng.choice([3, 6, 9]), "num_hidden_layers": rng.choice([4, 8]),
        "num_attention_heads": heads, "num_key_value_heads": rng.choice([2, heads]),
        "head_dim": rng.choice([16, 32, 64]), "max_position_embeddings": rng.choice([512, 1024, 4096]),
        "tie_word_embeddings": rng.random() < 0.5, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if kind in ("Llama", "Qwen2", "Mistral"):
        del config["head_dim"]
        config["hidden_size"] = heads * rng.choice([16, 32, 48])
    if kind in WINDOWED:
        config["sliding_window"] = rng.choice([64, 128])
    if kind in MIXTURES:
        config["num_local_experts" if kind == "GptOss" else "num_experts"] = 64
        config["num_experts_per_tok"] = 2
    if kind == "GptOss":  # its class stretches the length otherwise
        config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0}
    elif kind in MIXTURES:
        config["moe_intermediate_size"] = 64 * rng.choice([1, 2])
    if kind == "Qwen3Next":
        config |= {"linear_key_head_dim": 16, "linear_value_head_dim": 32, "linear_num_key_heads": 2,
                   "linear_num_value_heads": 4, "shared_expert_intermediate_size": 64}  # fmt: skip
    if kind == "DeepseekV2":
        config |= {"kv_lora_rank": 48, "qk_rope_head_dim": 16, "qk_nope_head_dim": 32, "v_head_dim": 32,
                   "q_lora_rank": None, "n_routed_experts": 64, "n_shared_experts": 1, "num_key_value_heads": heads,
                   "first_k_dense_replace": 1, "head_dim": 16, "topk_method": "greedy"}  # fmt: skip
    return config


def drawn_flags(rng: random.Random) -> dict[str, Any]:
    return {
        "dtype": rng.choice(["float32", "bfloat16"]), "max_num_seqs": rng.choice([2, 8, 64]),
        "kv_cache_bytes": rng.choice([None, 4 * 2**20, 64 * 2**20]), "max_model_len": rng.choice([None, 256]),
    }  # fmt: skip


def as_flags(drawn: dict[str, Any]) -> list[str]:
    names = {"kv_cache_bytes": "kv-cache-memory-bytes"}
    given = {names.get(name, name.replace("_", "-")): value for name, value in drawn.items()}
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


def planned(path: Path, flags: list[str]) -> Plan:
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    model = read_architecture(config, name=path.name)
    assert model.cannot_size is None
    return plan(model, cpu_as_gpu(16 * 2**30), 1, settings_of(flags, engine="exo"))


@pytest.mark.parametrize("seed", range(12))
def test_a_start_takes_what_was_planned(seed: int, tmp_path: Path) -> None:
    import transformers

    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    name = f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config"
    torch.manual_seed(seed)
    built = getattr(transformers, name)(**drawn_config(kind, rng))
    getattr(transformers, f"{kind}ForCausalLM")(built).save_pretrained(tmp_path)
    drawn = drawn_flags(rng)
    core = EngineCore(EngineConfig(tmp_path, device="cpu", **drawn))
    try:
        measured = core.measurements
    finally:
        core.close()
    found = planned(tmp_path, as_flags(drawn))
    assert measured.weights_bytes is not None
    assert found.weights_bytes_per_gpu == pytest.approx(measured.weights_bytes, rel=0.01)
    assert (found.num_kv_blocks, found.kv_block_size) == (
        measured.num_kv_blocks,
        measured.kv_block_size,
    )
    assert found.max_model_len == measured.max_model_len
    assert found.kv_capacity_tokens == measured.kv_capacity_tokens
