"""Attention in plain torch: runs everywhere, and is what every other backend is held equal to.

Decoding sequences are gathered from the cache in groups of similar length and computed together;
prompts are computed one sequence at a time. Groups and query chunks are bounded, so that scratch
memory does not grow with context length.

Legend: T tokens in step, S sequences in a group, L keys, G query heads per key/value head.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Span, StepLayout
from exo_engine.attention.kv_cache import KVCache
from exo_engine.models.spec import DecoderSpec

# Bounds on scratch: tokens gathered for one decode group, and query-key pairs of one prefill chunk.
_MAX_GATHERED_TOKENS = {"cpu": 2**15, "cuda": 2**18}
_MAX_PAIRS = {"cpu": 2**22, "cuda": 2**26}
# A group's longest context may exceed its shortest by this factor; more is wasted on padding.
_MAX_PADDING = 1.5


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    rows: Tensor  # (S,) int64, indices into the step's tokens
    blocks: Tensor  # (S * M,) int64, the tables one after another, padded with block 0
    mask: Tensor | None  # (S, 1, 1, L) bool, True where a key is visible; None: all of them
    num_keys: int  # L


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    rows: slice  # of the step's tokens
    keys: slice  # positions in the sequence
    mask: Tensor | None  # (queries, L) bool; None: plain causal from the first key


class ReferenceAttention(AttentionBackend):
    """`AttentionBackend` on torch's scaled_dot_product_attention."""

    def __init__(self, spec: DecoderSpec, cache: KVCache) -> None:
        self._windows = spec.windows
        self._num_groups = spec.num_heads // spec.num_kv_heads
        self._scale = spec.head_dim**-0.5
        self._cache = cache
        self._device = cache.keys[0].device
        self._layout: StepLayout | None = None
        # By window: layers with the same window share masks and tables.
        self._decode_groups: dict[int | None, list[_DecodeGroup]] = {}
        self._prefill_chunks: dict[int | None, list[list[_PrefillChunk]]] = {}
        self._prefill_tables: list[Tensor] = []

    def begin(self, layout: StepLayout) -> None:
        """Build tables and masks for each window that some layer has."""
        self._layout = layout
        self._prefill_tables = [
            torch.tensor(span.block_table, device=self._device)
            for span in layout.prefills
            if span.context_len > span.num_tokens
        ]
        for window in set(self._windows):
            self._decode_groups[window] = list(self._group_decodes(layout.decodes, window))
            self._prefill_chunks[window] = [
                list(self._chunk_prefill(span, window)) for span in layout.prefills
            ]

    def scratch_bytes(self) -> int:
        """See `AttentionBackend.scratch_bytes`: gathered keys and values, masks and scores."""
        values = self._cache.values[0]
        per_token = 2 * values.shape[2] * values.shape[3] * values.element_size()
        gathered = _MAX_GATHERED_TOKENS[self._device.type] * per_token
        return max(2 * gathered, gathered + 8 * _MAX_PAIRS[self._device.type])

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `AttentionBackend.attend`."""
        assert self._layout is not None, "begin() comes first"
        window = self._windows[layer]
        self._cache.write(layer, self._layout.slots, keys, values)
        output = torch.empty_like(queries)
        for group in self._decode_groups[window]:
            output[group.rows] = self._decode(layer, group, queries[group.rows])
        tables = iter(self._prefill_tables)
        for span, chunks in zip(self._layout.prefills, self._prefill_chunks[window], strict=True):
            if span.context_len > span.num_tokens:
                table = next(tables)
                span_keys = self._gather(self._cache.keys[layer], table)
                span_values = self._gather(self._cache.values[layer], table)
            else:
                span_rows = slice(span.first, span.first + span.num_tokens)
                span_keys, span_values = keys[span_rows], values[span_rows]
            for chunk in chunks:
                output[chunk.rows] = self._prefill(
                    queries[chunk.rows], span_keys[chunk.keys], span_values[chunk.keys], chunk.mask
                )
        return output

    def _decode(self, layer: int, group: _DecodeGroup, queries: Tensor) -> Tensor:
        """Attend one token of each of S sequences: (S, H, D) to (S, H, D)."""
        num_sequences, num_heads, head_dim = queries.shape
        # The G query heads of one key/value head take the place of G query positions.
        grouped = queries.view(num_sequences, -1, self._num_groups, head_dim)
        # index_select copies whole blocks; indexing with a 2-D table is several times slower.
        shape = (num_sequences, -1, *self._cache.keys[layer].shape[2:])
        keys = self._cache.keys[layer].index_select(0, group.blocks).view(shape)
        values = self._cache.values[layer].index_select(0, group.blocks).view(shape)
        attended = F.scaled_dot_product_attention(
            grouped,
            keys[:, : group.num_keys].transpose(1, 2),
            values[:, : group.num_keys].transpose(1, 2),
            attn_mask=group.mask,
            scale=self._scale,
        )
        return attended.reshape(num_sequences, num_heads, head_dim)

    def _prefill(
        self, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Attend queries (T, H, D) of one sequence over its keys and values (L, Hkv, D)."""
        keys = keys.transpose(0, 1).repeat_interleave(self._num_groups, dim=0)
        values = values.transpose(0, 1).repeat_interleave(self._num_groups, dim=0)
        attended = F.scaled_dot_product_attention(
            queries.transpose(0, 1).unsqueeze(0),
            keys.unsqueeze(0),
            values.unsqueeze(0),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
        )
        return attended.squeeze(0).transpose(0, 1)

    @staticmethod
    def _gather(cache: Tensor, table: Tensor) -> Tensor:
        return cache.index_select(0, table).flatten(0, 1)

    def _group_decodes(self, decodes: Sequence[Span], window: int | None) -> Iterator[_DecodeGroup]:
        """Put sequences of similar visible length together, longest first."""
        block_size = self._cache.block_size
        visible = []
        for row, span in enumerate(decodes):
            first_block = 0 if window is None else max(0, span.context_len - window) // block_size
            num_blocks = -(-span.context_len // block_size) - first_block
            visible.append((num_blocks, first_block, row))
        visible.sort(reverse=True)
        limit = _MAX_GATHERED_TOKENS[self._device.type]
        start = 0
        while start < len(visible):
            longest = visible[start][0]
            stop = start + 1
            while (
                stop < len(visible)
                and (stop + 1 - start) * longest * block_size <= limit
                and visible[stop][0] * _MAX_PADDING + 1 >= longest
            ):
                stop += 1
            yield self._decode_group(decodes, visible[start:stop], window)
            start = stop

    def _decode_group(
        self, decodes: Sequence[Span], members: list[tuple[int, int, int]], window: int | None
    ) -> _DecodeGroup:
        block_size = self._cache.block_size
        longest = members[0][0]
        blocks: list[int] = []
        lengths, hidden = [], []
        for num_blocks, first_block, row in members:
            span = decodes[row]
            table = span.block_table[first_block : first_block + num_blocks]
            blocks.extend(table)
            blocks.extend((0,) * (longest - num_blocks))
            skipped = first_block * block_size
            lengths.append(span.context_len - skipped)
            hidden.append(0 if window is None else max(0, span.context_len - window - skipped))
        num_keys = max(lengths)
        mask = None
        if min(lengths) < num_keys or any(hidden):
            positions = torch.arange(num_keys, device=self._device)
            bounds = torch.tensor([hidden, lengths], device=self._device).unsqueeze(-1)
            mask = ((positions >= bounds[0]) & (positions < bounds[1])).view(
                len(members), 1, 1, num_keys
            )
        return _DecodeGroup(
            rows=torch.tensor([row for _, _, row in members], device=self._device),
            blocks=torch.tensor(blocks, device=self._device),
            mask=mask,
            num_keys=num_keys,
        )

    def _chunk_prefill(self, span: Span, window: int | None) -> Iterator[_PrefillChunk]:
        """Cut a span so that no chunk has more query-key pairs than the bound."""
        offset = span.context_len - span.num_tokens
        size = max(1, _MAX_PAIRS[self._device.type] // span.context_len)
        for start in range(offset, span.context_len, size):
            stop = min(start + size, span.context_len)
            first_key = 0 if window is None else max(0, start - window + 1)
            mask = None
            if start > 0 or (window is not None and window < stop):
                query_positions = torch.arange(start, stop, device=self._device).unsqueeze(1)
                key_positions = torch.arange(first_key, stop, device=self._device)
                mask = key_positions <= query_positions
                if window is not None:
                    mask &= key_positions > query_positions - window
            yield _PrefillChunk(
                rows=slice(span.first + start - offset, span.first + stop - offset),
                keys=slice(first_key, stop),
                mask=mask,
            )
