"""Attention by the CPU kernels: keys and values in the kernels' own order, read in place.

Pages lie where the cache has them, but each in the order that `kernels/attention.py` reads, so nobody else
reads or writes them; copying and clearing whole blocks stays the cache's.

Legend: T tokens in step, H heads, Hkv key/value heads, D head dim, P pages, B tokens of a page.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import AttentionLayer, CachedLayer, attention_layers
from exo_engine.attention.layout import StepLayout
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.attention import attend
from exo_engine.kernels.library import AttentionCall, Kernels, RotateCall, kernels_for
from exo_engine.kernels.pages import Pages, can_read, page_shape
from exo_engine.kernels.pointwise import rotate_and_store
from exo_engine.kernels.stack import Stack, StackLayer

# What parts of long contexts, shared among threads, may take before they are put together.
_SCRATCH_BYTES = 2**26


class CpuAttention(AttentionBackend):
    """`AttentionBackend` on `kernels.attention`."""

    is_batch_invariant = True
    needs_cleared_blocks = False  # the kernels read nothing behind a context

    def __init__(self, layers: Sequence[CachedLayer], cache: KVCache) -> None:
        kernels = _kernels_for(layers, cache)
        if kernels is None:
            raise ConfigurationError(
                "attention backend 'cpu' needs the compiled kernels, a model in bfloat16, a cache in "
                "bfloat16 or int8, heads of a multiple of 16 numbers and of 256 at most, and blocks of "
                "a multiple of 16 tokens",
                param="attention-backend",
                hint="Leave --attention-backend out, or use reference.",
            )
        self._kernels: Kernels = kernels
        self._layers = dict(attention_layers(layers))
        self._cache = cache
        self._pages = {index: self._view_pages(index) for index in self._layers}
        self._layout: StepLayout | None = None
        self._stack: Stack | None = None

    @staticmethod
    def can_serve(layers: Sequence[CachedLayer], cache: KVCache) -> bool:
        """Whether this machine has kernels for all of the layers over this cache."""
        return _kernels_for(layers, cache) is not None

    def begin(self, layout: StepLayout) -> None:
        """See `AttentionBackend.begin`."""
        self._layout = layout

    def scratch_bytes(self) -> int:
        """See `AttentionBackend.scratch_bytes`."""
        return _SCRATCH_BYTES

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
        if self._layers[layer].kv_layer is None:
            self._store(layer, keys, values)
        return self._attend(layer, queries.contiguous(), sinks)

    def attend_merged(
        self,
        layer: int,
        merged: Tensor,
        rotation: Rotation,
        *,
        norms: tuple[Tensor, Tensor] | None = None,
        eps: float = 0.0,
    ) -> Tensor | None:
        """See `AttentionBackend.attend_merged`."""
        spec = self._layers[layer]
        if not _is_merged(spec, rotation):
            return None
        queries = rotate_and_store(
            self._kernels,
            merged,
            spec.num_heads,
            *self._pages[layer],
            rotation.cosines,
            rotation.sines,
            rotation.positions,
            self._step.slots[self._cache.group_of(layer)],
            norms=norms,
            eps=eps,
        )
        return self._attend(layer, queries, None)

    def run_layers(
        self, layers: Sequence[StackLayer], states: Tensor, rotation: Rotation
    ) -> Tensor | None:
        """See `AttentionBackend.run_layers`."""
        if self._stack is None:
            if not all(_is_merged(self._layers[layer.index], rotation) for layer in layers):
                return None
            calls = [self._calls(layer) for layer in layers]
            self._stack = Stack(self._kernels, layers, calls)
        step = self._step
        return self._stack.run(
            states,
            (rotation.cosines, rotation.sines, rotation.positions),
            tuple(zip(step.slots, step.block_tables, strict=True)),
            step.query_starts,
            step.context_lens,
        )

    @property
    def _step(self) -> StepLayout:
        assert self._layout is not None, "begin() comes first"
        return self._layout

    def _attend(self, layer: int, queries: Tensor, sinks: Tensor | None) -> Tensor:
        spec, step = self._layers[layer], self._step
        source = layer if spec.kv_layer is None else spec.kv_layer
        return attend(
            self._kernels,
            queries,
            *self._pages[source],
            step.block_tables[self._cache.group_of(layer)],
            step.query_starts,
            step.context_lens,
            scale=spec.scale,
            window=spec.reach.window,
            chunk=spec.reach.chunk,
            soft_cap=spec.soft_cap,
            sinks=None if sinks is None else sinks.float(),
        )

    def _calls(self, layer: StackLayer) -> tuple[RotateCall, AttentionCall, int]:
        """Return how a layer turns heads and attends, whatever the step, and its cache group."""
        spec, pages = self._layers[layer.index], page_shape(*self._pages[layer.index])
        query_weight, key_weight = layer.head_norms or (None, None)
        rotate = RotateCall(
            pages=pages,
            query_weight=None if query_weight is None else query_weight.data_ptr(),
            key_weight=None if key_weight is None else key_weight.data_ptr(),
            heads=spec.num_heads,
            eps=layer.head_eps,
        )
        attention = AttentionCall(
            pages=pages,
            group=spec.num_heads // spec.num_kv_heads,
            window=spec.reach.window or 0,
            chunk=spec.reach.chunk or 0,
            scale=spec.scale,
            soft_cap=spec.soft_cap or 0.0,
        )
        return rotate, attention, self._cache.group_of(layer.index)

    def _store(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Store keys and values (T, Hkv, D), turned already."""
        slots = self._step.slots[self._cache.group_of(layer)]
        block_size = self._cache.block_size
        pages, places = slots // block_size, slots % block_size
        own_keys, own_values = self._pages[layer]
        (keys, key_scales), (values, value_scales) = map(self._cache.encode, (keys, values))
        own_keys.numbers[pages, :, :, places] = keys.reshape(*keys.shape[:2], -1, 2)
        own_values.numbers[pages, :, places // 2, :, places % 2] = values
        for own, scales in ((own_keys, key_scales), (own_values, value_scales)):
            if own.scales is not None and scales is not None:
                own.scales[pages, :, places] = scales

    def _view_pages(self, layer: int) -> tuple[Pages, Pages]:
        """See a layer's pages (P, bytes) as the kernels do."""
        spec = self._layers[layer]
        return Pages.keys_and_values(
            *self._cache.planes(layer),
            spec.num_kv_heads,
            spec.head_dim,
            self._cache.block_size,
            self._cache.stored,
        )


def _is_merged(layer: AttentionLayer, rotation: Rotation) -> bool:
    """Whether `rotate_and_store` does all that this layer does with its heads."""
    turns_all = 2 * rotation.cosines.shape[1] == layer.head_dim
    return turns_all and layer.kv_layer is None and not layer.has_sinks


def _kernels_for(layers: Sequence[CachedLayer], cache: KVCache) -> Kernels | None:
    is_known = cache.dtype == torch.bfloat16 and cache.stored in (torch.bfloat16, torch.int8)
    is_readable = is_known and all(
        can_read(layer.head_dim, cache.block_size) and not layer.num_latent
        for _, layer in attention_layers(layers)
    )
    return kernels_for(torch.bfloat16, cache.device) if is_readable else None
