"""Attention in plain torch: runs everywhere, and is what every other backend is held equal to.

Decoding sequences are gathered from the cache in batches of similar length and computed together;
prompts are computed one sequence at a time. Batches and query chunks are bounded, so that scratch
memory does not grow with context length.

Legend: T tokens in step, S sequences in a batch, L keys, G query heads per key/value head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import AttentionLayer, CachedLayer, Reach
from exo_engine.attention.layout import StepLayout
from exo_engine.kernels.uploads import to_device

# Bounds on scratch: tokens gathered for one decode batch, and query-key pairs of one prefill chunk.
_MAX_GATHERED_TOKENS = {"cpu": 2**15, "cuda": 2**18}
_MAX_PAIRS = {"cpu": 2**22, "cuda": 2**26}
# A batch's longest context may exceed its shortest by this factor; more is wasted on padding.
_MAX_PADDING = 1.5


@dataclass(frozen=True, slots=True)
class _DecodeBatch:
    rows: slice | Tensor  # S of the step's tokens
    blocks: Tensor  # (S * M,), the tables one after another, padded with each one's last block
    mask: Tensor | None  # (S, 1, 1, L) bool, True where a key is visible; None: all of them
    num_keys: int  # L


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    rows: slice  # of the step's tokens
    keys: slice  # of the prompt's keys
    mask: Tensor | None  # (queries, L) bool; None: plain causal from the first key


@dataclass(frozen=True, slots=True)
class _Prompt:
    rows: slice  # of the step's tokens
    blocks: Tensor | None  # (M,); None: all of its keys are the step's own, as they are
    chunks: list[_PrefillChunk]


@dataclass(frozen=True, slots=True)
class _Plan:
    """What layers of the same group, reach and arithmetic share in one step."""

    decodes: list[_DecodeBatch]
    prompts: list[_Prompt]


@dataclass(frozen=True, slots=True)
class _Kind:
    group: int
    reach: Reach
    max_pairs: int
    is_shared: bool  # another layer has written its keys and values


class ReferenceAttention(AttentionBackend):
    """`AttentionBackend` on torch's scaled_dot_product_attention."""

    def __init__(self, layers: Sequence[CachedLayer], cache: KVCache) -> None:
        self._layers = {
            index: layer for index, layer in enumerate(layers) if isinstance(layer, AttentionLayer)
        }
        self._cache = cache
        self._device = cache.device
        self._kinds = {index: self._kind(index) for index in self._layers}
        self._layout: StepLayout | None = None
        self._plans: dict[_Kind, _Plan] = {}

    def begin(self, layout: StepLayout) -> None:
        """Build tables and masks for each kind of layer."""
        self._layout = layout
        self._plans = {
            kind: _Plan(list(self._plan_decodes(layout, kind)), self._plan_prompts(layout, kind))
            for kind in set(self._kinds.values())
        }

    def scratch_bytes(self) -> int:
        """See `AttentionBackend.scratch_bytes`: gathered keys and values, masks and scores."""
        gathered = _MAX_GATHERED_TOKENS[self._device.type] * self._cache.most_bytes_per_token
        return max(2 * gathered, gathered + 8 * _MAX_PAIRS[self._device.type])

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """See `AttentionBackend.attend`."""
        assert self._layout is not None, "begin() comes first"
        spec, kind = self._layers[layer], self._kinds[layer]
        if spec.kv_layer is None:
            self._cache.write(layer, self._layout.slots[kind.group], keys, values)
        source = layer if spec.kv_layer is None else spec.kv_layer
        plan = self._plans[kind]
        output = queries.new_empty(*queries.shape[:2], spec.value_dim)
        for batch in plan.decodes:
            found = self._cache.read(source, batch.blocks)
            output[batch.rows] = self._decode(spec, batch, queries[batch.rows], *found, sinks)
        for prompt in plan.prompts:
            if prompt.blocks is None:
                seen = keys[prompt.rows], values[prompt.rows]
            else:
                seen = self._cache.read(source, prompt.blocks)
            for chunk in prompt.chunks:
                output[chunk.rows] = self._prefill(spec, chunk, queries[chunk.rows], *seen, sinks)
        return output

    @staticmethod
    def _decode(
        layer: AttentionLayer,
        batch: _DecodeBatch,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend one token of each of S sequences: (S, H, D) to (S, H, D)."""
        num_sequences = len(queries)
        # The G query heads of one key/value head take the place of G query positions.
        grouped = queries.view(num_sequences, layer.num_kv_heads, -1, layer.head_dim)
        shape = (num_sequences, len(keys) // num_sequences, layer.num_kv_heads)
        attended = _attend(
            layer,
            grouped,
            keys.view(*shape, -1)[:, : batch.num_keys].transpose(1, 2),
            values.reshape(*shape, -1)[:, : batch.num_keys].transpose(1, 2),
            batch.mask,
            None if sinks is None else sinks.view(layer.num_kv_heads, -1, 1),
            is_causal=False,
        )
        return attended.reshape(num_sequences, layer.num_heads, -1)

    @staticmethod
    def _prefill(
        layer: AttentionLayer,
        chunk: _PrefillChunk,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attend queries (T, H, D) of one sequence over its keys and values (L, Hkv, D)."""
        num_groups = layer.num_heads // layer.num_kv_heads
        keys, values = (
            each[chunk.keys].transpose(0, 1).repeat_interleave(num_groups, dim=0).unsqueeze(0)
            for each in (keys, values)
        )
        attended = _attend(
            layer,
            queries.transpose(0, 1).unsqueeze(0),
            keys,
            values,
            chunk.mask,
            None if sinks is None else sinks.view(-1, 1, 1),
            is_causal=chunk.mask is None,
        )
        return attended.squeeze(0).transpose(0, 1)

    def _kind(self, index: int) -> _Kind:
        layer = self._layers[index]
        source = index if layer.kv_layer is None else layer.kv_layer
        # Where every head's scores are written out, they count.
        share = layer.num_heads if layer.has_sinks or layer.soft_cap is not None else 1
        most = _MAX_PAIRS[self._device.type] // share
        is_shared = layer.kv_layer is not None
        return _Kind(self._cache.group_of(source), layer.reach, most, is_shared)

    def _plan_decodes(self, layout: StepLayout, kind: _Kind) -> Iterator[_DecodeBatch]:
        """Put sequences of similar visible length together, longest first."""
        contexts = layout.host.context_lens[: layout.num_decodes].astype(np.int64)
        if not len(contexts):
            return
        first_seen = kind.reach.first_seen(contexts - 1)
        table = layout.host.block_tables[kind.group]
        block_size = self._cache.block_size
        first_blocks = first_seen // block_size
        num_blocks = -(-contexts // block_size) - first_blocks
        for rows in self._similar(num_blocks):
            longest = int(num_blocks[rows].max())
            offsets = np.arange(longest)
            # What is past the end is a block of the sequence's own: nobody else's broken numbers.
            columns = first_blocks[rows, None] + np.minimum(offsets, num_blocks[rows, None] - 1)
            skipped = first_blocks[rows] * block_size
            bounds = np.stack((first_seen[rows] - skipped, contexts[rows] - skipped))
            members = np.arange(len(contexts))[rows]
            yield _DecodeBatch(
                rows=rows if isinstance(rows, slice) else self._move(rows),
                blocks=self._move(table[members[:, None], columns].ravel()),
                mask=self._mask(bounds),
                num_keys=int(bounds[1].max()),
            )

    def _similar(self, num_blocks: NDArray[np.int64]) -> Iterator[slice | NDArray[np.int64]]:
        """Yield indices of sequences that may be padded to one length and gathered at once."""
        limit = _MAX_GATHERED_TOKENS[self._device.type] // self._cache.block_size
        longest, count = int(num_blocks.max()), len(num_blocks)
        if count * longest <= limit and num_blocks.min() * _MAX_PADDING + 1 >= longest:
            yield slice(0, count)
            return
        order = np.argsort(-num_blocks, kind="stable")
        start = 0
        while start < count:
            longest = int(num_blocks[order[start]])
            are_similar = num_blocks[order[start:]] * _MAX_PADDING + 1 >= longest
            size = min(int(are_similar.sum()), max(1, limit // longest))
            yield order[start : start + size]
            start += size

    def _mask(self, bounds: NDArray[np.int64]) -> Tensor | None:
        """Return (S, 1, 1, L), true from bounds[0] to before bounds[1], or None if all is true."""
        num_keys = int(bounds[1].max())
        if not bounds[0].any() and bounds[1].min() == num_keys:
            return None
        moved = self._move(bounds).view(2, -1, 1, 1, 1)
        positions = torch.arange(num_keys, device=self._device)
        return (positions >= moved[0]) & (positions < moved[1])

    def _plan_prompts(self, layout: StepLayout, kind: _Kind) -> list[_Prompt]:
        prompts = []
        block_size = self._cache.block_size
        starts = layout.host.query_starts.tolist()
        contexts = layout.host.context_lens.tolist()
        for index in range(layout.num_decodes, len(contexts)):
            rows, context = slice(starts[index], starts[index + 1]), contexts[index]
            offset = context - (rows.stop - rows.start)
            blocks, skipped = None, 0
            if offset > 0 or self._cache.is_lossy or kind.is_shared:
                first = kind.reach.first_seen(offset) // block_size
                table = layout.block_tables[kind.group][index]
                blocks, skipped = table[first : -(-context // block_size)], first * block_size
            chunks = list(self._chunk(kind, rows.start, offset, context, skipped))
            prompts.append(_Prompt(rows, blocks, chunks))
        return prompts

    def _chunk(
        self, kind: _Kind, row: int, offset: int, context: int, skipped: int
    ) -> Iterator[_PrefillChunk]:
        """Cut positions [offset, context) so that no chunk has more query-key pairs than the bound.

        Args:
            kind: of the layers.
            row: of the first position in the step.
            offset: first position in the step.
            context: end of the positions.
            skipped: positions before the first key that was gathered.
        """
        size = max(1, kind.max_pairs // context)
        reach = kind.reach
        for start in range(offset, context, size):
            stop = min(start + size, context)
            first_key = reach.first_seen(start)
            mask = None
            if start > 0 or reach.first_seen(stop - 1) > 0:
                queries = np.arange(start, stop)
                keys = torch.arange(first_key, stop, device=self._device)
                mask = (keys <= self._move(queries)[:, None]) & (
                    keys >= self._move(reach.first_seen(queries))[:, None]
                )
            yield _PrefillChunk(
                rows=slice(row + start - offset, row + stop - offset),
                keys=slice(first_key - skipped, stop - skipped),
                mask=mask,
            )

    def _move(self, array: NDArray[np.int32] | NDArray[np.int64]) -> Tensor:
        return to_device(array, self._device)


def _attend(
    layer: AttentionLayer,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    sinks: Tensor | None,
    *,
    is_causal: bool,
) -> Tensor:
    """Attend queries (B, H, Q, D) over keys and values (B, H, L, D).

    Args:
        layer: whose scale and soft cap.
        queries: as many as keys, if causal.
        keys: of as many heads.
        values: likewise.
        mask: True where a key is visible, or None.
        sinks: (H, Q or 1, 1) or None.
        is_causal: without a mask, each query sees keys up to its own.
    """
    if layer.soft_cap is None and sinks is None:
        return F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, is_causal=is_causal, scale=layer.scale
        )
    scores = (queries @ keys.transpose(-1, -2)).float() * layer.scale
    if layer.soft_cap is not None:
        scores = layer.soft_cap * torch.tanh(scores / layer.soft_cap)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    if sinks is not None:
        column = sinks.float().expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : keys.shape[-2]]
    return weights.to(values.dtype) @ values
