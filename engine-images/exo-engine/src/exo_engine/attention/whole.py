"""Attention of sequences that a step has whole: nothing is cached, and tokens may see what follows them.

What models that embed or score compute with. Sequences of one length that follow one another are attended
together, so whoever makes a step sorts them by length.

Legend: T tokens in step, H heads, Hkv key/value heads, D head dim, S sequences of one length, L that length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine import pulse
from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.layer import AttentionLayer
from exo_engine.attention.layout import StepLayout

_MAX_MASKED_PAIRS = 2**26
"""A window's mask has so many queries times keys at most; longer texts are attended in parts."""
_MAX_PAIRS_AT_ONCE = 2**27
"""Queries times keys of all heads in one call on a CPU: a hang is told from a long text by what comes between."""


@dataclass(frozen=True, slots=True)
class _Equals:
    """Sequences of one length, of the step's tokens."""

    rows: slice
    length: int


class WholeAttention(AttentionBackend):
    """`AttentionBackend` without a cache.

    Args:
        layers: of the model; none shares another's keys, has a soft cap or latents.
        is_causal: whether a token sees only itself and those before it.
    """

    def __init__(self, layers: Sequence[AttentionLayer], *, is_causal: bool) -> None:
        self._layers = layers
        self._is_causal = is_causal
        self._groups: list[_Equals] = []

    def begin(self, layout: StepLayout) -> None:
        """See `AttentionBackend.begin`; each sequence must be whole in the step."""
        starts = layout.host.query_starts
        self.begin_whole((starts[1:] - starts[:-1]).tolist())

    def begin_whole(self, lengths: Sequence[int]) -> None:
        """Prepare a step of sequences of these lengths, one after the other."""
        self._groups, row = [], 0
        for length, members in groupby(lengths):
            end = row + length * len(list(members))
            self._groups.append(_Equals(slice(row, end), length))
            row = end

    def scratch_bytes(self) -> int:
        """See `AttentionBackend.scratch_bytes`: a window's mask and its scores."""
        return 5 * _MAX_MASKED_PAIRS

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
        assert sinks is None, "no model that embeds has sinks"
        spec = self._layers[layer]
        output = torch.empty_like(queries)
        for group in self._groups:
            rows = group.rows
            parts = [
                each[rows].view(-1, group.length, *each.shape[1:])
                for each in (queries, keys, values)
            ]
            output[rows] = self._attend(spec, *parts).flatten(0, 1)
        return output

    def _attend(
        self, layer: AttentionLayer, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attend S sequences of L tokens: (S, L, H, D), of queries (S, L, H, D), keys and values (S, L, Hkv, D)."""
        groups = layer.num_heads // layer.num_kv_heads
        if groups > 1:
            keys, values = (each.repeat_interleave(groups, dim=2) for each in (keys, values))
        queries, keys, values = (each.transpose(1, 2) for each in (queries, keys, values))
        window, length = layer.reach.window, queries.shape[2]
        if window is not None and window < length:
            return self._attend_window(layer, window, queries, keys, values).transpose(1, 2)
        is_causal, parts = self._is_causal and length > 1, []
        for heads in _parts(queries):
            found = F.scaled_dot_product_attention(
                queries[:, heads],
                keys[:, heads],
                values[:, heads],
                is_causal=is_causal,
                scale=layer.scale,
            )
            parts.append(found)
            pulse.OWN.beat()
        return (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).transpose(1, 2)

    def _attend_window(
        self, layer: AttentionLayer, window: int, queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """Attend with a window, in parts of bounded size: (S, H, L, D)."""
        length, parts = queries.shape[2], []
        size = max(1, _MAX_MASKED_PAIRS // (length * queries.shape[0] * queries.shape[1]))
        positions = torch.arange(length, device=queries.device)
        for start in range(0, length, size):
            distance = positions[start : start + size, None] - positions
            mask = (distance if self._is_causal else distance.abs()) < window
            if self._is_causal:
                mask &= distance >= 0
            part = queries[:, :, start : start + size]
            parts.append(
                F.scaled_dot_product_attention(
                    part, keys, values, attn_mask=mask, scale=layer.scale
                )
            )
            pulse.OWN.beat()
        return torch.cat(parts, dim=2)


def _parts(queries: Tensor) -> Iterator[slice]:
    """Yield the heads of (S, H, L, D) that are attended in one call: on a CPU so few that it takes about a second."""
    num_texts, num_heads, length, _ = queries.shape
    step = num_heads
    if queries.device.type == "cpu":
        step = max(1, _MAX_PAIRS_AT_ONCE // (num_texts * length * length))
    for first in range(0, num_heads, step):
        yield slice(first, first + step)
