"""What several tests use one after the other because it is dear to put up; one that fails breaks it for itself alone."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

T = TypeVar("T")


class Stand(Generic[T]):
    """Puts a thing up when it is asked for first, and again after a user of it failed.

    Args:
        put_up: given how often it was put up before; taking it down is the end of its block.
    """

    def __init__(self, put_up: Callable[[int], AbstractContextManager[T]]) -> None:
        self._put_up = put_up
        self._stack = contextlib.ExitStack()
        self._there: list[T] = []
        self._count = 0

    @contextlib.contextmanager
    def lend(self) -> Iterator[T]:
        """Lend the thing; if the block fails, it is taken down."""
        try:
            if not self._there:
                self._count += 1
                self._there = [self._stack.enter_context(self._put_up(self._count - 1))]
            yield self._there[0]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Take it down, if it is there."""
        self._there = []
        self._stack.close()
