"""Tokens that a step has chosen, from the device to the answers of its sequences.

Legend: N sequences that sample, S sequences with guesses, Q places of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from exo_engine.core.batch import Indices
from exo_engine.core.graphs.device import Fetched
from exo_engine.core.request import NOTHING_LEFT, TokenLogprobs
from exo_engine.core.step import Ints, SequenceResult
from exo_engine.sampling.sampler import Samples
from exo_engine.structured_output.states import Choice as GrammarChoice


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One token for each of some sequences, on the device."""

    members: Indices
    """(N,): the sequences, by their row in the step."""
    places: Ints
    """(N,): which of its tokens each one is."""
    samples: Samples
    fetched: Fetched
    """Their `packed`, on the way to the host."""
    grammars: GrammarChoice | None
    """Of those that have one."""


@dataclass(slots=True)
class Answer:
    """What a step gave for one sequence, while it is put together."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    is_valid: bool = True
    is_ended: bool = False
    fault: str | None = None

    @property
    def is_going_on(self) -> bool:
        """Whether further tokens may be its own."""
        return self.is_valid and not self.is_ended and self.fault is None

    def stops(
        self, grammars: GrammarChoice | None, index: int, is_valid: bool, is_finite: bool
    ) -> bool:
        """Note how the choice at `index` went; return whether its token is none of the answer's.

        `is_valid` and `is_finite`: of it, as in `Samples`.
        """
        if grammars is None or index not in grammars.states:
            self.is_valid = is_finite
            self.fault = NOTHING_LEFT if is_finite and not is_valid else None
            return not is_valid
        self.is_ended = index in grammars.ended
        self.fault = grammars.faults.get(index)
        is_empty = index in grammars.empty
        self.is_valid = is_valid or is_empty or self.fault is not None
        return is_empty or not is_valid or self.fault is not None

    def result(
        self, slot: int, epoch: int, prompt_logprobs: tuple[TokenLogprobs, ...]
    ) -> SequenceResult:
        """Return it as the result of a sequence."""
        is_good = self.is_valid and self.fault is None
        return SequenceResult(
            slot=slot,
            epoch=epoch,
            token_ids=tuple(self.token_ids) if is_good else (),
            logprobs=tuple(self.logprobs) if self.logprobs and is_good else None,
            is_valid=self.is_valid,
            is_ended=self.is_ended,
            fault=self.fault,
            prompt_logprobs=prompt_logprobs,
        )


@dataclass(frozen=True, slots=True)
class Verified:
    """Tokens chosen at all places of sequences with guesses, of which those hold that follow right guesses."""

    first: TokenChoice
    """All of them: (S Q,), of S sequences; its places are those of each one's first token."""
    num_samples: Ints
    """(S,): how many of its Q places are of tokens that a sequence may yield: the last ones."""
    token_ids: Ints
    """Of the step, guesses included."""
    ends: Ints
    """(S,): where each sequence's end among them."""
    tokens_each: int
    """Q."""

    def follow(self) -> Iterator[TokenChoice]:
        """Wait for the tokens; yield the first one of each sequence, then the one behind each right guess."""
        packed = np.array(self.first.fetched(), dtype=np.int64).reshape(-1, self.tokens_each)
        members = self.first.members
        for depth in range(self.tokens_each):
            tokens = packed[members, self.tokens_each - self.num_samples[members] + depth]
            places = self.first.places[members] + depth
            yield replace(self.first, members=members, places=places, fetched=tokens.tolist)
            is_guessed = self.num_samples[members] > depth + 1
            members, tokens = members[is_guessed], tokens[is_guessed]
            guesses = self.ends[members] - self.num_samples[members] + depth + 1
            members = members[self.token_ids[guesses] == tokens]
            if not members.size:
                return
