"""The blocks themselves: who is free, how often each is held, and what is known to be in them.

`BlockManager` owns one. A block is in one of three states:

    held      ref count >= 1: in the block table of that many sequences
    cached    ref count 0, key known: free to be taken, but still worth something
    empty     ref count 0, no key: free to be taken first
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Seq

from exo_engine.errors import InternalError

Key = tuple[int, bytes]
"""Group, and hash of the block's tokens and all before them."""


class BlockPool:
    """Reference counts, the free list and the prefix cache's map."""

    def __init__(self, num_blocks: int) -> None:
        self._ref_counts = [0] * num_blocks
        # Least recently used first; empty blocks are put in front of cached ones.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._key_of_block: dict[int, Key] = {}
        self._block_of_key: dict[Key, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks that can be found by their key, held or not."""
        return len(self._block_of_key)

    def ref_count(self, block: int) -> int:
        """Return how many tables have a block."""
        return self._ref_counts[block]

    def is_private(self, block: int) -> bool:
        """Whether one table has a block, and nobody else can find it."""
        return self._ref_counts[block] == 1 and block not in self._key_of_block

    def find(self, key: Key) -> int | None:
        """Return the block that is known by a key."""
        return self._block_of_key.get(key)

    def hold(self, block: int) -> None:
        """Count one more holder."""
        if self._ref_counts[block] == 0:
            del self._free[block]
        self._ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Count one holder less; without any the block is free."""
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            self._free[block] = None
            if block not in self._key_of_block:
                self._free.move_to_end(block, last=False)

    def take(self) -> int:
        """Return a free block, now held once and unknown; there must be one."""
        block, _ = self._free.popitem(last=False)
        self.forget(block)
        self._ref_counts[block] = 1
        return block

    def register(self, key: Key, block: int) -> None:
        """Let a block be found by `key`, unless another one is: the first stays findable."""
        if key not in self._block_of_key:
            self._block_of_key[key] = block
            self._key_of_block[block] = key

    def forget(self, block: int) -> None:
        """Let a block be found no more."""
        key = self._key_of_block.pop(block, None)
        if key is not None:
            del self._block_of_key[key]

    def forget_all(self) -> None:
        """Let no block be found any more."""
        self._key_of_block.clear()
        self._block_of_key.clear()

    def check_integrity(self, tables: Seq[Seq[int]]) -> None:
        """Raise InternalError when counts, free list and map disagree with what is held."""
        counts = [0] * len(self._ref_counts)
        for table in tables:
            for block in table:
                counts[block] += 1
        if counts != self._ref_counts:
            raise InternalError(f"reference counts {self._ref_counts} should be {counts}")
        free = {block for block, count in enumerate(counts) if count == 0}
        if free != set(self._free):
            raise InternalError(f"free blocks {sorted(self._free)} should be {sorted(free)}")
        if {key: block for block, key in self._key_of_block.items()} != self._block_of_key:
            raise InternalError("the two directions of the prefix cache disagree")
