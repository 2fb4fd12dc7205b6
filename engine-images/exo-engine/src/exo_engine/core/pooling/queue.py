"""Which texts the next step computes: whole ones, in order, as many as its budget of tokens takes."""

from __future__ import annotations

import heapq
import itertools

from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.errors import DuplicateRequest

_MANY = 1024
"""So many places of dropped texts are kept beside those of as many as wait."""


class PoolingQueue:
    """Texts that wait for their step.

    Args:
        max_tokens: of a step; a longer text has one to itself.
        max_texts: of a step.
        has_priority: whether the requests' priorities count.
    """

    def __init__(self, max_tokens: int, max_texts: int, *, has_priority: bool) -> None:
        self._max_tokens = max_tokens
        self._max_texts = max_texts
        self._has_priority = has_priority
        self._arrivals = itertools.count()
        self._waiting: dict[str, PoolingRequest] = {}
        self._ranks: list[tuple[int, int, str]] = []
        """A heap; some may be gone already."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: PoolingRequest) -> None:
        """Queue a text.

        Raises:
            DuplicateRequest: its id waits already.
        """
        if request.request_id in self._waiting:
            raise DuplicateRequest(f"request {request.request_id!r} is still being served")
        priority = request.priority if self._has_priority else 0
        self._waiting[request.request_id] = request
        heapq.heappush(self._ranks, (priority, next(self._arrivals), request.request_id))

    def drop(self, request_id: str) -> None:
        """Forget a text; unknown ids are ignored."""
        self._waiting.pop(request_id, None)
        if len(self._ranks) > 2 * len(self._waiting) + _MANY:
            self._ranks = [each for each in self._ranks if each[2] in self._waiting]
            heapq.heapify(self._ranks)

    def take(self) -> list[PoolingRequest]:
        """Return the texts of the next step, the longest first; they wait no more."""
        taken: list[PoolingRequest] = []
        room = self._max_tokens
        while self._ranks and len(taken) < self._max_texts:
            request = self._waiting.get(self._ranks[0][2])
            if request is not None and taken and len(request.token_ids) > room:
                break
            heapq.heappop(self._ranks)
            if request is None:
                continue
            del self._waiting[request.request_id]
            room -= len(request.token_ids)
            taken.append(request)
        return sorted(taken, key=lambda each: -len(each.token_ids))
