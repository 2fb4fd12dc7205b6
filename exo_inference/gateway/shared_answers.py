"""Answers that are being made, each for all who ask for it meanwhile: of `/v1/models`, and of `/health`.

Many who ask at once then cost what one does; what is made asks several replicas. Used by `proxy.py` and
`replicas/health.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class SharedAnswers(Generic[Answer]):
    """Answers that are being made, by what they are the answer to.

    Args:
        name: of the tasks that make them.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._making: dict[Hashable, asyncio.Task[Answer]] = {}

    async def get(self, key: Hashable, make: Callable[[], Coroutine[None, None, Answer]]) -> Answer:
        """Return the answer that is being made under this key, or make one; clients may hang up meanwhile."""
        task = self._making.get(key)
        if task is None:
            task = self._making[key] = asyncio.create_task(make(), name=self._name)
            task.add_done_callback(lambda _: self._making.pop(key))
        return await asyncio.shield(task)
