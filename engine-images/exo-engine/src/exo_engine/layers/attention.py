"""Self-attention between its two linear layers: heads, their norms, rotary embedding, the backend.

Legend: T tokens in step, H heads, Hkv key/value heads, D head dim; heads are those of this rank.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.layers.base import Context, Layer, Slot
from exo_engine.layers.rms_norm import RMSNorm, normalise
from exo_engine.layers.rope import rotate
from exo_engine.weight_formats.base import Stored


class Sinks(Layer):
    """A score of each of this rank's heads that takes weight and gives no value."""

    keeps_bits = True

    def __init__(self, context: Context, name: str, num_heads: int) -> None:
        super().__init__(context)
        heads = context.share(num_heads)
        self.weight = context.empty(heads.stop - heads.start)
        load = partial(self._load, heads)
        self.slots[name] = Slot(Stored((num_heads,)), load)

    def _load(self, heads: slice, tensor: Tensor) -> None:
        self.weight.copy_(tensor[heads])

    @property
    def num_bytes(self) -> int:
        """See `Layer.num_bytes`."""
        return self.weight.nbytes


class Attention:
    """Attention of one layer over the paged cache. It has no weights of its own but norms of heads.

    Args:
        context: what the model is made with.
        index: of the layer, by which the backend knows window and cache.
        num_heads: query heads of the whole model.
        num_kv_heads: key/value heads of the whole model; 0: it reads an earlier layer's.
        head_dim: size of one head.
        has_gate: whether each query head brings a gate, which its result passes.
        has_values: whether values come behind the keys; otherwise they are these, before norm and rotation.
        value_norm_eps: values are normalised with it; None: they are not.
        query_norm: of each query head before it is turned, or None.
        key_norm: of each key head.
        sinks: of each query head, or None.
    """

    def __init__(
        self,
        context: Context,
        index: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        has_gate: bool = False,
        has_values: bool = True,
        value_norm_eps: float | None = None,
        query_norm: RMSNorm | None = None,
        key_norm: RMSNorm | None = None,
        sinks: Sinks | None = None,
    ) -> None:
        heads, kv_heads = context.share(num_heads), context.share(num_kv_heads)
        num_kv = kv_heads.stop - kv_heads.start
        self._num_heads = heads.stop - heads.start
        self._split = [self._num_heads * (2 if has_gate else 1), num_kv]
        if has_values:
            self._split.append(num_kv)
        self._value_norm_eps = value_norm_eps
        self._is_plain = has_values and num_kv > 0 and value_norm_eps is None and not has_gate
        self._has_gate = has_gate
        self._sinks = sinks
        self._index = index
        self._head_dim = head_dim
        self._query_norm = query_norm
        self._key_norm = key_norm

    def __call__(self, merged: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Attend a step's tokens.

        Args:
            merged: (T, (H + 2 Hkv) D), with gates 2 H: queries, keys and values after one another.
            rotation: of queries and keys.
            backend: its `begin` has been called for this step.

        Returns:
            (T, H D).
        """
        attended = None
        if self.can_be_merged:
            norms, eps = self.head_norms()
            attended = backend.attend_merged(self._index, merged, rotation, norms=norms, eps=eps)
        if attended is None:
            attended = self._attend(merged, rotation, backend)
        return attended.flatten(1)

    @property
    def can_be_merged(self) -> bool:
        """Whether a backend may do all at once, as far as it can."""
        return self._is_plain and self._sinks is None

    def head_norms(self) -> tuple[tuple[Tensor, Tensor] | None, float]:
        """Return the weights of the norms of query and key heads, if there are any, and their eps."""
        if self._query_norm is None or self._key_norm is None:
            return None, 0.0
        return (self._query_norm.weight, self._key_norm.weight), self._query_norm.eps

    def _attend(self, merged: Tensor, rotation: Rotation, backend: AttentionBackend) -> Tensor:
        """Do in steps what `attend_merged` does in one: (T, H, D)."""
        heads = merged.view(len(merged), -1, self._head_dim)
        queries, keys, *rest = torch.split(heads, self._split, dim=1)
        values = rest[0] if rest else keys
        if self._value_norm_eps is not None:
            values = normalise(values, None, self._value_norm_eps)
        if self._key_norm is not None:
            keys = self._key_norm(keys)
        gates = None
        if self._has_gate:  # each head's gate follows its query
            queries, gates = queries.reshape(len(merged), self._num_heads, -1).chunk(2, dim=-1)
        if self._query_norm is not None:
            queries = self._query_norm(queries)
        queries, keys = rotate(queries, rotation), rotate(keys, rotation)
        sinks = None if self._sinks is None else self._sinks.weight
        attended = backend.attend(self._index, queries, keys, values, sinks=sinks)
        return attended if gates is None else attended * gates.sigmoid()
