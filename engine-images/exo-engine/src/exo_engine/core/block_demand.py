"""How many blocks sequences take at most, and how long one may be. Pure arithmetic.

The block manager, the scheduler and the sizing of the cache ask the same questions here.
"""

from __future__ import annotations

from dataclasses import dataclass

from exo_engine.attention.layer import Reach

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class BlockDemand:
    """Of a cache whose groups see as far back as `reaches` say."""

    reaches: tuple[Reach, ...]
    block_size: int
    step_tokens: int
    """Most tokens of one sequence in a step; what lies behind a window is given back between steps."""

    def most_blocks(self, num_tokens: int) -> int:
        """Return how many blocks a sequence of `num_tokens` holds at once, at most."""
        return sum(self._most_in_group(reach, num_tokens) for reach in self.reaches)

    def longest(self, num_blocks: int) -> int:
        """Return the tokens of the longest sequence that `num_blocks` suffice for."""
        low, high = 0, _MOST_TOKENS
        while low < high:
            middle = (low + high + 1) // 2
            if self.most_blocks(middle) <= num_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _most_in_group(self, reach: Reach, num_tokens: int) -> int:
        whole = -(-num_tokens // self.block_size)
        if reach.sees_all:
            return whole
        if reach.is_state:
            return min(whole, 2)  # one is read, the other written
        span = reach.window or reach.chunk or 0
        # This many positions in a row, wherever they begin.
        reached = span - 1 + self.step_tokens
        return min(whole, (reached + self.block_size - 2) // self.block_size + 1)
