"""How heads are prepared: normalised, turned and stored in one launch.

Legend: T tokens in step, H query heads, Hkv key/value heads, D head dim, R of them turned.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from exo_engine.kernels.triton.launch import Launch, Target, tile_of
from exo_engine.kernels.triton.pages import Pages
from exo_engine.kernels.triton.store_kernels import prepare_heads

# Numbers of a program: enough to keep its threads busy, few enough for their registers.
_NUMBERS = 1024


@dataclass(frozen=True, slots=True)
class Turn:
    """What comes before heads are stored."""

    cosines: Tensor
    """(positions, R / 2) float32."""
    sines: Tensor
    positions: Tensor
    """(T,) int32."""
    norms: tuple[Tensor, Tensor] | None = None
    """Weights (D,) for queries and for keys."""
    eps: float = 0.0


def plan_storing(
    keys: Tensor,
    values: Tensor | None,
    pages: Pages,
    slots: Tensor,
    target: Target,
    *,
    queries: Tensor | None = None,
    turned: Tensor | None = None,
    turn: Turn | None = None,
) -> Launch:
    """Return what stores keys and values, and prepares queries.

    Args:
        keys: (T, Hkv, D), heads after one another.
        values: likewise; None: there are none beside the keys, as in latent attention.
        pages: where they go.
        slots: (T,) int64; a token whose slot is negative is not stored.
        target: the GPU.
        queries: (T, H, D).
        turned: (T, H, D), contiguous: what comes of the queries.
        turn: norm and rotation, of queries and keys; None: neither.
    """
    num_heads = 0 if queries is None else queries.shape[1]
    dim_tile = tile_of(pages.head_dim, 16)
    tile = max(1, min(_NUMBERS // dim_tile, tile_of(max(num_heads, pages.num_kv_heads))))
    norms = turn.norms if turn is not None else None
    arguments = {
        "queries": keys if queries is None else queries,
        "keys": keys,
        "values": keys if values is None else values,
        "turned": keys if turned is None else turned,
        "key_pages": pages.keys,
        "value_pages": pages.values,
        "key_scales": pages.key_scales,
        "value_scales": pages.value_scales,
        "slots": slots,
        "positions": slots if turn is None else turn.positions,
        "cosines": pages.key_scales if turn is None else turn.cosines,
        "sines": pages.key_scales if turn is None else turn.sines,
        "query_weight": keys if norms is None else norms[0],
        "key_weight": keys if norms is None else norms[1],
        "eps": 0.0 if turn is None else turn.eps,
        "query_stride": 0 if queries is None else queries.stride(0),
        "key_stride": keys.stride(0),
        "value_stride": keys.stride(0) if values is None else values.stride(0),
        "page_stride": pages.keys.stride(0),
        "scale_stride": pages.key_scales.stride(0),
        "HEADS": num_heads,
        "KV_HEADS": pages.num_kv_heads,
        "DIM": pages.head_dim,
        "DIM_TILE": dim_tile,
        "TURNED": 0 if turn is None else 2 * turn.cosines.shape[1],
        "PAGE": pages.page_size,
        "TILE": tile,
        "HAS_NORM": norms is not None,
        "STORED": pages.stored,
        "OVERLAPS": target.overlaps,
    }
    sides = 1 if values is None else 2
    tiles = -(-num_heads // tile) + sides * -(-pages.num_kv_heads // tile)
    return Launch(prepare_heads, (len(keys), tiles), arguments, num_warps=2)
