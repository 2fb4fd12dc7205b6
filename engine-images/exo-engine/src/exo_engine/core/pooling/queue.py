"""Which texts the next step computes: whole ones, of each HTTP request in turn, as many as its budget of tokens takes."""

from __future__ import annotations

import heapq
import itertools
from collections import OrderedDict

from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.errors import DuplicateRequest

_MANY = 1024
"""So many places of groups that were dropped are kept beside those of as many as wait."""
Texts = OrderedDict[str, PoolingRequest]
"""Those of a group that wait, by their ids, in order of arrival."""


class PoolingQueue:
    """Texts that wait for their step.

    Groups take turns, a text each, so that a group of thousands goes before nobody's single one. A group
    that comes, or has had its turn, goes behind all of its priority that are there.

    Args:
        max_tokens: of a step; a longer text has one to itself.
        max_texts: of a step.
        has_priority: whether the requests' priorities count.
    """

    def __init__(self, max_tokens: int, max_texts: int, *, has_priority: bool) -> None:
        self._max_tokens = max_tokens
        self._max_texts = max_texts
        self._has_priority = has_priority
        self._turns = itertools.count()
        self._groups: dict[tuple[int, str], Texts] = {}
        """None is empty."""
        self._ring: list[tuple[int, int, Texts]] = []
        """A heap by priority and turn: each group once, and some that are empty by now."""
        self._keys: dict[str, tuple[int, str]] = {}
        """Of the group of each text."""

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, request: PoolingRequest) -> None:
        """Queue a text.

        Raises:
            DuplicateRequest: its id waits already.
        """
        if request.request_id in self._keys:
            raise DuplicateRequest(f"request {request.request_id!r} is still being served")
        key = (request.priority if self._has_priority else 0, request.group)
        if key not in self._groups:
            self._groups[key] = OrderedDict()
            heapq.heappush(self._ring, (key[0], next(self._turns), self._groups[key]))
        self._groups[key][request.request_id] = request
        self._keys[request.request_id] = key

    def drop(self, request_id: str) -> None:
        """Forget a text; unknown ids are ignored."""
        key = self._keys.pop(request_id, None)
        if key is None:
            return
        del self._groups[key][request_id]
        if not self._groups[key]:
            del self._groups[key]
        if len(self._ring) > 2 * len(self._groups) + _MANY:
            self._ring = [each for each in self._ring if each[2]]
            heapq.heapify(self._ring)

    def take(self) -> list[PoolingRequest]:
        """Return the texts of the next step, the longest first; they wait no more."""
        taken: list[PoolingRequest] = []
        room = self._max_tokens
        while self._ring and len(taken) < self._max_texts:
            priority, _, texts = self._ring[0]
            request = next(iter(texts.values()), None)
            if request is not None and taken and len(request.token_ids) > room:
                break
            heapq.heappop(self._ring)
            if request is None:
                continue
            self.drop(request.request_id)
            if texts:
                heapq.heappush(self._ring, (priority, next(self._turns), texts))
            room -= len(request.token_ids)
            taken.append(request)
        return sorted(taken, key=lambda each: -len(each.token_ids))
