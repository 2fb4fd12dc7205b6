"""Writes a model of `models.py` as a GGUF file in bf16, as llama.cpp's own converter would.

    python -m benchmarks.cpu.gguf_file MODEL FILE GGUF_PACKAGE

A process of its own; GGUF_PACKAGE is the folder with llama.cpp's `gguf`. The converter itself refuses tokenizers
that it does not know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ARCHITECTURES = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2"}
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMAL, _CONTROL = 1, 3
"""Kinds of tokens."""


def name_of(tensor: str) -> str:
    """Return what GGUF calls a tensor of a checkpoint."""
    stem, _, suffix = tensor.rpartition(".")
    if stem in NAMES:
        return f"{NAMES[stem]}.{suffix}"
    layer, _, part = stem.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[part]}.{suffix}"


def in_pairs(weights: Any, num_heads: int) -> Any:
    """Return rows of queries or keys in the order in which llama.cpp's `llama` turns them: neighbours together.

    A checkpoint has the first halves of all pairs of a head, then the second ones.
    """
    rows = weights.shape[0]
    halves = weights.reshape(num_heads, 2, rows // num_heads // 2, *weights.shape[1:])
    return halves.swapaxes(1, 2).reshape(weights.shape)


def write(model: Path, target: Path) -> None:
    """Write the file; replaces one that is there."""
    import gguf  # type: ignore[import-not-found,unused-ignore]
    import torch
    from safetensors.torch import load_file

    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    architecture = ARCHITECTURES[config["architectures"][0]]
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, architecture)
    _describe(writer, config)
    _add_vocabulary(writer, config)
    for name, tensor in load_file(model / "model.safetensors").items():
        if tensor.dim() == 1:  # norms and biases
            writer.add_tensor(name_of(name), tensor.float().numpy())
            continue
        if architecture == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            kind = "attention" if ".q_proj" in name else "key_value"
            tensor = in_pairs(tensor, config[f"num_{kind}_heads"])
        bits = tensor.contiguous().view(torch.uint8).numpy()
        kind_of_numbers = gguf.GGMLQuantizationType.BF16
        writer.add_tensor(name_of(name), bits, raw_dtype=kind_of_numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(target)


def _describe(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(32)  # mostly bf16


def _add_vocabulary(writer: Any, config: dict[str, Any]) -> None:
    from benchmarks.cpu.models import vocabulary

    tokens, merges = vocabulary(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([_NORMAL] * (len(tokens) - 1) + [_CONTROL])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(len(tokens) - 1)
    writer.add_eos_token_id(len(tokens) - 1)
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[3])
    write(Path(sys.argv[1]), Path(sys.argv[2]))
