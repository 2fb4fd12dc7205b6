"""Where each running answer is in its grammar, and which tokens may come next.

The runner adds a sequence to its slot, asks for the masks of a step's rows, and tells which tokens were
chosen. A mask is filled in a thread as soon as the token before it is known, so beside the forward
pass; `masks` waits for it. Everything else is called from the runner's thread. Only rows with a grammar
are gone through one by one: each has a matcher of its own.

Legend: N rows of a step, M of them with a grammar, V vocabulary, W = words of a mask.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from exo_engine.errors import InvalidSamplingParams
from exo_engine.kernels.uploads import to_device
from exo_engine.sampling.sampler import RowMask, Samples
from exo_engine.sampling.token_tables import Ints
from exo_engine.structured_output.compiler import Compiler, import_llguidance

if TYPE_CHECKING:
    import llguidance

_EVERYTHING = np.int32(-1)


@dataclass(slots=True, eq=False)
class _State:
    """One answer in its grammar."""

    slot: int
    matcher: llguidance.LLMatcher | None = None
    is_ended: bool = False
    """Nothing may follow, not even the token that ends an answer."""
    fault: str | None = None
    """Why the grammar cannot be followed any more."""

    @property
    def is_open(self) -> bool:
        return not self.is_ended and self.fault is None

    def take(self, token_id: int) -> None:
        """Go on by a token."""
        assert self.matcher is not None, "its mask was filled"
        if not self.matcher.consume_token(token_id):
            self.fault = self.matcher.get_error() or "a token came that the grammar does not allow"
        self.is_ended = self.fault is None and self.matcher.is_stopped()

    def end(self) -> None:
        """Make an end where nothing can be chosen."""
        assert self.matcher is not None, "its mask was filled"
        self.is_ended = self.matcher.is_accepting()
        if not self.is_ended:
            self.fault = (
                "the grammar and the request's other parameters (allowed_token_ids, bad_words, "
                "logit_bias, min_tokens) together leave no token to choose"
            )


@dataclass(slots=True)
class Choice:
    """What was chosen for the rows with a grammar, until the states have gone on by it."""

    states: dict[int, _State]
    """By row of the step."""
    tokens: Tensor
    """(3, N) int64 on the host, perhaps still under way: token, whether it may be taken, whether the
    model gave numbers."""
    event: torch.cuda.Event | None
    is_settled: bool = False
    ended: set[int] = field(default_factory=set)
    """Rows whose answer is complete with this token."""
    empty: set[int] = field(default_factory=set)
    """Rows whose answer was complete before it."""
    faults: dict[int, str] = field(default_factory=dict)


class GrammarStates:
    """States by slot.

    Args:
        num_slots: most sequences at once.
        vocab_size: of the model.
        device: where logits are.
    """

    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self.compiler = Compiler(vocab_size)
        self._states: dict[int, _State] = {}
        self._has_state = np.zeros(num_slots, dtype=bool)
        self._device = device
        self._num_slots = num_slots
        self._masks = np.zeros((0, self.compiler.num_words), np.int32)
        self._unsettled: list[Choice] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="masks")
        self._filling: Future[None] | None = None
        self._executor: Any = None

    def add(self, slot: int, grammar: str, output_ids: Sequence[int]) -> None:
        """Begin to follow a grammar, after the tokens of an answer so far."""
        if not len(self._masks):
            self._masks = np.zeros((self._num_slots, self.compiler.num_words), np.int32)
        state = self._states[slot] = _State(slot)
        self._has_state[slot] = True
        self._filling = self._thread.submit(self._begin, state, grammar, output_ids)

    def remove(self, slot: int) -> None:
        """Forget a slot's grammar."""
        self._states.pop(slot, None)
        self._has_state[slot] = False

    def has_any(self, slots: Ints) -> bool:
        """Whether any of the slots (N,) has a grammar."""
        return bool(self._has_state[slots].any())

    def masks(self, slots: Ints) -> RowMask | None:
        """Return which tokens may follow, of those of the slots (N,) that have a grammar."""
        rows = np.flatnonzero(self._has_state[slots])
        if not rows.size:
            return None
        self.settle()
        if self._filling is not None:
            self._filling.result()
        bits = to_device(self._masks[slots[rows]], self._device)
        is_all = len(rows) == len(slots)
        return RowMask(None if is_all else to_device(rows, self._device), bits)

    def note(self, slots: Ints, samples: Samples) -> Choice | None:
        """Remember what was chosen for the slots (N,); `settle` or `take` goes on by it."""
        rows = np.flatnonzero(self._has_state[slots])
        if not rows.size:
            return None
        owners = zip(rows.tolist(), slots[rows].tolist(), strict=True)
        states = {row: self._states[slot] for row, slot in owners}
        told = torch.stack([samples.tokens, samples.is_valid.long(), samples.is_finite.long()])
        choice = Choice(states, *_begin_copy(told))
        self._unsettled.append(choice)
        return choice

    def settle(self) -> None:
        """Go on by all that was chosen; waits for the device, but for no step begun since."""
        choices, self._unsettled = self._unsettled, []
        for choice in choices:
            self._settle(choice)

    def _settle(self, choice: Choice) -> None:
        if choice.event is not None:
            choice.event.synchronize()
        tokens, valid, finite = choice.tokens.tolist()
        for row, state in choice.states.items():
            if not state.is_open or not finite[row]:
                if state.fault is not None:
                    choice.faults[row] = state.fault
                continue
            if valid[row]:
                state.take(tokens[row])
            else:
                state.end()
                if state.is_ended:
                    choice.empty.add(row)
            if state.is_ended:
                choice.ended.add(row)
            elif state.fault is not None:
                choice.faults[row] = state.fault
        choice.is_settled = True
        states = [each for each in choice.states.values() if self._states.get(each.slot) is each]
        self._filling = self._thread.submit(self._fill, states)

    def _begin(self, state: _State, grammar: str, output_ids: Sequence[int]) -> None:
        try:
            state.matcher = self.compiler.matcher(grammar)
        except InvalidSamplingParams as exc:
            state.fault = exc.message
        for token_id in output_ids:
            if state.is_open:
                state.take(token_id)
        self._fill([state])

    def _fill(self, states: Sequence[_State]) -> None:
        """Write the masks; a state that has come to its end allows everything, for nobody."""
        for state in states:
            if not state.is_open:
                self._masks[state.slot] = _EVERYTHING
        pairs = [(state.matcher, state.slot) for state in states if state.is_open]
        if not pairs:
            return
        if self._executor is None:
            num_threads = max(1, min(8, (os.cpu_count() or 1) // 2))
            self._executor = import_llguidance().LLExecutor(num_threads)
        self._executor.unsafe_compute_mask_ptr(
            pairs, self._masks.ctypes.data, 4 * self._masks.shape[1], len(self._masks)
        )
        for state in states:
            if state.is_open and state.matcher is not None and state.matcher.is_error():
                state.fault = state.matcher.get_error()
                self._masks[state.slot] = _EVERYTHING


def _begin_copy(values: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
    """Copy to the host without waiting; what is submitted later is not waited for, either."""
    if values.device.type != "cuda":
        return values, None
    target = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    target.copy_(values, non_blocking=True)
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return target, event
