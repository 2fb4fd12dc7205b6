"""Run by an interpreter that has vLLM: reads caches from stdin, writes what vLLM's own check says of each.

What is called is what an engine calls at its start: the config's own checks of the length, grouping of layers, and
`get_kv_cache_configs`, which refuses a pool that does not hold one request. No weights are loaded.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import vllm  # noqa: F401  (it sets up the logging that is switched off below)
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.v1.core.kv_cache_utils import get_kv_cache_configs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

_CARRIER = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 1024, "hidden_size": 256,
    "intermediate_size": 512, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "torch_dtype": "bfloat16",
}  # fmt: skip
"""A model that only carries the length: the caches are those of the case."""

_DTYPES = {1: torch.uint8, 2: torch.bfloat16, 4: torch.float32}


def spec_of(layer: dict[str, Any]) -> KVCacheSpec:
    """Return vLLM's own description of one layer's cache on one rank."""
    block = layer["block_size"]
    if layer["kind"] == "state":
        return MambaSpec(
            block_size=block, shapes=((layer["num_bytes"],),), dtypes=(torch.int8,),
            page_size_padded=layer["page_bytes"],
        )  # fmt: skip
    same: dict[str, Any] = {
        "block_size": block, "num_kv_heads": layer["num_heads"], "dtype": _DTYPES[layer["dtype_bytes"]],
        "head_size": layer["key_dim"],
    }  # fmt: skip
    if layer["kind"] == "latent":
        return MLAAttentionSpec(**same)
    same["head_size_v"] = layer["value_dim"]
    if layer["kind"] == "sliding":
        return SlidingWindowSpec(**same, sliding_window=layer["window"])
    return FullAttentionSpec(**same)


def config_of(case: dict[str, Any], folder: str) -> VllmConfig:
    carrier = {**_CARRIER, "max_position_embeddings": case["model_length"]}
    Path(folder, "config.json").write_text(json.dumps(carrier), encoding="utf-8")
    length = case["max_model_len"]
    cache = CacheConfig(block_size=16)
    cache.kv_cache_layout = "LBNHC"  # FlashAttention's
    return VllmConfig(
        model_config=ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=length),
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_model_len=length, is_encoder_decoder=False, max_num_seqs=case["max_num_seqs"],
            max_num_batched_tokens=case["max_num_batched_tokens"], async_scheduling=True,
        ),
    )  # fmt: skip


def check(case: dict[str, Any], folder: str) -> dict[str, Any]:
    specs = {f"layers.{at}": spec_of(layer) for at, layer in enumerate(case["layers"])}
    try:
        found = get_kv_cache_configs(config_of(case, folder), [specs], [case["num_bytes"]])
    except ValueError as exc:
        return {"error": str(exc)}
    return {"num_blocks": found[0].num_blocks}


def main() -> None:
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        answers = [check(case, folder) for case in json.load(sys.stdin)]
    print("\n" + json.dumps(answers))


if __name__ == "__main__":
    main()
