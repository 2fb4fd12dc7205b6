"""Where a step's tokens belong, in tensors: made once per step, read by every layer.

The runner describes a step in numpy (`StepArrays`); `make_inputs` derives the rest without a loop over
sequences and brings all of it to the device in one transfer.

Legend: T tokens in step, S sequences, M blocks of the longest table, G cache groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.kernels.uploads import to_device

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class StepArrays:
    """A step on the host: tokens of a sequence follow one another, single tokens come first."""

    query_starts: Ints
    """(S + 1,): sequence s has the step's tokens [query_starts[s], query_starts[s + 1])."""
    context_lens: Ints
    """(S,): tokens of each sequence up to and including its last one in the step."""
    block_tables: tuple[Ints, ...]
    """G tables (S, M): of each group, the block of every `block_size` positions. What lies past the
    end of a sequence, or was given back, is never read and may be anything."""


@dataclass(frozen=True, slots=True)
class StepLayout:
    """A step on the device."""

    host: StepArrays
    """The same on the host, for backends that plan there."""
    query_starts: Tensor
    """(S + 1,) int32."""
    context_lens: Tensor
    """(S,) int32."""
    block_tables: tuple[Tensor, ...]
    """G tables (S, M) int32."""
    slots: tuple[Tensor, ...]
    """G times (T,) int64: `block * block_size + offset` of each token."""
    fresh_blocks: Tensor
    """(F,) int64, of all groups: blocks that the step begins and does not fill. To be cleared first:
    what is masked out must be finite all the same."""
    num_decodes: int
    """Leading sequences that have one token in the step."""
    max_query_len: int
    max_context_len: int
    uniform_tokens: int = 0
    """Tokens, more than one, that each sequence has in the step, known to be as many for all; 0: they differ."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model gets of a step."""

    token_ids: Tensor
    """(T,) int32."""
    positions: Tensor
    """(T,) int32, of each token in its sequence."""
    layout: StepLayout


def make_inputs(
    token_ids: Ints,
    arrays: StepArrays,
    *,
    block_size: int,
    device: torch.device,
    finds_fresh: bool = True,
) -> StepInputs:
    """Derive positions and slots, and bring everything to the device.

    Args:
        token_ids: (T,).
        arrays: where they belong; at least one sequence.
        block_size: tokens per block, in every group.
        device: where the model is.
        finds_fresh: whether `fresh_blocks` are wanted; else there are none.
    """
    lengths = np.diff(arrays.query_starts)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    first = arrays.context_lens - arrays.query_starts[1:]
    positions = np.arange(len(token_ids), dtype=np.int32) + first[rows]
    index, offset = np.divmod(positions, block_size)
    slots = [table[rows, index] * block_size + offset for table in arrays.block_tables]
    fresh = _fresh_blocks(arrays, lengths, block_size) if finds_fresh else _NONE
    plain = [token_ids, positions, arrays.query_starts, arrays.context_lens, fresh]
    moved = _to_device([*plain, *slots, *arrays.block_tables], device)
    rest = moved[len(plain) :]
    layout = StepLayout(
        host=arrays,
        query_starts=moved[2],
        context_lens=moved[3],
        fresh_blocks=moved[4].long(),
        slots=tuple(each.long() for each in rest[: len(slots)]),
        block_tables=tuple(rest[len(slots) :]),
        num_decodes=int((lengths == 1).sum()),
        max_query_len=int(lengths.max()),
        max_context_len=int(arrays.context_lens.max()),
    )
    return StepInputs(moved[0], moved[1], layout)


_NONE = np.zeros(0, dtype=np.int32)


def pad_tables(tables: Sequence[Sequence[int]]) -> Ints:
    """Return lists of blocks as one table (S, M), padded with 0."""
    lengths = np.array([len(table) for table in tables])
    padded = np.zeros((len(tables), max(int(lengths.max(initial=0)), 1)), dtype=np.int32)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = [b for table in tables for b in table]
    return padded


def _fresh_blocks(arrays: StepArrays, lengths: Ints, block_size: int) -> Ints:
    """Return the blocks whose first token is in the step and whose last is not."""
    ends = arrays.context_lens
    last = (ends - 1) // block_size
    rows = np.flatnonzero((ends % block_size > 0) & (last * block_size >= ends - lengths))
    return np.concatenate([table[rows, last[rows]] for table in arrays.block_tables])


def _to_device(arrays: list[Ints], device: torch.device) -> list[Tensor]:
    """Copy arrays of int32 in one transfer, keeping their shapes."""
    packed = np.concatenate([array.astype(np.int32, copy=False).ravel() for array in arrays])
    sizes = [array.size for array in arrays]
    moved = torch.split(to_device(packed, device), sizes)
    return [part.view(array.shape) for part, array in zip(moved, arrays, strict=True)]
