"""A bound on bytes that several hold at one time. Called by the gateway and the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ByteBudget:
    """What is left of a number of bytes. Lives on one event loop.

    Attributes:
        left: so many.
    """

    def __init__(self, num_bytes: int) -> None:
        self.left = num_bytes

    @contextmanager
    def share(self) -> Iterator[Callable[[int], bool]]:
        """Yield what takes bytes, unless so many are not left; they come back when the block ends."""
        taken = 0

        def take(num_bytes: int) -> bool:
            nonlocal taken
            if num_bytes > self.left:
                return False
            self.left -= num_bytes
            taken += num_bytes
            return True

        try:
            yield take
        finally:
            self.left += taken
