"""Layers of DeepSeek-V4: one key-value vector for all heads, kept for a window and, compressed, for good.

`layers.py` calls `compressed_layer`. Shapes are those of transformers' modeling_deepseek_v4.py (5.23.0),
checked by parameter count; which ranks hold what is vLLM's models/deepseek_v4 (compressors, indexer and
hyper-connections whole on each rank). How the cache is laid out is in `compressed_cache.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

from exo_inference.planner.model.config_fields import ConfigFields, FieldProblem
from exo_inference.planner.model.quantization import FP32
from exo_inference.planner.model.shapes import KvKind, KvSpec, Shard, Weight

RATIOS = (0, 4, 128)
"""Tokens per compressed entry that the engines support; 0: only the window."""

_ONE = Shard.REPLICATED


def compress_ratios(fields: ConfigFields, count: int) -> list[int]:
    """Return the tokens per compressed entry of each layer.

    Raises:
        FieldProblem: the list is missing, too short or holds something unknown.
    """
    ratios = fields.sequence("compress_ratios")
    if ratios is None or len(ratios) < count:
        raise FieldProblem(f"config.json has no compress_ratios for its {count} layers")
    for ratio in ratios[:count]:
        if ratio not in RATIOS:
            known = ", ".join(map(str, RATIOS))
            raise FieldProblem(f"compress_ratios holds {ratio!r:.20}, expected {known}")
    return [int(ratio) for ratio in ratios[:count]]


def compressed_layer(fields: ConfigFields, ratio: int) -> tuple[list[Weight], KvSpec]:
    """Return weights (without the feed-forward and norms) and cache of a layer."""
    dim, index = fields.integer("head_dim"), fields.integer("index_head_dim") if ratio == 4 else 0
    weights = [*_attention(fields), *_hyper_connections(fields)]
    if ratio:
        weights += _compressor(fields, "compressor", dim, ratio)
    if index:
        weights += _indexer(fields, ratio)
    spec = KvSpec(
        KvKind.COMPRESSED, 1, dim, window=fields.integer("sliding_window"), compress_ratio=ratio,
        index_elements=index, index_bytes=index + -(-index // 128) * 4,
    )  # fmt: skip
    return weights, spec


def _attention(fields: ConfigFields) -> Iterator[Weight]:
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    dim, q_rank = fields.integer("head_dim"), fields.integer("q_lora_rank")
    groups, o_rank = fields.integer("o_groups"), fields.integer("o_lora_rank")
    if groups < 1:
        raise FieldProblem("o_groups is 0")
    path = "self_attn"
    yield Weight(f"{path}.q_a_proj", "attention", q_rank, hidden, shard=_ONE)
    yield Weight(f"{path}.q_b_proj", "attention", heads * dim, q_rank)
    yield Weight(f"{path}.kv_proj", "attention", dim, hidden, shard=_ONE)
    yield Weight(f"{path}.o_a_proj", "attention", groups * o_rank, heads * dim // groups)
    yield Weight(f"{path}.o_b_proj", "attention", hidden, groups * o_rank)
    yield Weight(f"{path}.norms", "norm", q_rank + dim + heads, 1, shard=_ONE)


def _compressor(fields: ConfigFields, name: str, dim: int, ratio: int) -> Iterator[Weight]:
    """Keys and gates that pool `ratio` tokens into one entry; ratio 4 overlaps and has two of each."""
    hidden, wide = fields.integer("hidden_size"), dim * (2 if ratio == 4 else 1)
    path = f"self_attn.{name}"
    yield Weight(f"{path}.kv_gate", "compressor", 2 * wide, hidden, shard=_ONE)
    yield Weight(f"{path}.position_bias", "norm", ratio * wide, 1, shard=_ONE, format=FP32)
    yield Weight(f"{path}.kv_norm", "norm", dim, 1, shard=_ONE)


def _indexer(fields: ConfigFields, ratio: int) -> Iterator[Weight]:
    """Lightning indexer: chooses the compressed entries that a token attends to."""
    heads, dim = fields.integer("index_n_heads"), fields.integer("index_head_dim")
    hidden, q_rank = fields.integer("hidden_size"), fields.integer("q_lora_rank")
    yield from _compressor(fields, "compressor.indexer", dim, ratio)
    path = "self_attn.compressor.indexer"
    yield Weight(f"{path}.q_b_proj", "attention", heads * dim, q_rank, shard=_ONE)
    yield Weight(f"{path}.weights_proj", "compressor", heads, hidden, shard=_ONE)


def _hyper_connections(fields: ConfigFields) -> Iterator[Weight]:
    """Manifold-constrained hyper-connections around attention and feed-forward, in 32 bit."""
    streams, hidden = fields.integer("hc_mult"), fields.integer("hidden_size")
    rows = streams * (streams + 2)
    for name in ("attn_hc", "ffn_hc"):
        yield Weight(f"{name}.fn", "norm", rows * streams * hidden, 1, shard=_ONE, format=FP32)
        yield Weight(f"{name}.base", "norm", rows + 3, 1, shard=_ONE, format=FP32)


def stream_gates(fields: ConfigFields) -> Iterator[Weight]:
    """Independent hyper-connections: what each residual stream gives and takes, without a matrix between them (Hy4)."""
    streams, hidden = fields.integer("hc_mult"), fields.integer("hidden_size")
    for name in ("attn_hc", "ffn_hc"):
        rows = 2 * streams
        yield Weight(f"{name}.fn", "norm", rows * streams * hidden, 1, shard=_ONE, format=FP32)
        yield Weight(f"{name}.base", "norm", rows + 2, 1, shard=_ONE, format=FP32)


def hyper_head(fields: ConfigFields) -> Weight:
    """Return what joins the residual streams before the output head."""
    streams, hidden = fields.integer("hc_mult"), fields.integer("hidden_size")
    size = streams * streams * hidden + streams + 1
    return Weight("hc_head", "norm", size, 1, shard=_ONE, format=FP32)
