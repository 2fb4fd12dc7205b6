"""How many tokens of a sequence a step computes, and which prompts may be under way at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exo_engine.config import SchedulingPolicy
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.scheduled import ScheduledStep
from exo_engine.core.scheduling.step_times import StepTimes
from exo_engine.core.sequence import Sequence


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The settings that bound a step and a request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: SchedulingPolicy = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_tokens: int | None = None
    """Most tokens of one prompt in a step; None: the whole budget."""
    max_partial_prefills: int | None = None
    """Most prompts of which a part is computed; they share a step's budget. None: any number."""
    max_long_partial_prefills: int | None = None
    """Of those, how many may be longer than `long_prefill_tokens`; None: all."""
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()


class TokenBudget:
    """What a step may spend on each sequence.

    Args:
        limits: the settings.
        blocks: which says where chunks should end.
        times: how long steps took, where they should not keep answers in progress waiting.
    """

    def __init__(
        self, limits: SchedulerLimits, blocks: BlockManager, times: StepTimes | None
    ) -> None:
        self.limits = limits
        self._blocks = blocks
        self._times = times
        self._num_prompts = self._num_sharing = 1

    def begin(self, num_prompts: int) -> None:
        """Begin a step in which so many prompts would have a part."""
        self._num_prompts = num_prompts
        self._num_sharing = min(num_prompts, self.limits.max_partial_prefills or 1)

    def affordable(self, sequence: Sequence, step: ScheduledStep) -> int:
        """Return how many of a sequence's tokens the step can compute."""
        left = self.limits.max_num_batched_tokens - step.num_tokens
        if sequence.num_uncomputed > left and not self.limits.enable_chunked_prefill:
            return 0
        if sequence.num_uncomputed > 1:
            left = self._share_of_prompt(sequence, left, step)
        num_tokens = min(sequence.num_uncomputed + len(sequence.proposed), left)
        return self._cut_for_states(sequence, num_tokens)

    def may_be_left(self, running: Iterable[Sequence]) -> bool:
        """Whether one more prompt may stay unfinished after the step."""
        most = self.limits.max_partial_prefills
        return most is None or sum(each.num_uncomputed > 1 for each in running) < most

    def must_wait(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether a prompt is long, and as many long ones as may be are under way."""
        most = self.limits.max_long_partial_prefills
        if most is None or not self._is_long(sequence):
            return False
        return sum(each.num_uncomputed > 1 and self._is_long(each) for each in running) >= most

    def _is_long(self, sequence: Sequence) -> bool:
        threshold = self.limits.long_prefill_tokens
        return threshold is not None and len(sequence.token_ids) > threshold

    def _share_of_prompt(self, sequence: Sequence, left: int, step: ScheduledStep) -> int:
        if self._times is not None and step.num_decode_tokens > 0:
            most = self._most_of_prompts(sequence, step.num_decode_tokens, self._times)
            left = max(0, min(left, most - step.num_prompt_tokens))
        share = -(-left // max(1, self._num_sharing))
        self._num_sharing -= 1
        return min(share, self.limits.long_prefill_tokens or share)

    def _most_of_prompts(self, sequence: Sequence, num_decodes: int, times: StepTimes) -> int:
        """Return how many tokens of prompts a step may have in which this one has some."""
        has_begun = sequence.slot >= 0
        computed_before = sequence.num_cached_tokens if has_begun else sequence.num_computed
        length = sequence.num_tokens - computed_before
        return times.most_prompt_tokens(num_decodes, self._num_prompts, length)

    def _cut_for_states(self, sequence: Sequence, num_tokens: int) -> int:
        """End a chunk where a block ends, and before the last token, which is always computed.

        So the state there can be found by others.
        """
        size, end = self._blocks.block_size, sequence.num_computed + num_tokens
        is_wanted = self._blocks.has_states and self._blocks.caches_prefixes
        beyond = (end - 1) % size + 1 if end == sequence.num_tokens else end % size
        if not is_wanted or not self.limits.enable_chunked_prefill or beyond >= num_tokens:
            return num_tokens
        return num_tokens - beyond
