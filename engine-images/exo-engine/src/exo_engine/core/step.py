"""A step as data: what the scheduler sends to a runner, and what comes back.

The runner keeps what it was told of the sequence in each slot, so a `StepFrame` carries differences
only: sequences that are new to their slot, what of each is computed, and the blocks it got since.
Tokens that the runner chose itself are never sent back to it. Both halves are plain numbers and can
cross to another process as bytes.

Legend: S sequences in the step, G cache groups.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgpack  # type: ignore[import-untyped]  # it ships no annotations
import numpy as np
from numpy.typing import NDArray

from exo_engine.core.request import TokenLogprobs
from exo_engine.sampling_params import SamplingParams

Ints = NDArray[np.int32]

_NONE = np.zeros(0, dtype=np.int32)


def _none() -> Ints:
    return _NONE


@dataclass(frozen=True, slots=True, eq=False)
class AddedSequence:
    """A sequence that takes a slot; whatever the slot held before is forgotten."""

    slot: int
    epoch: int
    """Differs for every sequence that a slot has held, and after each preemption."""
    token_ids: Ints
    """All tokens that are known: the prompt, and after a preemption its answer so far."""
    num_prompt_tokens: int
    params: SamplingParams
    sampling_key: int
    """64-bit key of the random numbers it draws."""
    first_seen: int = 0
    """The model sees the sequence from this token on, as if it began there; the block tables begin
    there, too. Only simulations see less than all."""


@dataclass(frozen=True, slots=True, eq=False)
class TableChange:
    """New entries of the block tables, which are equally long in all cache groups."""

    rows: Ints = field(default_factory=_none)
    """Which sequences of the step have any, by their place in it; rising."""
    firsts: Ints = field(default_factory=_none)
    """Where in the sequence's table they begin; what was there from then on is replaced."""
    counts: Ints = field(default_factory=_none)
    blocks: tuple[Ints, ...] = ()
    """Per group, those of all sequences, one after another."""


_NO_CHANGE = TableChange()


@dataclass(frozen=True, slots=True, eq=False)
class StepFrame:
    """One step, as far as a runner must know."""

    slots: Ints
    """(S,): the sequences."""
    starts: Ints
    """(S,): the first token of each to compute, counted from the sequence's own first."""
    num_tokens: Ints
    """(S,): how many of them."""
    num_samples: NDArray[np.uint8]
    """(S,): how many tokens each may yield: 0 in the middle of a prompt, 1 where its last token is
    reached, more where tokens were proposed."""
    added: tuple[AddedSequence, ...] = ()
    removed: Ints = field(default_factory=_none)
    """Slots whose sequences are gone; a slot may be taken again by `added`."""
    tables: TableChange = _NO_CHANGE
    copies: tuple[Ints, ...] = (_NONE,)
    """Per group: block copies to make before anything is written, as source, target, source, …"""
    proposed: Ints = field(default_factory=_none)
    """Tokens that somebody guessed, to be computed behind the known ones and kept as far as the
    model agrees: `num_samples - 1` of each sequence that samples, one after another."""

    @property
    def total_tokens(self) -> int:
        """Tokens in the step."""
        return int(self.num_tokens.sum())


@dataclass(frozen=True, slots=True)
class SequenceResult:
    """What a step gave for one sequence."""

    slot: int
    epoch: int
    token_ids: tuple[int, ...] = ()
    """New tokens, at most as many as the frame allowed."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One per token, where the request asked for them."""
    is_valid: bool = True
    """False when the model produced no finite logits; then there are no tokens."""
    is_ended: bool = False
    """The answer's grammar allows nothing after these tokens, of which there may be none."""
    fault: str | None = None
    """Why its grammar, or its other parameters together, cannot be followed; then there are no tokens."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """Of the prompt tokens that follow the ones just computed, where the request asked for them."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gave, in the order of the frame's sequences."""

    sequences: tuple[SequenceResult, ...] = field(default=())


def pack_frame(frame: StepFrame) -> bytes:
    """Return a frame as bytes; see `unpack_frame`."""
    values = [
        _bytes(frame.slots),
        _bytes(frame.starts),
        _pack_counts(frame.num_tokens),
        _pack_counts(frame.num_samples),
        [_pack_added(each) for each in frame.added],
        _bytes(frame.removed),
        _pack_tables(frame.tables) if frame.tables.rows.size else None,
        [_bytes(each) for each in frame.copies],
        _bytes(frame.proposed),
    ]
    packed: bytes = msgpack.packb(values)
    return packed


