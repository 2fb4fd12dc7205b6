"""What sampling knows of the requests that run, by slot: their parameters and what they have seen.

The runner adds a request to its slot, appends what was chosen for it, and removes it. A step's slots
become a `StepPlan`, in which everything is in the order of the step's rows and on the device; as
long as the same slots sample, it is made once. All of it runs under `torch.inference_mode`, as the runner does.

Legend: S slots, N rows of a step, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.kernels.library import chosen_kernels
from exo_engine.kernels.sampling import Filters
from exo_engine.kernels.uploads import to_device
from exo_engine.sampling.draws import LEAST_TEMPERATURE, Ways
from exo_engine.sampling.random_numbers import uniform
from exo_engine.sampling.token_tables import (
    BadWords,
    Ints,
    SeenTokens,
    TokenEntries,
    TokenMasks,
)
from exo_engine.sampling_params import SamplingParams

_NUMBERS = np.dtype(
    [
        ("temperature", np.float64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("log_min_p", np.float32),
        ("repetition", np.float32),
        ("frequency", np.float32),
        ("presence", np.float32),
        ("num_top", np.int64),  # log-probabilities to report; -1: no report
        ("key", np.uint64),
    ]
)


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of the rows that have any; P of them."""

    rows: Tensor
    """(P,) int64"""
    table_rows: Tensor
    """(P,) int64, of `SeenTokens`."""
    slots: Ints
    repetition: Tensor
    """(P, 1) float32, as the others."""
    frequency: Tensor
    presence: Tensor


@dataclass(frozen=True, slots=True)
class Words:
    """Bad words of about the same length of a step's rows; W of them."""

    rows: Tensor
    slots: Tensor
    beginnings: Tensor
    """(W, L) int64; the others (W,)."""
    lasts: Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """Of the rows that are not greedy; D of them."""

    rows: Ints
    """(D,), of the step."""
    index: Tensor | None
    """The same on the device; None: all rows are drawn."""
    slots: Ints
    keys: NDArray[np.uint64]
    parameters: NDArray[np.float64]
    """(4, D): the first rows of a table of `sampling.draws`."""
    on_device: Tensor
    """The same there."""
    ways: Ways


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What a step's rows ask for; None for what no row does."""

    slots: Ints
    held: tuple[Ints, Ints, Ints] | None
    """Row, token id, and the number of tokens before which the token may not come."""
    additions: tuple[Tensor, Tensor, Tensor] | None
    """Row, token id and what is added to its logit."""
    words: tuple[Words, ...] | None
    """Those of a length each."""
    penalties: Penalties | None
    allowed: tuple[Tensor, Tensor] | None
    """Rows, and their rows of `TokenMasks`."""
    draws: Draws | None
    filters: Filters | None
    """The same for all rows, where kernels choose; None where all are greedy."""
    reported: Tensor | None
    """Rows of which log-probabilities are wanted."""
    reported_rows: Ints
    num_top: Ints

    @property
    def is_greedy(self) -> bool:
        """Whether each row takes its likeliest token as it is, and nothing is reported."""
        return not self.adjusts and self.draws is None and self.reported is None

    @property
    def adjusts(self) -> bool:
        """Whether logits of any row are changed before a token is chosen."""
        parts = (self.held, self.additions, self.words, self.penalties, self.allowed)
        return any(part is not None for part in parts)

    @property
    def may_forbid_all(self) -> bool:
        """Whether a row may be left without any token."""
        parts = (self.held, self.words, self.allowed, self.additions)
        return any(part is not None for part in parts)


