"""Builds the attention of one decoder layer: its heads, projections and cache; also the latent form of DeepSeek.

`layers.py` says which layer attends how; layers that keep a state instead are in `state_layers.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem
from exo_inference.planner.model.families import Family
from exo_inference.planner.model.shapes import KvKind, KvSpec, Shard, Weight, vector


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of one layer."""

    num_heads: int
    num_kv_heads: int
    key_dim: int
    value_dim: int


def read_heads(fields: ConfigFields, family: Family, kind: str) -> Heads:
    """Return the heads of a layer with ordinary attention."""
    num_heads = fields.integer("num_attention_heads")
    if num_heads < 1:
        raise FieldProblem("num_attention_heads is 0")
    default_dim = family.default_head_dim or fields.integer("hidden_size") // num_heads
    key_dim = fields.integer("head_dim", default_dim)
    value_dim = fields.integer("v_head_dim", key_dim) if family.has_value_dim else key_dim
    kv_heads = fields.integer("num_key_value_heads", num_heads)
    if family.multi_query and not fields.flag("new_decoder_architecture"):
        kv_heads = 1 if fields.flag("multi_query", default=True) else kv_heads
    if kind == "full" and family.has_global_heads:
        key_dim = value_dim = fields.integer("global_head_dim", key_dim)
        kv_heads = fields.integer("num_global_key_value_heads", kv_heads)
    if kind == "sliding" and fields.get("swa_num_key_value_heads"):
        kv_heads = fields.integer("swa_num_key_value_heads")
        num_heads = fields.integer("swa_num_attention_heads", num_heads)
        key_dim = fields.integer("swa_head_dim", key_dim)
        value_dim = fields.integer("swa_v_head_dim", value_dim)
    if num_heads % max(1, kv_heads):
        raise FieldProblem(
            f"num_key_value_heads is {kv_heads}, which does not divide its {num_heads} attention heads"
        )
    return Heads(num_heads, max(1, kv_heads), key_dim, value_dim)


def kv_spec(fields: ConfigFields, heads: Heads, kind: str) -> KvSpec:
    """Return the cache of a layer with ordinary attention."""
    window = 0
    if kind == "sliding":
        window = fields.integer("sliding_window")
    elif kind == "chunked":
        window = fields.integer("attention_chunk_size", 8192)
    return KvSpec(KvKind(kind), heads.num_kv_heads, heads.key_dim, heads.value_dim, window=window)


def attention_weights(
    fields: ConfigFields, family: Family, heads: Heads, kind: str, *, is_owner: bool = True
) -> Iterator[Weight]:
    """Yield the projections of a layer with ordinary attention."""
    hidden, kv = fields.integer("hidden_size"), heads.num_kv_heads
    is_gated = fields.flag("attn_output_gate", default=family.gates_attention)
    q_rows = heads.num_heads * heads.key_dim
    path = "self_attn"
    shared = fields.integer("share_q_dim") if family.shares_queries else 0
    if shared:
        yield Weight(f"{path}.wq", "attention", shared, hidden, shard=Shard.REPLICATED)
        yield vector(f"{path}.inter_norm", shared)
    yield Weight(f"{path}.q_proj", "attention", q_rows * (2 if is_gated else 1), shared or hidden)
    shares_values = kind == "full" and fields.flag("attention_k_eq_v")
    sizes = [("k", heads.key_dim)] + ([] if shares_values else [("v", heads.value_dim)])
    for name, dim in sizes if is_owner else []:
        yield Weight(
            f"{path}.{name}_proj", "attention", kv * dim, hidden, shard=Shard.KV_HEADS, heads=kv
        )
    yield Weight(f"{path}.o_proj", "attention", hidden, heads.num_heads * heads.value_dim)
    first, second = family.bias_fields
    bias = fields.flag(first, default=fields.flag(second))
    if bias if family.qkv_bias is None else family.qkv_bias:
        kv_rows = kv * (heads.key_dim + heads.value_dim)
        yield vector(f"{path}.qkv_bias", q_rows + kv_rows)
    if bias if family.o_bias is None else family.o_bias:
        yield vector(f"{path}.o_bias", hidden)
    norm = family.qk_norm
    if family.optional_qk_norm != "none" and fields.flag("use_qk_norm"):
        norm = family.optional_qk_norm
    if norm == "head":
        yield vector(f"{path}.qk_norm", heads.key_dim * (2 if is_owner else 1))
    elif norm == "full":
        yield vector(f"{path}.qk_norm", (heads.num_heads + kv) * heads.key_dim)
    if family.sinks in ("all", kind):
        yield vector(f"{path}.sinks", heads.num_heads)
    if family.gates_heads:
        yield Weight(f"{path}.g_proj", "attention", heads.num_heads, hidden)


