"""Things that wait, by whose they are: each owner in turn, of one owner in order. Not for several threads."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Turns(Generic[T]):
    """A queue in which nobody waits for more than one thing of each other owner."""

    def __init__(self) -> None:
        self._by_owner: dict[str, deque[T]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_owner)

    def put(self, owner: str, item: T) -> None:
        """Put something behind what its owner has waiting."""
        self._by_owner.setdefault(owner, deque()).append(item)

    def take(self) -> T:
        """Return the first thing of the owner whose turn it is; there is one."""
        owner = next(iter(self._by_owner))
        waiting = self._by_owner.pop(owner)
        item = waiting.popleft()
        if waiting:
            self._by_owner[owner] = waiting  # behind all others
        return item

    def count(self, owner: str) -> int:
        """Return how many things of an owner wait."""
        return len(self._by_owner.get(owner, ()))