def unpack_frame(data: bytes) -> StepFrame:
    """Invert `pack_frame`."""
    values = msgpack.unpackb(data, strict_map_key=False)
    slots, starts, num_tokens, num_samples, added, removed, tables, copies, proposed = values
    return StepFrame(
        slots=_ints(slots),
        starts=_ints(starts),
        num_tokens=_counts(num_tokens, np.int32),
        num_samples=_counts(num_samples, np.uint8),
        added=tuple(_unpack_added(each) for each in added),
        removed=_ints(removed),
        tables=_NO_CHANGE if tables is None else _unpack_tables(*tables),
        copies=tuple(map(_ints, copies)),
        proposed=_ints(proposed),
    )


def pack_result(result: StepResult) -> bytes:
    """Return a result as bytes; see `unpack_result`."""
    values = [
        [
            each.slot,
            each.epoch,
            each.token_ids,
            _pack_logprobs(each.logprobs),
            each.is_valid,
            _pack_logprobs(each.prompt_logprobs),
            each.is_ended,
            each.fault,
        ]
        for each in result.sequences
    ]
    packed: bytes = msgpack.packb(values)
    return packed


def unpack_result(data: bytes) -> StepResult:
    """Invert `pack_result`."""
    return StepResult(
        tuple(
            SequenceResult(
                slot,
                epoch,
                tuple(token_ids),
                None if logprobs is None else _unpack_logprobs(logprobs),
                is_valid,
                is_ended,
                fault,
                _unpack_logprobs(prompt_logprobs),
            )
            for (
                slot,
                epoch,
                token_ids,
                logprobs,
                is_valid,
                prompt_logprobs,
                is_ended,
                fault,
            ) in msgpack.unpackb(data)
        )
    )


def ints(values: Sequence[int]) -> Ints:
    """Return numbers as an array of 32 bits."""
    return np.array(values, dtype=np.int32)


def _bytes(array: NDArray[Any]) -> bytes | None:
    return array.tobytes() if array.size else None


def _ints(data: bytes | None) -> Ints:
    return _NONE if data is None else np.frombuffer(data, dtype=np.int32)


Integer = TypeVar("Integer", np.int32, np.uint8)
_ONES = {np.int32: np.int32(1).tobytes(), np.uint8: np.uint8(1).tobytes()}


def _pack_counts(counts: NDArray[Integer]) -> int | bytes:
    """Return only how many there are where all are 1, as in steps of single tokens."""
    packed = counts.tobytes()
    return len(counts) if packed == _ONES[counts.dtype.type] * len(counts) else packed


def _counts(packed: int | bytes, dtype: type[Integer]) -> NDArray[Integer]:
    # Bytes in any case: numpy's functions of arrays cost more than the whole of a small frame.
    return np.frombuffer(_ONES[dtype] * packed if isinstance(packed, int) else packed, dtype)


def _pack_tables(tables: TableChange) -> list[Any]:
    blocks = b"".join([each.tobytes() for each in tables.blocks]) or None
    rows, firsts = tables.rows.tobytes(), tables.firsts.tobytes()
    return [len(tables.blocks), _pack_counts(tables.counts), rows, firsts, blocks]


def _unpack_tables(
    num_groups: int, counts: int | bytes, rows: bytes, firsts: bytes, blocks: bytes | None
) -> TableChange:
    by_group = _ints(blocks).reshape(num_groups, -1)
    return TableChange(_ints(rows), _ints(firsts), _counts(counts, np.int32), tuple(by_group))


def _pack_added(added: AddedSequence) -> list[Any]:
    # Only what differs from the defaults: a request has twenty parameters and sets two.
    params = {
        each.name: value
        for each in dataclasses.fields(SamplingParams)
        if (value := getattr(added.params, each.name)) != each.default
    }
    return [
        added.slot,
        added.epoch,
        _bytes(added.token_ids),
        added.num_prompt_tokens,
        params,
        added.sampling_key,
        added.first_seen,
    ]


def _unpack_added(values: Sequence[Any]) -> AddedSequence:
    slot, epoch, token_ids, num_prompt_tokens, params, sampling_key, first_seen = values
    return AddedSequence(
        slot,
        epoch,
        _ints(token_ids),
        num_prompt_tokens,
        _unpack_params(params),
        sampling_key,
        first_seen,
    )


def _unpack_params(values: Mapping[str, Any]) -> SamplingParams:
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
    }
    return SamplingParams(**fields)


def _pack_logprobs(entries: Sequence[TokenLogprobs] | None) -> list[Any] | None:
    if entries is None:
        return None
    return [[each.token_id, each.logprob, each.rank, each.top] for each in entries]


def _unpack_logprobs(values: Sequence[Any]) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(token_id, logprob, rank, tuple((each[0], each[1]) for each in top))
        for token_id, logprob, rank, top in values
    )
