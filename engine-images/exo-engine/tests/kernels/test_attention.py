"""Paged attention is exact attention, and a token's bits do not depend on how it was scheduled."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import cast

import pytest
import torch
from exo_engine.kernels.attention import attend
from exo_engine.kernels.library import Kernels
from exo_engine.kernels.pages import Pages
from torch import Tensor


@dataclass
class Case:
    """Sequences of (context, tokens in the step) over shuffled pages; what is not written is NaN."""

    heads: tuple[int, int]
    head_dim: int
    page_size: int
    sequences: list[tuple[int, int]]
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    has_sinks: bool = False
    stored: torch.dtype = torch.bfloat16
    expected: Tensor = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(7)
        num_heads, num_kv_heads = self.heads
        needed = [-(-context // self.page_size) for context, _ in self.sequences]
        order = torch.randperm(sum(needed) + 3)
        shape = (num_kv_heads, self.head_dim, self.page_size)
        page_bytes = Pages.num_bytes(*shape, self.stored)
        # All ones are NaN as bf16 and as a scale.
        planes = torch.full((2, len(order), page_bytes + 64), 255, dtype=torch.uint8)
        self.keys, self.values = Pages.keys_and_values(*planes, *shape, self.stored)
        self.starts = torch.tensor([0, *accumulate(n for _, n in self.sequences)]).int()
        self.contexts = torch.tensor([context for context, _ in self.sequences]).int()
        self.tables = torch.zeros(len(needed), max(needed), dtype=torch.int32)
        self.queries = torch.randn(int(self.starts[-1]), num_heads, self.head_dim).bfloat16()
        self.sinks = torch.randn(num_heads) if self.has_sinks else None
        expected, used = [], 0
        for index, (context, num_tokens) in enumerate(self.sequences):
            pages = order[used : used + needed[index]]
            used += needed[index]
            self.tables[index, : len(pages)] = pages
            states = torch.randn(2, len(pages) * self.page_size, num_kv_heads, self.head_dim)
            states = states.bfloat16()
            states[:, context:] = math.nan
            kept = self._store(pages, states)
            queries = self.queries[self.starts[index] : self.starts[index + 1]]
            expected.append(self._exact(queries, kept[:, :context], context - num_tokens))
        self.expected = torch.cat(expected)

    def _store(self, pages: Tensor, states: Tensor) -> Tensor:
        """Store keys and values, and return what is kept of them, in float64."""
        numbers, scales = states, torch.ones(1)
        if self.stored == torch.int8:
            scales = states.float().abs().amax(dim=-1, keepdim=True) / 127
            numbers = (states / scales).round()
            for own, of_tokens in zip((self.keys, self.values), scales[..., 0], strict=True):
                own.scales[pages] = of_tokens.unflatten(0, (len(pages), -1)).transpose(1, 2)
        keys, values = numbers.view(2, len(pages), self.page_size, -1, self.head_dim)
        pairs = keys.unflatten(-1, (-1, 2))  # (pages, tokens, heads, D / 2, 2)
        self.keys.numbers[pages] = pairs.permute(0, 2, 3, 1, 4).to(self.stored)
        pairs = values.unflatten(1, (-1, 2))  # (pages, tokens / 2, 2, heads, D)
        self.values.numbers[pages] = pairs.permute(0, 3, 1, 4, 2).to(self.stored)
        return numbers.double() * scales

    def _exact(self, queries: Tensor, states: Tensor, offset: int) -> Tensor:
        group = self.heads[0] // self.heads[1]
        keys, values = states.double().repeat_interleave(group, dim=2)
        logits = torch.einsum("qhd,khd->hqk", queries.double(), keys) * self.head_dim**-0.5
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        positions = torch.arange(offset, offset + len(queries)).unsqueeze(1)
        seen = torch.arange(len(keys)) <= positions
        if self.window is not None:
            seen &= torch.arange(len(keys)) > positions - self.window
        if self.chunk is not None:
            seen &= torch.arange(len(keys)) >= positions // self.chunk * self.chunk
        logits = logits.masked_fill(~seen, -math.inf)
        if self.sinks is not None:
            column = self.sinks.double().view(-1, 1, 1).expand(-1, len(queries), 1)
            logits = torch.cat([logits, column], dim=2)
        weights = logits.softmax(dim=-1)[..., : len(keys)]
        return torch.einsum("hqk,khd->qhd", weights, values)

    def attend(self, kernels: Kernels) -> Tensor:
        """Attend the whole step."""
        return self._call(kernels, self.queries, self.tables, self.starts, self.contexts)

    def attend_alone(self, kernels: Kernels, index: int, token: int) -> Tensor:
        """Attend one token of one sequence, as if the step had nothing else."""
        context, num_tokens = self.sequences[index]
        row = int(self.starts[index]) + token
        contexts = torch.tensor([context - num_tokens + 1 + token]).int()
        queries, table = self.queries[row : row + 1], self.tables[index : index + 1]
        return self._call(kernels, queries, table, torch.tensor([0, 1]).int(), contexts)[0]

    def _call(
        self, kernels: Kernels, queries: Tensor, tables: Tensor, starts: Tensor, contexts: Tensor
    ) -> Tensor:
        return attend(
            kernels,
            queries,
            self.keys,
            self.values,
            tables,
            starts,
            contexts,
            scale=self.head_dim**-0.5,
            window=self.window,
            chunk=self.chunk,
            soft_cap=self.soft_cap,
            sinks=self.sinks,
        )


CASES: dict[str, Callable[[], Case]] = {
    "one token": partial(Case, (4, 4), 16, 16, [(1, 1)]),
    "grouped heads": partial(Case, (9, 3), 64, 16, [(256, 1), (257, 1), (40, 1), (255, 1)]),
    "prompts beside tokens": partial(
        Case, (14, 2), 64, 16, [(300, 1), (40, 40), (600, 5), (17, 1)]
    ),
    "chunk of a prompt": partial(Case, (8, 2), 32, 32, [(530, 30)]),
    "wide heads": partial(Case, (4, 1), 256, 64, [(70, 9), (1, 1)]),
    "odd heads": partial(Case, (3, 3), 80, 16, [(33, 33)]),
    "window": partial(Case, (8, 2), 64, 16, [(700, 1), (90, 60), (5, 5)], window=20),
    "window of one": partial(Case, (2, 1), 16, 16, [(20, 20)], window=1),
    "chunk": partial(Case, (8, 2), 64, 16, [(700, 1), (90, 60), (288, 1), (289, 1)], chunk=288),
    "soft cap": partial(Case, (8, 2), 64, 16, [(100, 1), (40, 40)], soft_cap=5.0),
    "sinks": partial(Case, (8, 2), 64, 16, [(100, 1), (290, 40)], has_sinks=True),
    "many query heads": partial(
        Case, (32, 2), 64, 16, [(100, 3)], window=50, soft_cap=30.0, has_sinks=True
    ),
}


@pytest.fixture(params=[torch.bfloat16, torch.int8], ids=["bf16", "int8"])
def stored(request: pytest.FixtureRequest) -> torch.dtype:
    """How keys and values are stored."""
    return cast("torch.dtype", request.param)


@pytest.mark.parametrize("name", CASES)
def test_it_is_exact_attention(kernels: Kernels, name: str, stored: torch.dtype) -> None:
    case = CASES[name](stored=stored)
    # bf16 has 8 bits, for the weights as for the result; codes of 8 bits are multiplied as they are.
    assert (case.attend(kernels) - case.expected).abs().max() <= 0.012


@pytest.mark.parametrize("name", CASES)
def test_a_token_has_the_same_bits_alone_and_in_any_step(
    kernels: Kernels, name: str, stored: torch.dtype
) -> None:
    case = CASES[name](stored=stored)
    together = case.attend(kernels)
    picks = random.Random(3)
    for index, (_, num_tokens) in enumerate(case.sequences):
        for token in {0, num_tokens - 1, picks.randrange(num_tokens)}:
            row = int(case.starts[index]) + token
            assert torch.equal(case.attend_alone(kernels, index, token), together[row])


def test_numbers_of_all_sizes_have_the_same_bits_alone_and_in_any_step(kernels: Kernels) -> None:
    """Those smaller than normal ones too, which some instructions take for zero."""
    case = Case((2, 2), 80, 16, [(300, 60)])
    for numbers in (case.queries, case.keys.numbers, case.values.numbers):
        numbers *= torch.pow(2.0, torch.randint(-140, 4, numbers.shape)).to(torch.bfloat16)
    together = case.attend(kernels)
    assert together.isfinite().all()
    for token in range(0, 60, 7):
        assert torch.equal(case.attend_alone(kernels, 0, token), together[token])


def test_bits_do_not_depend_on_the_number_of_threads(kernels: Kernels, stored: torch.dtype) -> None:
    case = Case((3, 1), 16, 16, [(3000, 1), (600, 1), (1025, 2)], stored=stored)
    kernels.set_num_threads(1)
    alone = case.attend(kernels)
    for num_threads in (2, 3, 7):
        kernels.set_num_threads(num_threads)
        assert torch.equal(case.attend(kernels), alone)


def test_nan_of_a_sequence_shows_in_it_and_in_no_other(
    kernels: Kernels, stored: torch.dtype
) -> None:
    case = Case((2, 1), 16, 16, [(20, 1), (20, 1)], stored=stored)
    keys = case.keys.scales if stored == torch.int8 else case.keys.numbers
    assert keys is not None
    keys[case.tables[0, 0].item()] = math.nan
    outputs = case.attend(kernels)
    assert outputs[0].isnan().all()
    assert (outputs[1] - case.expected[1]).abs().max() <= 0.012
