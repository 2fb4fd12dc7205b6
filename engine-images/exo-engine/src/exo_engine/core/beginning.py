"""With which blocks a waiting sequence can begin: a sibling's, the prefix cache's, or none."""

from __future__ import annotations

from dataclasses import dataclass

from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.sequence import Sequence
from exo_engine.core.siblings import source_of


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a sequence would begin with, and what it would need beside."""

    source: Sequence | None
    """A sibling whose blocks of the prompt are forked."""
    prefix: list[bytes]
    """Hashes of blocks in the prefix cache."""
    num_found: int
    """Tokens in these blocks."""
    num_computed: int
    """Those that need not be computed; the last one always is, as it yields the next."""
    num_missing: int
    """Blocks to be free beyond those, for all tokens of the sequence: or it would be preempted
    half-way."""
    num_free: int
    """Blocks free once those are held."""

    def open(self, sequence: Sequence, blocks: BlockManager) -> None:
        """Give the sequence its block tables."""
        if self.source is not None:
            blocks.fork(self.source.table_key, sequence.table_key, self.num_found)
        else:
            blocks.open(sequence.table_key, self.prefix, root=sequence.prefix_root)


def find_beginning(sequence: Sequence, blocks: BlockManager, demand: BlockDemand) -> Beginning:
    """Look for what is there of a waiting sequence's keys and values."""
    source = source_of(sequence, blocks)
    prefix: list[bytes] = []
    if source is not None:
        num_found = sequence.num_prompt_tokens
        num_held = blocks.num_forked_blocks(source.table_key, num_found)
    else:
        prefix = _find_prefix(sequence, blocks)
        num_found = len(prefix) * blocks.block_size
        num_held = blocks.num_held_by(prefix)
    num_computed = min(num_found, len(sequence.token_ids) - 1)
    # A sibling may hold more than that, as long as steps on its way reach what lies behind a window.
    num_missing = max(0, demand.most_blocks(len(sequence.token_ids)) - num_held)
    if source is not None or num_computed < num_found:
        num_missing += len(blocks.reaches)  # the last ones found are written to, and copied first
    num_free = blocks.num_free_after(prefix)
    return Beginning(source, prefix, num_found, num_computed, num_missing, num_free)


def _find_prefix(sequence: Sequence, blocks: BlockManager) -> list[bytes]:
    # Log-probabilities of the prompt need every one of its tokens computed.
    if sequence.prompt_logprobs is not None:
        return []
    return blocks.find_prefix(sequence.token_ids, sequence.block_hashes, root=sequence.prefix_root)
