"""Steps of attention with random contexts, held equal to attention written out in float64.

Used by the tests, under Triton's interpreter, and by `gpu_check.py` on a GPU. Every page that no sequence has
is filled with numbers that are none, and so is what lies in a page behind a sequence's end, and all memory that a
step takes for what it gives: what no kernel writes is no number.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from exo_engine.attention.base import Rotation
from exo_engine.attention.cache_plan import plan_cache
from exo_engine.attention.gathering import Gathering, attend_by_torch
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.kv_format import KV_FORMATS
from exo_engine.attention.layer import AttentionLayer, Reach
from exo_engine.attention.layout import StepArrays, StepInputs, make_inputs, pad_tables
from exo_engine.attention.paged_flash import BLOCK_MULTIPLE, PagedFlash, find_varlen_attn
from exo_engine.attention.prompts import PromptWay
from exo_engine.attention.triton import TritonAttention
from exo_engine.kernels.triton.pages import Pages
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2e-2, 2e-2), torch.float16: (4e-3, 4e-3)}
# (context, new tokens): single tokens first, then a chunk, a prompt, four tokens to verify, a late chunk
SPANS = [(1, 1), (9, 1), (130, 1), (3, 3), (20, 20), (70, 4), (100, 33)]

ALLOCATING = {
    getattr(torch.ops.aten, name)
    for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
}


class Poisoned(TorchDispatchMode):
    """Fills what is allocated and not written with NaN; integers with their largest number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operator as PyTorch would."""
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket in ALLOCATING:
            made.fill_(torch.nan if made.is_floating_point() else torch.iinfo(made.dtype).max)
        return made


@dataclass
class Case:
    """One layer, and what is the case around it."""

    layer: AttentionLayer
    dtype: torch.dtype = torch.float32
    kv: str = "float32"
    block: int = 16
    spans: tuple[tuple[int, int], ...] = tuple(SPANS)
    is_fixed: bool = False
    device: torch.device = CPU
    is_uniform: bool = False
    """Whether the backend is told that all have as many new tokens, as graphs tell it."""
    way: PromptWay | None = None
    """In which prompts are computed, where that can be; None: by the kernels."""
    turned: int | None = None
    """Numbers of a head that are turned as the step stores it, by the kernel that does both; None: heads come turned."""
    has_norms: bool = False
    """Whether that kernel normalises them, too."""

    def run(self, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Return what the backend gives for a step, and what is right: (T, H, D)."""
        torch.manual_seed(seed)
        with torch.device(self.device):
            return self._run(seed)

    def _run(self, seed: int) -> tuple[Tensor, Tensor]:
        cache, tables = self.make_cache(seed)
        backend = TritonAttention([self.layer], cache, is_fixed=self.is_fixed)
        if self.way is not None and backend.why_not(0, self.way) is None:
            backend.compute_prompts(self.way)
        heads, kv_heads, dim = self.layer.num_heads, self.layer.num_kv_heads, self.layer.head_dim
        sides = self.layer.num_planes
        histories = [
            torch.randn(sides, context, kv_heads, dim).to(self.dtype) for context, _ in self.spans
        ]
        for history, (context, new), table in zip(histories, self.spans, tables, strict=True):
            positions = torch.arange(context - new)
            slots = torch.tensor(table)[positions // self.block] * self.block
            old = history[:, : context - new]
            write_plainly(backend._pages[0], slots + positions % self.block, old)
        inputs = make_inputs(*self.arrays(tables), block_size=self.block, device=self.device)
        if self.is_uniform:
            each = self.spans[0][1]
            told = replace(inputs.layout, num_decodes=0, uniform_tokens=each)
            inputs = replace(inputs, layout=told)
        backend.begin(inputs.layout)
        queries = torch.randn(len(inputs.positions), heads, dim).to(self.dtype)
        new = torch.cat([h[:, c - n :] for h, (c, n) in zip(histories, self.spans, strict=True)], 1)
        sinks = torch.randn(heads) if self.layer.has_sinks else None
        if self.turned is None:
            with Poisoned():
                found = backend.attend(0, queries, *both(self.layer, new), sinks=sinks)
        else:
            found, queries = self._attend_merged(backend, inputs, queries, new, histories)
        rows = torch.split(queries, [new for _, new in self.spans])
        expected = [
            attend_plainly(self.layer, each, *both(self.layer, as_held(history, self.kv)), sinks)
            for each, history in zip(rows, histories, strict=True)
        ]
        return found, torch.cat(expected)

    def _attend_merged(
        self,
        backend: TritonAttention,
        inputs: StepInputs,
        queries: Tensor,
        new: Tensor,
        histories: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Have heads normalised, turned and stored in one; return the result, and the queries that are right.

        The ends of the histories become the keys that are right.
        """
        dim = self.layer.head_dim
        longest = max(context for context, _ in self.spans)
        angles = torch.randn(longest, (self.turned or 0) // 2)
        norms = (torch.rand(dim) + 0.5, torch.rand(dim) + 0.5) if self.has_norms else None
        if norms is not None:
            norms = (norms[0].to(self.dtype), norms[1].to(self.dtype))
        merged = torch.cat((queries, *new), dim=1).flatten(1)
        rotation = Rotation(angles.cos(), angles.sin(), inputs.positions)
        with Poisoned():
            found = backend.attend_merged(0, merged, rotation, norms=norms, eps=1e-5)
        assert found is not None, "a layer without sinks and latents"
        own = angles.double()[inputs.positions.long()]
        queries, keys = (
            turn_plainly(states, own, None if norms is None else norms[side]).to(self.dtype)
            for side, states in enumerate((queries, new[0]))
        )
        ends = torch.split(keys, [count for _, count in self.spans])
        for history, (context, count), end in zip(histories, self.spans, ends, strict=True):
            history[0, context - count :] = end
        return found, queries

    @property
    def num_blocks(self) -> int:
        """Pages of the cache; some are nobody's."""
        return sum(-(-context // self.block) for context, _ in self.spans) + 3

    def make_cache(self, seed: int) -> tuple[KVCache, list[list[int]]]:
        """Return a cache full of what is no number, and a table of random pages for each sequence."""
        plan = plan_cache([self.layer], self.block, KV_FORMATS[self.kv])
        cache = KVCache(
            [self.layer],
            plan,
            KV_FORMATS[self.kv],
            self.num_blocks,
            dtype=self.dtype,
            device=self.device,
        )
        cache.pool.fill_(255)
        free = list(range(self.num_blocks))
        random.Random(seed).shuffle(free)
        return cache, [
            [free.pop() for _ in range(-(-context // self.block))] for context, _ in self.spans
        ]

    def arrays(self, tables: list[list[int]]) -> tuple[Any, StepArrays]:
        """Describe the step; the place of a page that no token reaches any more names one that holds no number."""
        nobodys = min(set(range(self.num_blocks)) - {page for table in tables for page in table})
        reaches = [self.layer.reach.first_seen(context - new) for context, new in self.spans]
        given_back = [first // self.block for first in reaches]
        tables = [
            [nobodys] * num + table[num:] for num, table in zip(given_back, tables, strict=True)
        ]
        starts = np.cumsum([0, *(new for _, new in self.spans)], dtype=np.int32)
        contexts = np.array([context for context, _ in self.spans], dtype=np.int32)
        step = StepArrays(starts, contexts, (pad_tables(tables),))
        return np.zeros(int(starts[-1]), dtype=np.int32), step

    def check(self, seed: int = 0) -> None:
        """Fail where the backend is not right."""
        found, expected = self.run(seed)
        # The interpreter cuts bfloat16 off where a GPU rounds it.
        is_coarse = torch.bfloat16 in (self.dtype, getattr(torch, self.kv, None))
        rtol, atol = TOLERANCE[torch.bfloat16 if is_coarse else self.dtype]
        torch.testing.assert_close(found.double(), expected, rtol=rtol, atol=atol)


def turn_plainly(states: Tensor, angles: Tensor, weight: Tensor | None) -> Tensor:
    """Heads (T, H, D) normalised, and their first numbers turned by angles (T, R / 2), in float64."""
    states = states.double()
    if weight is not None:
        squares = states.square().mean(dim=-1, keepdim=True)
        states = states / (squares + 1e-5).sqrt() * weight.double()
    half = angles.shape[1]
    first, second, rest = torch.split(states, [half, half, states.shape[-1] - 2 * half], dim=-1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def attend_plainly(
    layer: AttentionLayer,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    sinks: Tensor | None = None,
) -> Tensor:
    """The last tokens of one sequence over all of it, in float64."""
    first = len(keys) - len(queries)
    group = layer.num_heads // layer.num_kv_heads
    keys, values = (each.double().repeat_interleave(group, dim=1) for each in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.double(), keys) * layer.scale
    if layer.soft_cap is not None:
        scores = torch.tanh(scores / layer.soft_cap) * layer.soft_cap
    positions = np.arange(first, len(keys))
    seen_from = torch.tensor(layer.reach.first_seen(positions))[:, None]
    places = torch.arange(len(keys))
    is_seen = (places <= torch.tensor(positions)[:, None]) & (places >= seen_from)
    scores = scores.masked_fill(~is_seen, -torch.inf)
    if sinks is not None:
        column = sinks.double()[:, None, None].expand(-1, len(queries), 1)
        scores = torch.cat((scores, column), dim=-1)
    weights = scores.softmax(dim=-1)[..., : len(keys)]
    return torch.einsum("hqk,khd->qhd", weights, values)


def both(layer: AttentionLayer, states: Tensor) -> tuple[Tensor, Tensor]:
    """Return the keys and the values of what is cached, which of latent attention are in the keys."""
    return states[0], states[0][..., : layer.num_latent] if layer.num_latent else states[1]


def as_held(states: Tensor, kv: str) -> Tensor:
    """What a cache of that type gives back, head by head: (planes, L, Hkv, D) float64."""
    if kv not in ("fp8_e4m3", "int8"):
        return states.to(getattr(torch, kv)).double()
    numbers = states.float()
    scales = numbers.abs().amax(dim=-1, keepdim=True) / (127 if kv == "int8" else 448)
    numbers = numbers / scales
    held = numbers.round() if kv == "int8" else numbers.to(torch.float8_e4m3fn).float()
    return (held * scales).double()


def write_plainly(pages: Pages, slots: Tensor, states: Tensor) -> None:
    """Store keys and values (planes, T, Hkv, D) where the kernels look for them, without a kernel."""
    shape = (-1, pages.num_kv_heads, pages.page_size, pages.head_dim)
    blocks, places = slots // pages.page_size, slots % pages.page_size
    size = pages.num_kv_heads * pages.page_size * pages.head_dim
    sides = ((pages.keys, pages.key_scales), (pages.values, pages.value_scales))
    for (numbers, scales), own in zip(sides, states, strict=False):  # latents have one plane
        if pages.stored != "plain":
            largest = 127 if pages.stored == "int8" else 448
            factors = own.float().abs().amax(dim=-1) / largest
            own = own.float() / factors.unsqueeze(-1)
            own = own.round() if pages.stored == "int8" else own.to(torch.float8_e4m3fn)
            own = own.to(torch.int8) if pages.stored == "int8" else own.view(torch.uint8)
            held = scales[:, size // 4 : (size + size // pages.head_dim * 4) // 4]
            held.view(shape[:-1])[blocks, :, places] = factors
        numbers[:, :size].view(shape)[blocks, :, places] = own.to(numbers.dtype)


def layer(heads: int = 6, kv_heads: int = 2, dim: int = 16, **overrides: Any) -> AttentionLayer:
    """Return a small layer."""
    return AttentionLayer(heads, kv_heads, dim, scale=dim**-0.5, **overrides)


LAYERS = {
    "full": layer(),
    "window": layer(reach=Reach(window=13)),
    "chunk": layer(reach=Reach(chunk=24)),
    "cap": layer(soft_cap=0.7, reach=Reach(window=40)),
    "sinks": layer(has_sinks=True),
    "odd sizes": layer(5, 1, 20),
    "latent": layer(6, 1, 28, num_latent=20),
}


def random_case(seed: int, device: torch.device = CPU) -> Case:
    """Return a case with sizes, reach, number types and spans drawn by `seed`."""
    numbers = random.Random(seed)
    kv_heads = numbers.choice((1, 2, 3))
    reach = numbers.choice(
        (Reach(), Reach(window=numbers.randint(1, 90)), Reach(chunk=numbers.randint(1, 90)))
    )
    each = layer(
        kv_heads * numbers.choice((1, 3, 4, 7)),
        kv_heads,
        4 * numbers.randint(1, 40),
        reach=reach,
        soft_cap=numbers.choice((None, 1.5)),
        has_sinks=numbers.random() < 0.3,
    )
    if numbers.random() < 0.2:
        sizes = (512, 64) if device.type != "cpu" else (4 * numbers.randint(1, 20), 4)
        heads = numbers.choice((1, 5) if device.type == "cpu" else (1, 5, 16, 20, 40, 128))
        each = replace(
            each, num_heads=heads, num_kv_heads=1, head_dim=sum(sizes), num_latent=sizes[0]
        )
    news = sorted(numbers.choice((1, 1, numbers.randint(2, 60))) for _ in range(4))
    is_uniform = numbers.random() < 0.25
    news = [min(news[-1], 8)] * 4 if is_uniform else news
    is_merged = not each.has_sinks and not each.num_latent and numbers.random() < 0.5
    case = Case(
        each,
        numbers.choice(list(TOLERANCE)),
        numbers.choice(list(KV_FORMATS)),
        numbers.choice((1, 4, 16, 20, 32)),
        tuple((new + numbers.randint(0, 200), new) for new in news),
        numbers.random() < 0.5,
        device,
        is_uniform=is_uniform and news[-1] > 1,
        way=Gathering(attend_by_torch) if numbers.random() < 0.3 else None,
        turned=2 * numbers.randint(1, each.head_dim // 2) if is_merged else None,
        has_norms=numbers.random() < 0.5,
    )
    if case.way is None and device.type != "cpu" and find_varlen_attn() and numbers.random() < 0.3:
        paged = replace(case, dtype=torch.bfloat16, kv="bfloat16", block=BLOCK_MULTIPLE)
        return replace(paged, way=PagedFlash(), is_fixed=False)
    return case
