"""Which texts a step takes: whole ones in order, within its budget, and none twice."""

from __future__ import annotations

import random

import pytest
from exo_engine.core.pooling.queue import PoolingQueue
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.errors import DuplicateRequest


def request(name: str, length: int = 1, priority: int = 0) -> PoolingRequest:
    return PoolingRequest(name, (5,) * length, priority=priority)


def taken(queue: PoolingQueue) -> set[str]:
    return {each.request_id for each in queue.take()}


def test_step_has_whole_texts_in_order_of_arrival() -> None:
    queue = PoolingQueue(10, 8, has_priority=False)
    for name, length in (("a", 4), ("b", 6), ("c", 1), ("d", 20), ("e", 1)):
        queue.add(request(name, length))
    assert [taken(queue) for _ in range(4)] == [{"a", "b"}, {"c"}, {"d"}, {"e"}]
    assert queue.take() == []


def test_number_of_texts_is_bounded() -> None:
    queue = PoolingQueue(100, 2, has_priority=False)
    for name in "abc":
        queue.add(request(name))
    assert taken(queue) == {"a", "b"}


def test_priorities_count_where_they_shall() -> None:
    for has_priority, first in ((True, "b"), (False, "a")):
        queue = PoolingQueue(1, 1, has_priority=has_priority)
        queue.add(request("a", priority=5))
        queue.add(request("b", priority=-5))
        assert taken(queue) == {first}


def test_dropped_text_is_not_computed() -> None:
    queue = PoolingQueue(100, 8, has_priority=False)
    queue.add(request("a"))
    queue.add(request("b"))
    queue.drop("a")
    queue.drop("unknown")
    assert len(queue) == 1
    assert taken(queue) == {"b"}
    assert len(queue) == 0


def test_id_that_waits_is_refused() -> None:
    queue = PoolingQueue(100, 8, has_priority=False)
    queue.add(request("a"))
    with pytest.raises(DuplicateRequest):
        queue.add(request("a"))


def test_text_that_was_dropped_may_come_again() -> None:
    queue = PoolingQueue(100, 8, has_priority=False)
    queue.add(request("a"))
    queue.drop("a")
    queue.add(request("a", 3))
    assert [len(each.token_ids) for each in queue.take()] == [3]
    assert queue.take() == []


def test_dropped_texts_behind_urgent_ones_take_no_room() -> None:
    """They would never come to the front while urgent ones do."""
    queue = PoolingQueue(10, 8, has_priority=True)
    queue.add(request("waits", priority=1))
    for index in range(20_000):
        queue.add(request(f"urgent{index}", 10))
        queue.add(request(f"dropped{index}", priority=2))
        queue.drop(f"dropped{index}")
        assert taken(queue) == {f"urgent{index}"}
    assert len(queue._ranks) < 2000
    assert taken(queue) == {"waits"}


def test_every_text_is_computed_once() -> None:
    numbers = random.Random(3)
    queue = PoolingQueue(50, 6, has_priority=True)
    waiting: set[str] = set()
    for index in range(2000):
        name = str(index)
        queue.add(request(name, numbers.randint(1, 40), numbers.randint(-2, 2)))
        waiting.add(name)
        if numbers.random() < 0.1:
            gone = numbers.choice(sorted(waiting))
            queue.drop(gone)
            waiting.discard(gone)
        if numbers.random() < 0.3:
            step = queue.take()
            lengths = [len(each.token_ids) for each in step]
            assert lengths == sorted(lengths, reverse=True)
            assert len(step) <= 6
            assert sum(lengths) <= 50
            waiting -= {each.request_id for each in step}
            assert len(queue) == len(waiting)
    while step := queue.take():
        waiting -= {each.request_id for each in step}
    assert not waiting
