"""Answers to one prompt: the first computes it, and the others begin with its blocks.

The scheduler holds the others back here until the first has its first token, then forks its block
tables: each of them computes the prompt's last token alone, to choose a first token of its own.
"""

from __future__ import annotations

from exo_engine.core.block_manager import BlockManager
from exo_engine.core.sequence import Sequence


class Siblings:
    """Sequences that wait for another one to compute the prompt that they share."""

    def __init__(self) -> None:
        self._held: dict[str, list[Sequence]] = {}

    def __len__(self) -> int:
        """How many are held back."""
        return sum(map(len, self._held.values()))

    def names(self) -> set[str]:
        """Return the ids of those that are held back."""
        return {each.sequence_id for held in self._held.values() for each in held}

    def hold(self, sequence: Sequence) -> bool:
        """Hold a sequence back if the one it follows has yet to compute the prompt."""
        leader = sequence.leader
        if leader is None or leader.num_output_tokens > 0:
            return False
        self._held.setdefault(leader.sequence_id, []).append(sequence)
        return True

    def release(self, leader: Sequence) -> list[Sequence]:
        """Return those that need wait no longer, as the leader has begun to answer or is gone."""
        return self._held.pop(leader.sequence_id, [])

    def drop(self, sequence: Sequence) -> bool:
        """Forget a sequence; return whether it was held back."""
        held = self._held.get(sequence.leader.sequence_id, []) if sequence.leader else []
        if sequence not in held:
            return False
        held.remove(sequence)
        return True


def may_follow(leader: Sequence | None, sequence: Sequence) -> bool:
    """Whether a sequence can begin with what another one has computed of its prompt."""
    if leader is None or sequence.prompt_logprobs is not None:
        return False  # log-probabilities of the prompt need every one of its tokens computed
    ours, theirs = sequence.request, leader.request
    return ours.prompt_token_ids == theirs.prompt_token_ids and ours.cache_salt == theirs.cache_salt


def source_of(sequence: Sequence, blocks: BlockManager) -> Sequence | None:
    """Return the sequence to fork, if the one that is followed runs and still has what is needed."""
    leader = sequence.leader
    if leader is None or leader.slot < 0 or leader.num_done < sequence.num_prompt_tokens:
        return None  # after a preemption it computes its prompt anew
    has_all = blocks.can_fork(leader.table_key, sequence.num_prompt_tokens)
    return leader if has_all else None