class SamplingState:
    """Parameters, seeds, counters and seen tokens of up to `num_slots` requests."""

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.vocab_size = vocab_size
        self.device = device
        self.kernels = chosen_kernels() if device.type == "cpu" else None
        """What chooses; None: PyTorch does."""
        self.seen = SeenTokens(num_slots, vocab_size, device)
        self.masks = TokenMasks(num_slots, vocab_size, device)
        self.bad_words = BadWords(num_slots, device)
        self.num_outputs = np.zeros(num_slots, np.int64)
        """(S,) tokens chosen so far: the counter of the random numbers."""
        self._numbers = np.zeros(num_slots, _NUMBERS)
        self._additions = TokenEntries()
        self._held = TokenEntries()
        self._plan: StepPlan | None = None

    def add(
        self,
        slot: int,
        params: SamplingParams,
        *,
        key: int,
        prompt_ids: Seq[int] = (),
        output_ids: Seq[int] = (),
        stop_token_ids: Seq[int] = (),
    ) -> None:
        """Give a free slot to a request.

        Args:
            slot: which one.
            params: of the request.
            key: 64 bits, of its random numbers.
            prompt_ids: its prompt, which penalties see.
            output_ids: what was chosen for it before, if it runs again.
            stop_token_ids: tokens that may not come before `min_tokens`.
        """
        self._plan = None
        self.num_outputs[slot] = len(output_ids)
        self._numbers[slot] = _numbers(params, key)
        if params.logit_bias:
            self._additions.add(slot, list(params.logit_bias), list(params.logit_bias.values()))
        if stop_token_ids and params.min_tokens > len(output_ids):
            held = tuple(set(stop_token_ids))
            self._held.add(slot, held, [params.min_tokens] * len(held))
        if params.uses_penalties:
            self.seen.add(slot, prompt_ids, output_ids)
        if params.allowed_token_ids is not None:
            self.masks.add(slot, params.allowed_token_ids)
        self._add_bad_words(slot, params.bad_words, output_ids)

    def remove(self, slot: int) -> None:
        """Forget the request of a slot."""
        self._plan = None
        for table in (self._additions, self._held, self.seen, self.masks, self.bad_words):
            table.remove(slot)

    def append(self, slots: Ints, tokens: Tensor) -> None:
        """Note the tokens (N,), on the device, that were chosen for slots (N,), each named once."""
        self.num_outputs[slots] += 1
        self.seen.append(slots, tokens)
        self.bad_words.append(slots, tokens)

    def plan(self, slots: Ints) -> StepPlan:
        """Return what these slots ask for, in their order; valid until the next `add` or `remove`."""
        if self._plan is None or not np.array_equal(self._plan.slots, slots):
            self._plan = self._make_plan(slots.copy())
        return self._plan

    def table(self, plan: StepPlan, ahead: Ints | None = None) -> NDArray[np.float64] | None:
        """Return a plan's rows as `draws.choose` takes them; None where all are greedy.

        Args:
            plan: of N rows.
            ahead: (N, P): each row is drawn at P places, and how many draws come before each; None: at one.

        Returns:
            (5, N), or (5, N P), places of a row after one another.
        """
        draws = plan.draws
        if draws is None:
            return None
        num_places = 1 if ahead is None else ahead.shape[1]
        table = np.zeros((5, len(plan.slots), num_places))
        table[:4, draws.rows] = draws.parameters[..., None]
        numbers = self.draw_numbers(draws, None if ahead is None else ahead[draws.rows])
        table[4, draws.rows] = numbers.reshape(-1, num_places)
        return table.reshape(5, -1)

    def draw_numbers(self, draws: Draws, ahead: Ints | None = None) -> NDArray[np.float64]:
        """Return where in [0, 1) draws fall: (D,), or (D, P) where `ahead` (D, P) says how many come before each."""
        keys, counters = draws.keys, self.num_outputs[draws.slots].astype(np.uint64)
        if ahead is not None:
            keys, counters = np.broadcast_arrays(
                keys[:, None], counters[:, None] + ahead.astype(np.uint64)
            )
        return uniform(keys, counters)

    def _add_bad_words(self, slot: int, words: Seq[Seq[int]], output_ids: Seq[int]) -> None:
        single = sorted({word[0] for word in words if len(word) == 1})
        longer = [word for word in words if len(word) > 1]
        if single:
            self._additions.add(slot, single, [-math.inf] * len(single))
        if longer:
            self.bad_words.add(slot, longer, output_ids)

    def _make_plan(self, slots: Ints) -> StepPlan:
        row_of_slot = np.full(len(self.num_outputs), -1, np.int64)
        row_of_slot[slots] = np.arange(len(slots))
        numbers = self._numbers[slots]
        reported = np.flatnonzero(numbers["num_top"] >= 0)
        rows, token_ids, until = self._held.of_rows(row_of_slot)
        draws = self._plan_draws(slots, numbers)
        return StepPlan(
            slots=slots,
            held=(rows, token_ids, until.astype(np.int64)) if len(rows) else None,
            additions=self._plan_additions(row_of_slot),
            words=self._plan_words(row_of_slot),
            penalties=self._plan_penalties(slots, numbers),
            allowed=self._plan_allowed(slots),
            draws=draws,
            filters=None if draws is None else self._plan_filters(numbers),
            reported=self._to_device(reported) if len(reported) else None,
            reported_rows=reported,
            num_top=numbers["num_top"][reported],
        )

    def _plan_additions(self, row_of_slot: Ints) -> tuple[Tensor, Tensor, Tensor] | None:
        rows, token_ids, values = self._additions.of_rows(row_of_slot)
        if not len(rows):
            return None
        return (
            self._to_device(rows),
            self._to_device(token_ids),
            self._to_device(values.astype(np.float32)),
        )

    def _plan_words(self, row_of_slot: Ints) -> tuple[Words, ...] | None:
        found = self.bad_words.of_rows(row_of_slot)
        return tuple(Words(*map(self._to_device, each)) for each in found) or None

    def _plan_penalties(self, slots: Ints, numbers: NDArray[Any]) -> Penalties | None:
        table_rows = self.seen.rows(slots)
        rows = np.flatnonzero(table_rows >= 0)
        if not len(rows):
            return None
        repetition, frequency, presence = (
            self._to_device(numbers[name][rows]).unsqueeze(1)
            for name in ("repetition", "frequency", "presence")
        )
        return Penalties(
            self._to_device(rows),
            self._to_device(table_rows[rows]),
            slots[rows],
            repetition,
            frequency,
            presence,
        )

    def _plan_allowed(self, slots: Ints) -> tuple[Tensor, Tensor] | None:
        table_rows = self.masks.rows(slots)
        rows = np.flatnonzero(table_rows >= 0)
        if not len(rows):
            return None
        return self._to_device(rows), self._to_device(table_rows[rows])

    def _plan_draws(self, slots: Ints, numbers: NDArray[Any]) -> Draws | None:
        rows = np.flatnonzero(numbers["temperature"] > 0)
        if not len(rows):
            return None
        drawn = numbers[rows]
        parameters = np.stack(
            [drawn[name] for name in ("temperature", "log_min_p", "top_k", "top_p")]
        )
        return Draws(
            rows=rows,
            index=None if len(rows) == len(slots) else self._to_device(rows),
            slots=slots[rows],
            keys=drawn["key"].copy(),
            parameters=parameters.astype(np.float64),
            on_device=self._to_device(parameters.astype(np.float64)),
            ways=Ways.of(drawn["top_k"], drawn["top_p"], self.vocab_size),
        )

    def _plan_filters(self, numbers: NDArray[Any]) -> Filters | None:
        if self.kernels is None:
            return None
        temperatures = numbers["temperature"].astype(np.float32)
        temperatures[temperatures > 0] = temperatures[temperatures > 0].clip(LEAST_TEMPERATURE)
        return Filters(
            temperatures=self._to_device(temperatures),
            log_min_ps=self._to_device(numbers["log_min_p"]),
            top_ps=self._to_device(numbers["top_p"]),
            top_ks=self._to_device(numbers["top_k"]),
        )

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return to_device(values, self.device)


def _numbers(params: SamplingParams, key: int) -> tuple[float, ...]:
    """Return the fields of `_NUMBERS`."""
    return (
        params.temperature,
        params.top_k,
        params.top_p,
        math.log(params.min_p) if params.min_p > 0.0 else -math.inf,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        -1 if params.logprobs is None else params.logprobs,
        key,
    )
