"""Llama 1 to 3.x, and the many models that use its architecture."""

from __future__ import annotations

from exo_engine.models.config_file import ConfigReader
from exo_engine.models.rope_config import read_rope
from exo_engine.models.spec import DecoderSpec, RopeSpec


def spec_from_config(reader: ConfigReader, *, rope: RopeSpec | None = None) -> DecoderSpec:
    """Translate a `LlamaForCausalLM` configuration, of which `rope` may have been read."""
    num_layers = reader.integer("num_hidden_layers")
    has_attention_bias = reader.boolean("attention_bias", False)
    return DecoderSpec(
        architecture="LlamaForCausalLM",
        vocab_size=reader.integer("vocab_size"),
        hidden_size=reader.integer("hidden_size"),
        intermediate_size=reader.integer("intermediate_size"),
        num_layers=num_layers,
        num_heads=reader.integer("num_attention_heads"),
        num_kv_heads=read_num_kv_heads(reader),
        head_dim=read_head_dim(reader),
        rms_norm_eps=reader.number("rms_norm_eps", 1e-6),
        max_position_embeddings=reader.integer("max_position_embeddings", 2048),
        rope=rope or read_rope(reader),
        ties_embeddings=reader.boolean("tie_word_embeddings", False),
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=reader.boolean("mlp_bias", False),
        windows=(None,) * num_layers,
    )


def read_num_kv_heads(
    reader: ConfigReader, default: int | None = None, *, key: str = "num_key_value_heads"
) -> int:
    """Return the number of key/value heads, which must divide the query heads."""
    num_heads = reader.integer("num_attention_heads")
    num_kv_heads = reader.integer(key, reader.integer("num_key_value_heads", default or num_heads))
    if num_heads % num_kv_heads:
        expected = f"a divisor of num_attention_heads ({num_heads})"
        raise reader.unusable(key, num_kv_heads, expected)
    return num_kv_heads


def read_head_dim(
    reader: ConfigReader, default: int | None = None, *, key: str = "head_dim"
) -> int:
    """Return the size of one head: explicit, or hidden size over heads."""
    hidden_size, num_heads = reader.integer("hidden_size"), reader.integer("num_attention_heads")
    if not reader.has(key) and default is None and hidden_size % num_heads:
        raise reader.unusable(
            "hidden_size", hidden_size, f"a multiple of num_attention_heads ({num_heads})"
        )
    head_dim = reader.integer(key, default or hidden_size // num_heads)
    if head_dim % 2:
        raise reader.unusable(key, head_dim, "an even number")
    return head_dim
