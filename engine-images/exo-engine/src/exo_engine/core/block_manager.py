"""Owns the KV cache blocks: which sequence has which, in every cache group, and which can be shared.

The scheduler calls it; the runner only reads block tables and executes the copies it orders. It knows
numbers of blocks, never their contents, and imports no torch.

Layers that see equally far back form a group (`attention.cache_plan`), and a sequence has a table per
group. All groups take blocks from one pool. What lies so far back that no later token of the sequence
reaches it is given back while the sequence runs, and its place in the table is `GIVEN_BACK`.

The prefix cache finds a full block by its group and a hash that chains the parent's hash with the
block's tokens, so equal hashes mean equal tokens *from the start of the sequence*. A prefix is found as
far as every group has what the tokens after it reach. Full blocks are shared and never written again;
where a sequence must write into a block that others hold, it gets its own copy first
(`prepare_write`). Design after vLLM's paper (Kwon et al. 2023, §4) and its hash-chained prefix cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from hashlib import blake2b

from exo_engine.attention.layer import Reach
from exo_engine.core.block_pool import BlockPool
from exo_engine.errors import InternalError

ROOT_HASH = b""
GIVEN_BACK = -1


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Keys and values of one block to copy into another before the step writes."""

    source: int
    target: int


@dataclass(slots=True)
class _Holding:
    """What one sequence has."""

    tables: list[list[int]]
    """By group, the blocks in order."""
    num_given_back: list[int]
    """By group, how many leading places of the table are `GIVEN_BACK`."""
    chain: list[bytes] = field(default_factory=list)
    """Hashes of the registered blocks, so that commits are incremental."""
    root: bytes = ROOT_HASH


def prefix_root(salt: str | None = None, adapter: str | None = None) -> bytes:
    """Return what the hashes of a sequence's blocks begin with: sequences that differ in it share none.

    Args:
        salt: of the request, by which its tenant keeps others from telling what it has asked.
        adapter: that changes keys and values, by a name that is never given to another one.
    """
    if salt is None and adapter is None:
        return ROOT_HASH
    return blake2b(repr((salt, adapter)).encode(errors="surrogatepass"), digest_size=16).digest()


def hash_block(parent: bytes, token_ids: Seq[int]) -> bytes:
    """Return the hash of a full block that follows a block with hash `parent`.

    128 bits: two different prefixes meet by accident about once in 2**64 blocks.
    """
    return blake2b(parent + array("q", token_ids).tobytes(), digest_size=16).digest()


