"""Attention by the Triton kernels: pages in the kernels' own order, read in place.

Pages lie where the cache has them, but each in the order that `kernels/triton/pages.py` says, so nobody else
reads or writes them; copying whole blocks stays the cache's. Single tokens are one launch and what splits
contexts, everything else is a second one.

Legend: T tokens in step, H heads, Hkv key/value heads, D head dim.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from exo_engine.attention.base import AttentionBackend, Rotation
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import CachedLayer, attention_layers
from exo_engine.attention.layout import StepLayout
from exo_engine.attention.prompts import PlannedPrompts, PromptWay
from exo_engine.attention.rehearsal import lengths_up_to, step_of_nobody
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.triton.attention import (
    MAX_HEAD_DIM,
    MAX_LATENT,
    MAX_TAIL,
    Part,
    choose_tiles,
    plan_attention,
    scratch_bytes,
)
from exo_engine.kernels.triton.launch import IS_INTERPRETED, Target
from exo_engine.kernels.triton.pages import Pages, can_hold
from exo_engine.kernels.triton.store import Turn, plan_storing

# What the parts of split contexts may take: sequences are fewer than this many, or contexts are not split.
_MOST_SPLIT_SEQUENCES = 64
_LONGEST_CONTEXT = 2**17


class TritonAttention(AttentionBackend):
    """`AttentionBackend` on `kernels.triton`.

    Args:
        layers: of the model.
        cache: of keys and values.
        is_fixed: whether a token's result has the same bits whatever else is in the step.
        name: that the backend was asked for by.
    """

    can_be_captured = True
    needs_cleared_blocks = False

    def __init__(
        self,
        layers: Sequence[CachedLayer],
        cache: KVCache,
        *,
        is_fixed: bool = False,
        name: str = "triton",
    ) -> None:
        problem = _problem(layers, cache)
        if problem is not None:
            raise ConfigurationError(
                f"attention backend {name!r} {problem}",
                param="attention-backend",
                hint="Leave --attention-backend out, or use reference.",
            )
        self.layers = dict(attention_layers(layers))
        self._cache = cache
        self._is_fixed = self.is_batch_invariant = is_fixed
        self._target = Target.of(cache.device)
        self._pages = {index: self._view_pages(index) for index in self.layers}
        self._reaches = {cache.group_of(index): each.reach for index, each in self.layers.items()}
        self._layout: StepLayout | None = None
        self._parts: dict[int, list[Part]] = {}
        self._way: PromptWay | None = None
        self._least_tokens = 0
        self._ways_tried: dict[str, PromptWay] = {}  # as a start takes memory before it measures
        self._prompts: dict[int, PlannedPrompts] = {}

    @staticmethod
    def can_serve(layers: Sequence[CachedLayer], cache: KVCache) -> bool:
        """Whether there are kernels for all of the layers over this cache, on a GPU."""
        return cache.device.type == "cuda" and _problem(layers, cache) is None

    def compute_prompts(self, way: PromptWay | None, *, least_tokens: int = 0) -> None:
        """Have prompts computed in another way where that can be.

        Args:
            way: computes them; None: the kernels that compute every step.
            least_tokens: that prompts of a step have together; fewer are left to those kernels.
        """
        self._way, self._least_tokens = way, least_tokens
        if way is not None:
            self._ways_tried[way.name] = way

    def why_not(self, layer: int, way: PromptWay) -> str | None:
        """Return why prompts of a layer are not computed in that way; None: they can be."""
        return way.why_not(self.layers[layer], self._cache)

    def begin(self, layout: StepLayout) -> None:
        """See `AttentionBackend.begin`."""
        self._layout = layout
        self._prompts = {}
        num_prompt_tokens = len(layout.slots[0]) - layout.num_decodes
        if layout.uniform_tokens:
            num_prompt_tokens = 0
        if self._way is not None and num_prompt_tokens >= max(self._least_tokens, 2):
            for group, reach in self._reaches.items():
                planned = self._way.plan(layout, group, self._cache.block_size, reach)
                if planned is not None:
                    self._prompts[group] = planned
        self._parts = {
            group: list(_parts(layout, group)) for group in range(len(layout.block_tables))
        }

    def scratch_bytes(self) -> int:
        """See `AttentionBackend.scratch_bytes`."""
        of_prompts = max(
            (
                way.scratch_bytes(layer, self._cache)
                for layer, way in itertools.product(self.layers.values(), self._ways_tried.values())
                if way.why_not(layer, self._cache) is None
            ),
            default=0,
        )
        return of_prompts + max(
            (
                scratch_bytes(
                    layer, _MOST_SPLIT_SEQUENCES, _LONGEST_CONTEXT, is_fixed=self._is_fixed
                )
                for layer in self.layers.values()
            ),
            default=0,
        )

    def compile_ahead(self, max_num_seqs: int, max_context: int) -> None:
        """See `AttentionBackend.compile_ahead`; prompts have one kind, which any prompt compiles."""
        launched = set()
        kinds = {replace(layer, kv_layer=None): i for i, layer in reversed(self.layers.items())}
        counts = range(1, max_num_seqs + 1)
        powers = lengths_up_to(max_context)
        contexts = {min(each + more, max_context) for each in powers for more in (0, 1)}
        device = self._cache.device
        nobody = torch.empty(0, dtype=torch.int32, device=device)
        for (layer, index), num in itertools.product(kinds.items(), counts):
            for context in sorted(contexts):
                part = Part(nobody, nobody, nobody, 0, num, num, context, uniform_tokens=1)
                tiles = choose_tiles(
                    layer,
                    part,
                    self._target,
                    item_bytes=self.dtype.itemsize,
                    stored=self._pages[index].stored,
                    is_fixed=self._is_fixed,
                )
                if (index, tiles) in launched:
                    continue
                launched.add((index, tiles))
                self.begin(step_of_nobody(num, context, num_groups=self.num_groups, device=device))
                sinks = torch.zeros(layer.num_heads, device=device) if layer.has_sinks else None
                queries = torch.zeros(
                    num, layer.num_heads, layer.head_dim, dtype=self.dtype, device=device
                )
                self._attend(index, queries, sinks)

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
        if self.layers[layer].kv_layer is None:
            stored = None if self.layers[layer].num_latent else _joined(values)
            plan_storing(
                _joined(keys), stored, self._pages[layer], self._slots(layer), self._target
            ).run()
        return self._attend(layer, _joined(queries), sinks)

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
        spec = self.layers[layer]
        if spec.kv_layer is not None or spec.has_sinks or spec.num_latent:
            return None
        heads = merged.view(len(merged), -1, spec.head_dim)
        sizes = [spec.num_heads, spec.num_kv_heads, spec.num_kv_heads]
        queries, keys, values = torch.split(heads, sizes, dim=1)
        turned = torch.empty(queries.shape, dtype=merged.dtype, device=merged.device)
        plan_storing(
            keys,
            values,
            self._pages[layer],
            self._slots(layer),
            self._target,
            queries=queries,
            turned=turned,
            turn=Turn(rotation.cosines, rotation.sines, rotation.positions, norms, eps),
        ).run()
        return self._attend(layer, turned, None)

    def _attend(self, layer: int, queries: Tensor, sinks: Tensor | None) -> Tensor:
        spec = self.layers[layer]
        source = layer if spec.kv_layer is None else spec.kv_layer
        shape = (*queries.shape[:2], spec.value_dim)
        output = torch.empty(shape, dtype=queries.dtype, device=queries.device)
        group, way = self._cache.group_of(layer), self._way
        for part in self._parts[group]:
            prompts = None if part.uniform_tokens else self._prompts.get(group)
            if prompts is not None and way is not None and way.why_not(spec, self._cache) is None:
                own = queries[prompts.rows]
                output[prompts.rows] = way.attend(spec, own, self._pages[source], prompts)
                continue
            for launch in plan_attention(
                spec,
                queries,
                self._pages[source],
                part,
                output,
                self._target,
                sinks=None if sinks is None else sinks.float(),
                is_fixed=self._is_fixed,
            ):
                launch.run()
        return output

    @property
    def dtype(self) -> torch.dtype:
        """Of the keys and values that come."""
        return self._cache.dtype

    @property
    def device(self) -> torch.device:
        """Where the cache is."""
        return self._cache.device

    @property
    def block_size(self) -> int:
        """Tokens of a block."""
        return self._cache.block_size

    @property
    def num_groups(self) -> int:
        """How many block tables a sequence has."""
        return self._cache.num_groups

    @property
    def num_blocks(self) -> int:
        """Blocks of the cache."""
        return self._cache.num_blocks

    def fill_blocks(self, blocks: Sequence[int], byte: int) -> None:
        """Fill all bytes of blocks, of every layer."""
        where = torch.tensor(blocks, dtype=torch.int64, device=self._cache.device)
        self._cache.pool.index_fill_(1, where, byte)

    def _slots(self, layer: int) -> Tensor:
        assert self._layout is not None, "begin() comes first"
        return self._layout.slots[self._cache.group_of(layer)]

    def _view_pages(self, layer: int) -> Pages:
        spec = self.layers[layer]
        return Pages.view(
            self._cache.planes(layer),
            self._cache.kv_format,
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            page_size=self._cache.block_size,
        )


def _parts(layout: StepLayout, group: int) -> Iterator[Part]:
    """Yield single tokens, and the rest."""
    num_sequences, num_decodes = len(layout.context_lens), layout.num_decodes
    num_tokens = len(layout.slots[group])
    common = (layout.block_tables[group], layout.query_starts, layout.context_lens)
    if each := layout.uniform_tokens:
        yield Part(
            *common, 0, num_sequences, num_tokens, layout.max_context_len, uniform_tokens=each
        )
        return
    if num_decodes:
        yield Part(*common, 0, num_decodes, num_decodes, layout.max_context_len, uniform_tokens=1)
    if num_sequences > num_decodes:
        rest = (num_sequences - num_decodes, num_tokens - num_decodes)
        yield Part(*common, num_decodes, *rest, layout.max_context_len)


def _joined(states: Tensor) -> Tensor:
    """Return states (T, H, D) whose heads follow one another."""
    is_joined = states.stride(2) == 1 and states.stride(1) == states.shape[2]
    return states if is_joined else states.contiguous()


def _problem(layers: Sequence[CachedLayer], cache: KVCache) -> str | None:
    """Return why it cannot serve these layers, or None."""
    if cache.device.type != "cuda" and not IS_INTERPRETED:
        return f"needs a GPU, and the model is on device {cache.device.type!r}"
    found = dict(attention_layers(layers))
    latents = [layer for layer in found.values() if layer.num_latent]
    for layer in latents:
        if layer.value_dim > MAX_LATENT or layer.head_dim - layer.value_dim > MAX_TAIL:
            return (
                f"has latents of {MAX_LATENT} numbers and {MAX_TAIL} turned ones at most, and this "
                f"model's have {layer.value_dim} and {layer.head_dim - layer.value_dim}"
            )
    largest = max((layer.head_dim for layer in found.values() if not layer.num_latent), default=0)
    if largest > MAX_HEAD_DIM:
        return f"has heads of {MAX_HEAD_DIM} numbers at most, and this model's have {largest}"
    sizes = [layer.num_kv_heads * layer.head_dim for layer in found.values()]
    if not all(can_hold(1, size, cache.block_size) for size in sizes):
        return (
            f"needs pages of a multiple of 4 numbers, found {math.gcd(*sizes) * cache.block_size}"
        )
    return None