def unstored_projections(
    fields: ConfigFields, heads: Heads, kind: str, *, is_owner: bool
) -> list[Weight]:
    """Return the keys' and values' projections of a layer that its checkpoint does not have."""
    shares_values = kind == "full" and fields.flag("attention_k_eq_v")
    lacking = [("v", heads.value_dim)] if shares_values or not is_owner else []
    lacking += [] if is_owner else [("k", heads.key_dim)]
    hidden, kv = fields.integer("hidden_size"), heads.num_kv_heads
    return [
        Weight(f"self_attn.{name}_proj", "attention", kv * dim, hidden, shard=Shard.KV_HEADS, heads=kv)
        for name, dim in lacking
    ]  # fmt: skip


def latent_weights(fields: ConfigFields, family: Family, *, has_index: bool) -> Iterator[Weight]:
    """Yield the projections of multi-head latent attention (DeepSeek-V2, arXiv 2405.04434 §2.1)."""
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    rank, rope = fields.integer("kv_lora_rank"), fields.integer("qk_rope_head_dim")
    nope, value = fields.integer("qk_nope_head_dim"), fields.integer("v_head_dim")
    q_rank = fields.integer("q_lora_rank", 0)
    path, one = "self_attn", Shard.REPLICATED
    if q_rank:
        yield Weight(f"{path}.q_a_proj", "attention", q_rank, hidden, shard=one)
        yield vector(f"{path}.q_a_layernorm", q_rank)
        yield Weight(f"{path}.q_b_proj", "attention", heads * (nope + rope), q_rank)
    else:
        yield Weight(f"{path}.q_proj", "attention", heads * (nope + rope), hidden)
    yield Weight(f"{path}.kv_a_proj_with_mqa", "attention", rank + rope, hidden, shard=one)
    yield vector(f"{path}.kv_a_layernorm", rank)
    yield Weight(f"{path}.kv_b_proj", "attention", heads * (nope + value), rank)
    yield Weight(f"{path}.o_proj", "attention", hidden, heads * value)
    if family.sinks == "all":
        yield vector(f"{path}.sinks", heads)
    if family.gates_heads:
        yield Weight(f"{path}.g_proj", "attention", heads, hidden)
    if family.gates_heads and fields.get("swa_kv_lora_rank"):  # Dots3
        yield vector(f"{path}.k_rope_only_layernorm", rope)
    if fields.flag("mla_use_output_gate", default=family.gates_attention):
        yield Weight(f"{path}.g_proj", "attention", heads * value, hidden)
    if has_index:
        count, dim = fields.integer("index_n_heads"), fields.integer("index_head_dim")
        yield Weight(f"{path}.indexer.wq_b", "attention", count * dim, q_rank or hidden, shard=one)
        yield Weight(f"{path}.indexer.wk", "attention", dim, hidden, shard=one)
        yield vector(f"{path}.indexer.k_norm", 2 * dim)
        yield Weight(f"{path}.indexer.weights_proj", "attention", count, hidden, shard=one)


def windowed(fields: ConfigFields) -> ConfigFields:
    """Return the config as layers read it whose latents have a window, and `swa_` sizes of their own (Dots3)."""
    own = {k.removeprefix("swa_"): v for k, v in fields.raw.items() if k.startswith("swa_")}
    return ConfigFields({**fields.raw, **own})


def latent_spec(fields: ConfigFields, *, has_index: bool, in_window: bool = False) -> KvSpec:
    """Return the cache of latent attention, with the index vector (fp8 and a 4-byte scale per 128).

    In a window it is one key-value head without values (vLLM 0.32.0, SlidingWindowMLASpec).
    """
    dim = fields.integer("index_head_dim") if has_index else 0
    index_bytes = dim + -(-dim // 128) * 4
    size = fields.integer("kv_lora_rank") + fields.integer("qk_rope_head_dim")
    if in_window:
        return KvSpec(KvKind.SLIDING, 1, size, 0, window=fields.integer("sliding_window"))
    is_sparse = bool(fields.get("index_n_heads"))
    return KvSpec(KvKind.LATENT, 1, size, 0, index_bytes=index_bytes, is_sparse=is_sparse)


def expanded_spec(fields: ConfigFields) -> KvSpec:
    """Return the cache of latent attention whose keys and values are kept for each head, values as long as keys."""
    dim = fields.integer("qk_nope_head_dim") + fields.integer("qk_rope_head_dim")
    return KvSpec(KvKind.FULL, fields.integer("num_attention_heads"), dim, dim)