class BlockManager:
    """Block tables by sequence and group, and the prefix cache.

    Args:
        num_blocks: in the pool.
        block_size: tokens per block, in every group.
        enable_prefix_caching: whether blocks are found again by what is in them.
        reaches: how far back the tokens of each group see.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool,
        reaches: Seq[Reach] = (Reach(),),
    ) -> None:
        if num_blocks < 1 or block_size < 1:
            raise InternalError(f"cannot manage {num_blocks} blocks of {block_size} tokens")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reaches = tuple(reaches)
        self.caches_prefixes = enable_prefix_caching
        self.has_states = any(reach.is_state for reach in self.reaches)
        """Whether what the last token of a prefix needs is gone once it is computed."""
        self._sees_all = all(reach.sees_all for reach in self.reaches)
        self._pool = BlockPool(num_blocks)
        self._holdings: dict[str, _Holding] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks no sequence holds; some of them may still serve the prefix cache."""
        return self._pool.num_free

    @property
    def num_cached_blocks(self) -> int:
        """Blocks that the prefix cache can find, held or not."""
        return self._pool.num_cached

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many places of a table `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def tables(self, sequence_id: str) -> list[list[int]]:
        """Return the blocks of a sequence in order, by group; do not change the lists."""
        return self._holdings[sequence_id].tables

    def holds(self, sequence_id: str) -> bool:
        """Whether the sequence has block tables."""
        return sequence_id in self._holdings

    def find_prefix(
        self, token_ids: Seq[int], memo: list[bytes] | None = None, *, root: bytes = ROOT_HASH
    ) -> list[bytes]:
        """Return the hashes of the longest run of full blocks that `token_ids` can begin with.

        Args:
            token_ids: a sequence from its start.
            memo: hashes of its first blocks from an earlier call, extended here: a sequence that
                waits for many steps is hashed once. Valid as long as tokens are only appended.
            root: what the chain begins with; only sequences with the same one share blocks.
        """
        if not self.caches_prefixes:
            return []
        memo = [] if memo is None else memo
        count = self._longest_run(token_ids, memo, root)
        return memo[: self._agreed(memo, count)]

    def num_free_after(self, prefix: Seq[bytes]) -> int:
        """Return how many blocks would be free once `prefix` were held."""
        taken = sum(1 for block in self._blocks_of(prefix) if self._pool.ref_count(block) == 0)
        return self.num_free_blocks - taken

    def num_held_by(self, prefix: Seq[bytes]) -> int:
        """Return how many blocks a sequence that begins with `prefix` has from the start."""
        return sum(1 for _ in self._blocks_of(prefix))

    def open(self, sequence_id: str, prefix: Seq[bytes] = (), *, root: bytes = ROOT_HASH) -> None:
        """Begin tables with the cached blocks of `prefix` (from `find_prefix`, unchanged)."""
        self._check_new(sequence_id)
        tables, given_back = [], []
        for group in range(len(self.reaches)):
            first = self._first_needed(group, len(prefix))
            blocks = [self._block_of(group, key) for key in prefix[first:]]
            for block in blocks:
                self._pool.hold(block)
            tables.append([GIVEN_BACK] * first + blocks)
            given_back.append(first)
        self._holdings[sequence_id] = _Holding(tables, given_back, list(prefix), root)

    def can_fork(self, parent_id: str, num_tokens: int) -> bool:
        """Whether a sequence still has what the last of its first `num_tokens` tokens reaches."""
        given_back = self._holdings[parent_id].num_given_back
        return not self.has_states and all(
            count <= reach.first_seen(num_tokens - 1) // self.block_size
            for count, reach in zip(given_back, self.reaches, strict=True)
        )

    def num_forked_blocks(self, parent_id: str, num_tokens: int) -> int:
        """Return how many blocks `fork` with the same arguments shares."""
        holding, length = self._holdings[parent_id], self.blocks_for(num_tokens)
        return sum(length - count for count in holding.num_given_back)

    def fork(self, parent_id: str, child_id: str, num_tokens: int) -> None:
        """Begin `child_id` with the blocks of the first `num_tokens` tokens of `parent_id`.

        They are shared until either one writes. `can_fork` must be true.
        """
        self._check_new(child_id)
        parent, length = self._holdings[parent_id], self.blocks_for(num_tokens)
        child = self._holdings[child_id] = _Holding(
            [table[:length] for table in parent.tables],
            list(parent.num_given_back),
            parent.chain[: num_tokens // self.block_size],
            parent.root,
        )
        for block in _held(child):
            self._pool.hold(block)

    def is_ready(self, sequence_id: str, start: int, end: int) -> bool:
        """Whether [start, end) of a sequence can be written as it is: `prepare_write` would do nothing."""
        return self._is_ready(self._holdings[sequence_id], start, end)

    def num_blocks_to_write(
        self, sequence_id: str, start: int, end: int, *, num_done: int | None = None
    ) -> int:
        """Return how many free blocks `prepare_write` with the same arguments would take.

        That is less what it gives back first; 0 if it gives back more.
        """
        first = start if num_done is None else num_done
        holding = self._holdings[sequence_id]
        if self._is_ready(holding, start, end):
            return 0
        needed = 0
        for group, table in enumerate(holding.tables):
            growth = max(0, self.blocks_for(end) - len(table))
            needed += min(growth, 1) if self.reaches[group].is_state else growth
            needed += len(self._shared_indices(table, start, end))
            for index in self._unreached(holding, group, first):
                needed -= table[index] != GIVEN_BACK and self._pool.ref_count(table[index]) == 1
        return max(0, needed)

    def prepare_write(
        self, sequence_id: str, start: int, end: int, *, num_done: int | None = None
    ) -> list[BlockCopy]:
        """Make token positions [start, end) of a sequence writable in every group.

        Blocks that no token reaches any more are given back, and tables grow.

        Args:
            sequence_id: whose tables.
            start: first position.
            end: one past the last.
            num_done: tokens that no step on its way computes, if that is less than `start`.

        Returns:
            Copies to execute before anything is written, because others hold the old blocks.

        Raises:
            InternalError: too few free blocks; ask `num_blocks_to_write` first.
        """
        if self._is_ready(self._holdings[sequence_id], start, end):
            return []
        needed = self.num_blocks_to_write(sequence_id, start, end, num_done=num_done)
        if needed > self.num_free_blocks:
            raise InternalError(
                f"sequence {sequence_id!r} needs {needed} blocks, {self.num_free_blocks} are free"
            )
        holding = self._holdings[sequence_id]
        for group in range(len(holding.tables)):
            self._give_back(holding, group, start if num_done is None else num_done)
        copies = []
        first = start // self.block_size
        for table, reach in zip(holding.tables, self.reaches, strict=True):
            for index in self._shared_indices(table, start, end):
                source, target = table[index], self._pool.take()
                table[index] = target
                self._pool.release(source)
                copies.append(BlockCopy(source, target))
            while len(table) < self.blocks_for(end):
                # Of the states within a step only the last is kept.
                is_kept = not reach.is_state or len(table) + 1 == self.blocks_for(end)
                table.append(self._pool.take() if is_kept else GIVEN_BACK)
            # What is written anew is registered anew, by the commit that follows.
            for block in table[first:]:
                self._pool.forget(block)
        del holding.chain[first:]
        return copies

    def commit(self, sequence_id: str, token_ids: Seq[int], num_computed: int) -> None:
        """Let the prefix cache find the full blocks among the first `num_computed` tokens."""
        if not self.caches_prefixes:
            return
        holding = self._holdings[sequence_id]
        chain = holding.chain
        for index in range(len(chain), num_computed // self.block_size):
            chain.append(self._hash(chain, token_ids, index, holding.root))
            is_last = (index + 1) * self.block_size == num_computed
            for group, table in enumerate(holding.tables):
                # A state is that of a block's end only where a step has ended there.
                is_whole = is_last or not self.reaches[group].is_state
                if table[index] != GIVEN_BACK and is_whole:
                    self._pool.register((group, chain[index]), table[index])

    def distrust(self, sequence_id: str) -> None:
        """Let nobody find a sequence's blocks again: their contents are broken."""
        for block in _held(self._holdings[sequence_id]):
            self._pool.forget(block)

    def forget_prefixes(self) -> None:
        """Let nobody find what is in any block so far; sequences keep those that they hold."""
        self._pool.forget_all()

    def close(self, sequence_id: str) -> None:
        """Give back all blocks of a sequence; full ones stay findable until they are taken.

        Nothing happens if it has none.
        """
        holding = self._holdings.pop(sequence_id, None)
        if holding is None:
            return
        # The end of a sequence is the least likely to be shared: it is to be taken first.
        for block in reversed(list(_held(holding))):
            self._pool.release(block)

    def check_integrity(self) -> None:
        """Raise InternalError when reference counts, tables, free list and cache disagree."""
        held = []
        for sequence_id, holding in self._holdings.items():
            blocks = list(_held(holding))
            if len(set(blocks)) != len(blocks):
                raise InternalError(
                    f"sequence {sequence_id!r} holds a block twice: {holding.tables}"
                )
            lengths = {len(table) for table in holding.tables}
            if len(lengths) != 1 or len(holding.chain) > min(lengths):
                raise InternalError(f"sequence {sequence_id!r} has more hashes than blocks")
            for table, count, reach in zip(
                holding.tables, holding.num_given_back, self.reaches, strict=True
            ):
                if not reach.is_state and [block == GIVEN_BACK for block in table] != [
                    i < count for i in range(len(table))
                ]:
                    raise InternalError(f"sequence {sequence_id!r} has a gap in its table: {table}")
            held.append(blocks)
        self._pool.check_integrity(held)

    # --- prefixes -----------------------------------------------------------------------------

    def _longest_run(self, token_ids: Seq[int], memo: list[bytes], root: bytes) -> int:
        """Return how many blocks every group that sees all has from the start; hash as many."""
        groups = [group for group, reach in enumerate(self.reaches) if reach.sees_all]
        most = (len(token_ids) - self.has_states) // self.block_size
        for index in range(most):
            if index == len(memo):
                memo.append(self._hash(memo, token_ids, index, root))
            if any(self._pool.find((group, memo[index])) is None for group in groups):
                return index
        return most

    def _longest_reached(self, group: int, memo: Seq[bytes], most: int) -> int:
        """Return the longest prefix of at most `most` blocks behind which `group` has what it needs."""
        count = index = most
        while index > self._first_needed(group, count):
            index -= 1
            if self._pool.find((group, memo[index])) is None:
                count = index
        return count

    def _agreed(self, memo: Seq[bytes], most: int) -> int:
        """Return the longest prefix of at most `most` blocks that every group has."""
        while True:
            count = most
            for group, reach in enumerate(self.reaches):
                if not reach.sees_all:
                    count = self._longest_reached(group, memo, count)
            if count == most:
                return count
            most = count

    def _first_needed(self, group: int, num_blocks: int) -> int:
        """Return the first block that tokens after `num_blocks` blocks reach.

        Or the last token in them: it is computed anew when there is none after it.
        """
        if self.reaches[group].is_state:
            return max(0, num_blocks - 1)
        last = max(0, num_blocks * self.block_size - 1)
        return self.reaches[group].first_seen(last) // self.block_size

    def _blocks_of(self, prefix: Seq[bytes]) -> Iterator[int]:
        for group in range(len(self.reaches)):
            for key in prefix[self._first_needed(group, len(prefix)) :]:
                yield self._block_of(group, key)

    def _block_of(self, group: int, key: bytes) -> int:
        block = self._pool.find((group, key))
        if block is None:
            raise InternalError("a prefix was opened that the cache does not have any more")
        return block

    def _hash(self, chain: Seq[bytes], token_ids: Seq[int], index: int, root: bytes) -> bytes:
        start = index * self.block_size
        parent = chain[index - 1] if index else root
        return hash_block(parent, token_ids[start : start + self.block_size])

    # --- tables -------------------------------------------------------------------------------

    def _check_new(self, sequence_id: str) -> None:
        if sequence_id in self._holdings:
            raise InternalError(f"sequence {sequence_id!r} already has a block table")

    def _is_ready(self, holding: _Holding, start: int, end: int) -> bool:
        """Whether [start, end) lies in one block of the sequence's own: so it is for most tokens."""
        place = start // self.block_size
        if not self._sees_all or (end - 1) // self.block_size != place:
            return False
        if len(holding.chain) > place:
            return False
        for table in holding.tables:  # no generator: this is asked of every sequence in every step
            if place >= len(table) or not self._pool.is_private(table[place]):
                return False
        return True

    def _unreached(self, holding: _Holding, group: int, start: int) -> range:
        """Return the places of held blocks that no token from `start` on sees."""
        first = self.reaches[group].first_seen(start) // self.block_size
        return range(holding.num_given_back[group], min(first, len(holding.tables[group])))

    def _give_back(self, holding: _Holding, group: int, start: int) -> None:
        table = holding.tables[group]
        for index in self._unreached(holding, group, start):
            if table[index] != GIVEN_BACK:
                self._pool.release(table[index])
            table[index] = GIVEN_BACK
            holding.num_given_back[group] = index + 1

    def _shared_indices(self, table: list[int], start: int, end: int) -> list[int]:
        last = min(len(table), self.blocks_for(end))
        return [
            index
            for index in range(start // self.block_size, last)
            if table[index] != GIVEN_BACK and self._pool.ref_count(table[index]) > 1
        ]


def _held(holding: _Holding) -> Iterator[int]:
    """Yield the blocks of all groups, those of the same tokens together."""
    for column in zip(*holding.tables, strict=True):
        yield from (block for block in column if block != GIVEN_BACK)
