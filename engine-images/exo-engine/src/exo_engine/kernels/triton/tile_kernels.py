"""Which rows a program has, where rows of several owners follow one another."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def find_tile(starts, index, low, high, SIZE: tl.constexpr):
    """Return which of the owners [low, high) a tile is of, and which of its rows is the tile's first.

    An owner of n rows is given n // SIZE + 1 tiles or one less: the tile before which it begins is
    known from `starts` alone. A first row that the owner does not have: nothing to do.
    """
    base = low
    origin = tl.load(starts + low)
    while high - low > 1:
        middle = (low + high) // 2
        begins = (tl.load(starts + middle) - origin) // SIZE + middle - base
        is_after = begins <= index
        low = tl.where(is_after, middle, low)
        high = tl.where(is_after, high, middle)
    begins = (tl.load(starts + low) - origin) // SIZE + low - base
    return low, (index - begins) * SIZE
