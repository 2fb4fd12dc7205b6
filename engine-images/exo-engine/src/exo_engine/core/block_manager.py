"""Owns the KV cache blocks: who holds which, which are free, and what is known to be in them.

The scheduler calls it; the runner only reads block tables and executes the copies it orders. It knows
numbers of blocks, never their contents, and imports no torch.

A block is in one of three states:

    held      ref count >= 1: in the block table of that many sequences
    cached    ref count 0, hash known: free to be taken, but still worth something
    empty     ref count 0, no hash: free to be taken first

The prefix cache maps the hash of a full block to its number. A hash chains the parent's hash with the
block's tokens, so equal hashes mean equal tokens *from the start of the sequence*. Full blocks are
shared and never written again; where a sequence must write into a block that others hold, it gets
its own copy first (`prepare_write`). Design after vLLM's paper (Kwon et al. 2023, §4) and its
hash-chained prefix cache.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from hashlib import blake2b

from exo_engine.errors import InternalError

ROOT_HASH = b""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Keys and values of one block to copy into another before the step writes."""

    source: int
    target: int


def hash_block(parent: bytes, token_ids: Seq[int]) -> bytes:
    """Return the hash of a full block that follows a block with hash `parent`.

    128 bits: two different prefixes meet by accident about once in 2**64 blocks.
    """
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockManager:
    """Block tables, reference counts, the LRU free list and the prefix cache."""

    def __init__(self, num_blocks: int, block_size: int, *, enable_prefix_caching: bool) -> None:
        if num_blocks < 1 or block_size < 1:
            raise InternalError(f"cannot manage {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._caches_prefixes = enable_prefix_caching
        self._ref_counts = [0] * num_blocks
        # Least recently used first; empty blocks are put in front of cached ones.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._tables: dict[str, list[int]] = {}
        self._hash_of_block: dict[int, bytes] = {}
        self._block_of_hash: dict[bytes, int] = {}
        # Chain of hashes of each sequence's registered blocks, so that commits are incremental.
        self._chains: dict[str, list[bytes]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks no sequence holds; some of them may still serve the prefix cache."""
        return len(self._free)

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that the prefix cache can find, held or not."""
        return len(self._block_of_hash)

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def table(self, sequence_id: str) -> list[int]:
        """Return the blocks of a sequence in order; do not change the list."""
        return self._tables[sequence_id]

    def holds(self, sequence_id: str) -> bool:
        """Whether the sequence has a block table."""
        return sequence_id in self._tables

    def find_prefix(self, token_ids: Seq[int], memo: list[bytes] | None = None) -> list[bytes]:
        """Return the hashes of the longest run of cached full blocks that `token_ids` begins with.

        Args:
            token_ids: a sequence from its start.
            memo: hashes of its first blocks from an earlier call, extended here: a sequence that
                waits for many steps is hashed once. Valid as long as tokens are only appended.
        """
        if not self._caches_prefixes:
            return []
        memo = [] if memo is None else memo
        size = self.block_size
        for index in range(len(token_ids) // size):
            if index == len(memo):
                parent = memo[-1] if memo else ROOT_HASH
                memo.append(hash_block(parent, token_ids[index * size : (index + 1) * size]))
            if memo[index] not in self._block_of_hash:
                return memo[:index]
        return memo[: len(token_ids) // size]

    def num_free_after(self, prefix: Seq[bytes]) -> int:
        """Return how many blocks would be free once `prefix` were held."""
        taken = sum(1 for key in prefix if self._ref_counts[self._block_of_hash[key]] == 0)
        return self.num_free_blocks - taken

    def open(self, sequence_id: str, prefix: Seq[bytes] = ()) -> None:
        """Begin a block table with the cached blocks of `prefix` (from `find_prefix`, unchanged)."""
        if sequence_id in self._tables:
            raise InternalError(f"sequence {sequence_id!r} already has a block table")
        blocks = [self._block_of_hash[key] for key in prefix]
        for block in blocks:
            self._hold(block)
        self._tables[sequence_id] = blocks
        self._chains[sequence_id] = list(prefix)

    def fork(self, parent_id: str, child_id: str) -> None:
        """Begin `child_id` with all blocks of `parent_id`, shared until either one writes."""
        if child_id in self._tables:
            raise InternalError(f"sequence {child_id!r} already has a block table")
        for block in self._tables[parent_id]:
            self._hold(block)
        self._tables[child_id] = list(self._tables[parent_id])
        self._chains[child_id] = list(self._chains[parent_id])

    def num_blocks_to_write(self, sequence_id: str, start: int, end: int) -> int:
        """Return how many free blocks `prepare_write` with the same arguments would take."""
        table = self._tables[sequence_id]
        growth = max(0, self.blocks_for(end) - len(table))
        return growth + len(self._shared_indices(table, start, end))

    def prepare_write(self, sequence_id: str, start: int, end: int) -> list[BlockCopy]:
        """Make token positions [start, end) of a sequence writable, growing its table.

        Returns:
            Copies to execute before anything is written, because others hold the old blocks.

        Raises:
            InternalError: too few free blocks; ask `num_blocks_to_write` first.
        """
        needed = self.num_blocks_to_write(sequence_id, start, end)
        if needed > self.num_free_blocks:
            raise InternalError(
                f"sequence {sequence_id!r} needs {needed} blocks, {self.num_free_blocks} are free"
            )
        table = self._tables[sequence_id]
        copies = []
        for index in self._shared_indices(table, start, end):
            source, target = table[index], self._take()
            table[index] = target
            self._release(source)
            copies.append(BlockCopy(source, target))
        while len(table) < self.blocks_for(end):
            table.append(self._take())
        # What is written anew is registered anew, by the commit that follows.
        first = start // self.block_size
        for block in table[first:]:
            self._forget(block)
        del self._chains[sequence_id][first:]
        return copies

    def commit(self, sequence_id: str, token_ids: Seq[int], num_computed: int) -> None:
        """Let the prefix cache find the full blocks among the first `num_computed` tokens."""
        if not self._caches_prefixes:
            return
        table, chain = self._tables[sequence_id], self._chains[sequence_id]
        size = self.block_size
        for index in range(len(chain), num_computed // size):
            parent = chain[-1] if chain else ROOT_HASH
            key = hash_block(parent, token_ids[index * size : (index + 1) * size])
            chain.append(key)
            # Two sequences may have computed the same block at once: the first one stays findable.
            if key not in self._block_of_hash:
                self._block_of_hash[key] = table[index]
                self._hash_of_block[table[index]] = key

    def distrust(self, sequence_id: str) -> None:
        """Let nobody find a sequence's blocks again: their contents are broken."""
        for block in self._tables[sequence_id]:
            self._forget(block)

    def close(self, sequence_id: str) -> None:
        """Give back all blocks of a sequence; full ones stay findable until they are taken.

        Nothing happens if it has none.
        """
        self._chains.pop(sequence_id, None)
        # The end of a sequence is the least likely to be shared: it is to be taken first.
        for block in reversed(self._tables.pop(sequence_id, [])):
            self._release(block)

    def check_integrity(self) -> None:
        """Raise InternalError when reference counts, tables, free list and cache disagree."""
        counts = [0] * self.num_blocks
        for sequence_id, table in self._tables.items():
            if len(set(table)) != len(table):
                raise InternalError(f"sequence {sequence_id!r} holds a block twice: {table}")
            if len(self._chains[sequence_id]) > len(table):
                raise InternalError(f"sequence {sequence_id!r} has more hashes than blocks")
            for block in table:
                counts[block] += 1
        if counts != self._ref_counts:
            raise InternalError(f"reference counts {self._ref_counts} should be {counts}")
        free = {block for block, count in enumerate(counts) if count == 0}
        if free != set(self._free):
            raise InternalError(f"free blocks {sorted(self._free)} should be {sorted(free)}")
        if {key: block for block, key in self._hash_of_block.items()} != self._block_of_hash:
            raise InternalError("the two directions of the prefix cache disagree")

    def _shared_indices(self, table: list[int], start: int, end: int) -> list[int]:
        last = min(len(table), self.blocks_for(end))
        return [
            index
            for index in range(start // self.block_size, last)
            if self._ref_counts[table[index]] > 1
        ]

    def _hold(self, block: int) -> None:
        if self._ref_counts[block] == 0:
            del self._free[block]
        self._ref_counts[block] += 1

    def _release(self, block: int) -> None:
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            self._free[block] = None
            if block not in self._hash_of_block:
                self._free.move_to_end(block, last=False)

    def _take(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._forget(block)
        self._ref_counts[block] = 1
        return block

    def _forget(self, block: int) -> None:
        key = self._hash_of_block.pop(block, None)
        if key is not None:
            del self._block_of_hash[key]
