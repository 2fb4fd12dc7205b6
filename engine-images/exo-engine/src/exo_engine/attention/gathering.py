"""Attention of prompts over keys and values that are gathered from their pages first.

PyTorch's FlashAttention has no block tables, and is faster than a kernel that has them where prompts are long enough to
pay for the copy. Single tokens, and layers that it cannot compute, stay with the Triton kernels. `auto` measures
(`prompt_choice`); `torch` and `flashinfer` gather all prompts of a step that see at most `MAX_GATHERED` tokens
together.

Legend: T tokens in step, L keys of all prompts, H heads, Hkv key/value heads, D head dim, B tokens of a page.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layer import AttentionLayer, CachedLayer, Reach
from exo_engine.attention.layout import StepLayout
from exo_engine.attention.prompts import is_plain
from exo_engine.errors import ConfigurationError
from exo_engine.kernels.uploads import to_device

if TYPE_CHECKING:
    from exo_engine.kernels.triton.pages import Pages

MAX_GATHERED = 2**14
"""Tokens whose keys and values are copied for one step; longer contexts are read in place."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """The sequences of a step that have more than one token in it, of one cache group, and the keys that they see."""

    rows: slice
    """Their tokens in the step."""
    blocks: Tensor
    """(L,) int64: the block of each key, sequence after sequence."""
    places: Tensor
    """(L,) int64: its place there."""
    query_starts: Tensor
    """(S + 1,) int32, from the first of `rows` on."""
    key_starts: Tensor
    """(S + 1,) int32."""
    query_ends: tuple[int, ...]
    """The numbers of `query_starts`."""
    key_ends: tuple[int, ...]


Attend = Callable[[AttentionLayer, Tensor, Tensor, Tensor, Prompts], Tensor]
"""From a layer, queries (T, H, D), keys and values (L, Hkv, D) and where each prompt's are to (T, H, D)."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """See `PromptWay`."""

    compute: Attend
    name: str = "by gathering"

    def why_not(self, layer: AttentionLayer, cache: KVCache) -> str | None:
        """See `PromptWay.why_not`; on a GPU prompts are computed by FlashAttention."""
        is_flash = cache.dtype.itemsize == 2 and layer.head_dim % 8 == 0
        if is_plain(layer) and (is_flash or cache.device.type != "cuda"):
            return None
        return "is for 16-bit models without caps, sinks, chunks and latent attention"

    def plan(self, layout: StepLayout, group: int, block_size: int, reach: Reach) -> Prompts | None:
        """See `PromptWay.plan`."""
        return plan_prompts(layout, group, block_size, reach)

    def attend(
        self, layer: AttentionLayer, queries: Tensor, pages: Pages, planned: Prompts
    ) -> Tensor:
        """See `PromptWay.attend`."""
        keys, values = gather(pages, planned, queries.dtype)
        return self.compute(layer, queries, keys, values, planned)

    def scratch_bytes(self, layer: AttentionLayer, cache: KVCache) -> int:
        """See `PromptWay.scratch_bytes`: of keys and values, and of what they are made from."""
        numbers = 2 * MAX_GATHERED * layer.num_kv_heads * layer.head_dim
        return numbers * (cache.dtype.itemsize + (4 if cache.kv_format.is_scaled else 0))


