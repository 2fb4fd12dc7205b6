"""Attention of prompts by PyTorch's `varlen_attn`, which reads keys and values in their pages.

PyTorch has that from 2.13 on. It wants blocks of a multiple of 256 tokens, heads of 16-bit numbers stored as they
are, and the last numbers of a head beside each other; where heads and tokens lie it takes from strides, so the order
of `kernels/triton/pages.py` fits. `num_splits` is 1: with contexts that are split it writes no result for sequences
after the first (pytorch/pytorch#194167). Only `prompt_choice` takes it, once its numbers were found right.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepLayout
from exo_engine.attention.prompts import is_plain

if TYPE_CHECKING:
    from exo_engine.kernels.triton.pages import Pages

BLOCK_MULTIPLE = 256
"""Of the tokens of a block."""
_MAX_HEAD_DIM = 256
_HEAD_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class PagedPrompts:
    """See `PlannedPrompts`; S sequences, M blocks of the longest table."""

    rows: slice
    tables: Tensor
    """(S, M) int32."""
    contexts: Tensor
    """(S,) int32."""
    query_starts: Tensor
    """(S + 1,) int32, from the first of `rows` on."""
    key_starts: Tensor
    """(S + 1,) int32."""
    max_query_len: int
    max_context_len: int


class PagedFlash:
    """See `PromptWay`."""

    name = "in place by PyTorch"

    def why_not(self, layer: AttentionLayer, cache: KVCache) -> str | None:
        """See `PromptWay.why_not`."""
        if find_varlen_attn() is None:
            return "this PyTorch's varlen_attn reads no pages, 2.13's does"
        if cache.block_size % BLOCK_MULTIPLE:
            return (
                f"it needs blocks of a multiple of {BLOCK_MULTIPLE} tokens, and these have "
                f"{cache.block_size} (--block-size)"
            )
        if not is_plain(layer):
            return "it has no caps, sinks, chunks and latent attention"
        if cache.is_lossy or cache.dtype.itemsize != 2:
            return f"it needs 16-bit numbers, and the cache has {cache.kv_format.name}"
        if layer.head_dim % _HEAD_MULTIPLE or layer.head_dim > _MAX_HEAD_DIM:
            return (
                f"it has heads of a multiple of {_HEAD_MULTIPLE} numbers up to {_MAX_HEAD_DIM}, "
                f"and these have {layer.head_dim}"
            )
        return None

    def plan(self, layout: StepLayout, group: int, block_size: int, reach: Reach) -> PagedPrompts:
        """See `PromptWay.plan`; contexts may have any length."""
        del block_size, reach
        first = layout.num_decodes
        starts = layout.query_starts[first:]
        contexts = layout.context_lens[first:]
        on_host = layout.host.query_starts[first:]
        return PagedPrompts(
            rows=slice(int(on_host[0]), int(on_host[-1])),
            tables=layout.block_tables[group][first:],
            contexts=contexts,
            query_starts=starts - starts[0],
            key_starts=F.pad(contexts.cumsum(0, dtype=contexts.dtype), (1, 0)),
            max_query_len=int(np.diff(on_host).max()),
            max_context_len=int(layout.host.context_lens[first:].max()),
        )

    def attend(
        self, layer: AttentionLayer, queries: Tensor, pages: Pages, planned: PagedPrompts
    ) -> Tensor:
        """See `PromptWay.attend`."""
        varlen_attn = find_varlen_attn()
        assert varlen_attn is not None, "asked before"
        window = -1 if layer.reach.window is None else layer.reach.window - 1
        output: Tensor = varlen_attn(
            queries,
            _in_order_of_tokens(pages.keys, pages),
            _in_order_of_tokens(pages.values, pages),
            planned.query_starts,
            planned.key_starts,
            planned.max_query_len,
            planned.max_context_len,
            scale=layer.scale,
            window_size=(window, 0),
            enable_gqa=layer.num_heads != layer.num_kv_heads,
            seqused_k=planned.contexts,
            block_table=planned.tables,
            num_splits=1,
        )
        return output

    def scratch_bytes(self, layer: AttentionLayer, cache: KVCache) -> int:
        """See `PromptWay.scratch_bytes`: nothing is copied."""
        del layer, cache
        return 0


def find_varlen_attn() -> Callable[..., Any] | None:
    """Return PyTorch's function where it reads pages; None: it does not, or there is none."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if _reads_pages(varlen_attn) else None


@cache
def _reads_pages(function: Callable[..., Any]) -> bool:
    """Whether a function takes pages; looked at once, as each layer of each step asks for it."""
    return {"block_table", "num_splits"} <= inspect.signature(function).parameters.keys()


def _in_order_of_tokens(numbers: Tensor, pages: Pages) -> Tensor:
    """View pages (P, numbers) as (P, B, Hkv, D)."""
    size = pages.num_kv_heads * pages.page_size * pages.head_dim
    shape = (-1, pages.num_kv_heads, pages.page_size, pages.head_dim)
    return numbers[:, :size].view(shape).transpose(1, 2)
