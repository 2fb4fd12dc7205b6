"""Qwen3.5 (text): three layers of Gated DeltaNet to each of gated attention."""

from __future__ import annotations

from dataclasses import replace

from exo_engine.models import llama
from exo_engine.models.config_file import ConfigReader
from exo_engine.models.rope_config import read_rope
from exo_engine.models.spec import DecoderSpec, DeltaSpec

_KINDS = ("linear_attention", "full_attention")
_DEFAULT_HEAD_DIM = 256


def spec_from_config(reader: ConfigReader, *, default_rotary_part: float = 1.0) -> DecoderSpec:
    """Translate a `Qwen3_5ForCausalLM` configuration."""
    rope = read_rope(reader, default_part=default_rotary_part)
    spec = llama.spec_from_config(reader, rope=rope)
    head_dim = llama.read_head_dim(reader, _DEFAULT_HEAD_DIM)
    if int(head_dim * rope.rotary_part) % 2:
        raise reader.unusable("head_dim", head_dim, "one of which an even number is turned")
    if not reader.boolean("attn_output_gate", True):
        raise reader.unusable("attn_output_gate", False, "true")
    return replace(
        spec,
        architecture="Qwen3_5ForCausalLM",
        head_dim=head_dim,
        has_mlp_bias=False,
        has_qk_norm=True,
        has_output_gate=True,
        norm_offset=1.0,
        delta=_read_delta(reader, spec.num_layers),
        beside=("mtp.",),  # what guesses tokens ahead
    )


def _read_delta(reader: ConfigReader, num_layers: int) -> DeltaSpec:
    kinds = reader.kinds("layer_types", num_layers, _KINDS)
    if kinds is None:
        step = reader.integer("full_attention_interval", 4)
        kinds = [_KINDS[(index + 1) % step == 0] for index in range(num_layers)]
    if _KINDS[1] not in kinds:
        raise reader.unusable("layer_types", kinds, f"at least one {_KINDS[1]}")
    num_keys = reader.integer("linear_num_key_heads", 16)
    num_values = reader.integer("linear_num_value_heads", 32)
    if num_values % num_keys:
        expected = f"a multiple of linear_num_key_heads ({num_keys})"
        raise reader.unusable("linear_num_value_heads", num_values, expected)
    return DeltaSpec(
        num_key_heads=num_keys,
        num_value_heads=num_values,
        key_dim=reader.integer("linear_key_head_dim", 128),
        value_dim=reader.integer("linear_value_head_dim", 128),
        kernel_size=reader.integer("linear_conv_kernel_dim", 4, at_least=2),
        layers=frozenset(index for index, kind in enumerate(kinds) if kind == _KINDS[0]),
    )