def plan_prompts(layout: StepLayout, group: int, block_size: int, reach: Reach) -> Prompts | None:
    """Return where the keys are that a step's prompts see; None: there are none, or too many.

    What lies behind the reach of a prompt's first token may be given back, and hold what is no number.

    Args:
        layout: of the step.
        group: of the cache.
        block_size: tokens of a block there.
        reach: of the group's layers.
    """
    contexts = layout.host.context_lens[layout.num_decodes :].astype(np.int64)
    starts = layout.host.query_starts[layout.num_decodes :].astype(np.int64)
    first_seen = reach.first_seen(contexts - np.diff(starts))
    lengths = contexts - first_seen
    total = int(lengths.sum())
    if not 0 < total <= MAX_GATHERED:
        return None
    ends = np.concatenate(([0], np.cumsum(lengths)))
    owners = np.repeat(np.arange(len(lengths)), lengths)
    positions = np.arange(total) - ends[owners] + first_seen[owners]
    table = layout.host.block_tables[group][layout.num_decodes :]
    blocks = table[owners, positions // block_size].astype(np.int64)
    packed = np.concatenate((blocks, positions % block_size, starts - starts[0], ends))
    moved = to_device(packed, layout.query_starts.device)
    sizes = [total, total, len(starts), len(ends)]
    held, places, query_starts, key_starts = torch.split(moved, sizes)
    return Prompts(
        rows=slice(int(starts[0]), int(starts[-1])),
        blocks=held,
        places=places,
        query_starts=query_starts.int(),
        key_starts=key_starts.int(),
        query_ends=tuple((starts - starts[0]).tolist()),
        key_ends=tuple(ends.tolist()),
    )


def gather(pages: Pages, prompts: Prompts, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of prompts, each (L, Hkv, D) of `dtype`."""
    shape = (-1, pages.num_kv_heads, pages.page_size, pages.head_dim)
    size = pages.num_kv_heads * pages.page_size * pages.head_dim
    found = []
    for numbers, scales in ((pages.keys, pages.key_scales), (pages.values, pages.value_scales)):
        held = numbers[:, :size].view(shape)[prompts.blocks, :, prompts.places]
        if pages.stored != "plain":
            if pages.stored == "e4m3":
                held = held.view(torch.float8_e4m3fn)
            behind = scales[:, size // 4 : size // 4 + size // pages.head_dim]
            factors = behind.view(shape[:3])[prompts.blocks, :, prompts.places]
            held = held.float() * factors.unsqueeze(-1)
        found.append(held.to(dtype))
    return found[0], found[1]


def attend_by_torch(
    layer: AttentionLayer, queries: Tensor, keys: Tensor, values: Tensor, prompts: Prompts
) -> Tensor:
    """See `Attend`: all prompts in one FlashAttention; without a GPU one by one."""
    if queries.device.type != "cuda":
        return _one_by_one(layer, queries, keys, values, prompts)
    window = None if layer.reach.window is None else layer.reach.window - 1
    output: Tensor = torch.ops.aten._flash_attention_forward(
        queries,
        keys,
        values,
        prompts.query_starts,
        prompts.key_starts,
        max(stop - start for start, stop in pairwise(prompts.query_ends)),
        max(stop - start for start, stop in pairwise(prompts.key_ends)),
        0.0,
        True,  # causal
        False,
        scale=layer.scale,
        window_size_left=window,
        window_size_right=None if window is None else 0,
    )[0]
    return output


def attend_by_flashinfer(
    layer: AttentionLayer, queries: Tensor, keys: Tensor, values: Tensor, prompts: Prompts
) -> Tensor:
    """See `Attend`; `single_prefill_with_kv_cache` of FlashInfer 0.6, prompt by prompt."""
    single_prefill = importlib.import_module("flashinfer").single_prefill_with_kv_cache
    window = -1 if layer.reach.window is None else layer.reach.window - 1
    return torch.cat(
        [
            single_prefill(
                queries[own],
                keys[seen],
                values[seen],
                causal=True,
                sm_scale=layer.scale,
                window_left=window,
            )
            for own, seen in _each(prompts)
        ]
    )


def check_importable(name: str) -> None:
    """Raise ConfigurationError where a backend's package is not installed."""
    if name == "flashinfer" and importlib.util.find_spec("flashinfer") is None:
        raise ConfigurationError(
            "attention backend 'flashinfer' needs the Python package flashinfer, which is not there",
            param="attention-backend",
            hint="Install flashinfer-python beside the engine, or use torch, triton or auto.",
        )


def make_gathering(
    name: str, layers: Sequence[CachedLayer], cache: KVCache, *, is_fixed: bool
) -> AttentionBackend:
    """Build the backend `torch` or `flashinfer`.

    Raises:
        ConfigurationError: its package is not there, bits are to be fixed, or no layer of the model can be
            computed so.
    """
    from exo_engine.attention.triton import TritonAttention

    check_importable(name)
    attention = [layer for layer in layers if isinstance(layer, AttentionLayer)]
    way = Gathering(_ATTEND[name])
    problems = [way.why_not(layer, cache) for layer in attention]
    problem = None
    if is_fixed:
        problem = "does not keep the bits that --batch-invariant asks for"
    elif all(problems):
        problem = f"{problems[0]}, and no layer is such" if problems else "has no layer to compute"
    if problem is not None:
        raise ConfigurationError(
            f"attention backend {name!r} {problem}",
            param="attention-backend",
            hint="Leave --attention-backend out, or use triton.",
        )
    backend = TritonAttention(layers, cache, name=name)
    backend.compute_prompts(way)
    return backend


_ATTEND: dict[str, Attend] = {"torch": attend_by_torch, "flashinfer": attend_by_flashinfer}


def _each(prompts: Prompts) -> list[tuple[slice, slice]]:
    """Return each prompt's queries and keys."""
    bounds = zip(pairwise(prompts.query_ends), pairwise(prompts.key_ends), strict=True)
    return [(slice(*own), slice(*seen)) for own, seen in bounds]


def _one_by_one(
    layer: AttentionLayer, queries: Tensor, keys: Tensor, values: Tensor, prompts: Prompts
) -> Tensor:
    parts = []
    for own, seen in _each(prompts):
        first = (seen.stop - seen.start) - (own.stop - own.start)
        positions = torch.arange(first, seen.stop - seen.start, device=queries.device)[:, None]
        distance = positions - torch.arange(seen.stop - seen.start, device=queries.device)
        mask = distance >= 0
        if layer.reach.window is not None:
            mask &= distance < layer.reach.window
        q, k, v = (each.transpose(0, 1) for each in (queries[own], keys[seen], values[seen]))
        found = F.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=mask, scale=layer.scale, enable_gqa=True
        )
        parts.append(found[0].transpose(0, 1))
    return torch.cat(parts)
