"""Which texts a step takes: whole ones of each group in turn, within its budget, and none twice."""

from __future__ import annotations

import random

import pytest
from exo_engine.core.pooling.queue import PoolingQueue
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.errors import DuplicateRequest


def request(name: str, length: int = 1, priority: int = 0, group: str = "") -> PoolingRequest:
    return PoolingRequest(name, (5,) * length, priority=priority, group=group)


def taken(queue: PoolingQueue) -> set[str]:
    return {each.request_id for each in queue.take()}


def test_step_has_whole_texts_in_order_of_arrival() -> None:
    queue = PoolingQueue(10, 8, has_priority=False)
    for name, length in (("a", 4), ("b", 6), ("c", 1), ("d", 20), ("e", 1)):
        queue.add(request(name, length))
    assert [taken(queue) for _ in range(4)] == [{"a", "b"}, {"c"}, {"d"}, {"e"}]
    assert queue.take() == []


def test_short_group_is_taken_beside_a_huge_one() -> None:
    queue = PoolingQueue(1000, 8, has_priority=False)
    for index in range(2048):
        queue.add(request(f"huge-{index}", 500, group="huge"))
    assert taken(queue) == {"huge-0", "huge-1"}
    queue.add(request("short-0", 5, group="short"))
    assert taken(queue) == {"huge-2", "short-0"}
    assert taken(queue) == {"huge-3", "huge-4"}


@pytest.mark.parametrize("has_priority", [True, False])
def test_groups_take_turns_and_none_waits_for_ever(has_priority: bool) -> None:
    """While short ones come without end, each turn has one text of the huge group."""
    queue = PoolingQueue(10**6, 4, has_priority=has_priority)
    for index in range(16):
        queue.add(request(f"huge-{index}", group="huge"))
    numbers, steps = iter(range(10**6)), []
    while any(each.startswith("huge") for each in queue._keys):
        while len(queue) - len(queue._groups.get((0, "huge"), ())) < 7:
            name = str(next(numbers))
            queue.add(request(name, group=name))
        steps.append(taken(queue))
    assert len(steps) <= 16 * 2 + 1, "seven others are two steps"
    assert all(len(each) == 4 for each in steps), "and all are full"


def test_group_of_one_priority_is_not_behind_those_of_another() -> None:
    queue = PoolingQueue(10, 1, has_priority=True)
    for name in ("late-0", "late-1", "late-2"):
        queue.add(request(name, priority=1, group="late"))
    queue.add(request("other", priority=1, group="other"))
    for index in range(50):
        queue.add(request(f"urgent{index}", group="urgent"))
        assert taken(queue) == {f"urgent{index}"}
    assert [taken(queue) for _ in range(3)] == [{"late-0"}, {"other"}, {"late-1"}]


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
        queue.add(request(f"dropped{index}", priority=2, group=str(index)))
        queue.drop(f"dropped{index}")
        assert taken(queue) == {f"urgent{index}"}
    assert len(queue._ring) < 2000
    assert taken(queue) == {"waits"}


def test_every_text_is_computed_once() -> None:
    numbers = random.Random(3)
    queue = PoolingQueue(50, 6, has_priority=True)
    waiting: set[str] = set()
    for index in range(2000):
        name = str(index)
        group = str(numbers.randint(0, 3))
        queue.add(request(name, numbers.randint(1, 40), numbers.randint(-2, 2), group))
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
