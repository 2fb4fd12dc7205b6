"""Who asks for files of strangers is served in turn, and slow files never have all children."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

from exo_inference.foreign_files.child import MAX_PROCESSOR_SECONDS, TookTooLong
from exo_inference.foreign_files.pool import QUICK_PROCESSOR_SECONDS, Pool, Turns


class Readers:
    """Children of whose tasks the test decides how long they take, and what they were asked in which order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.begun = threading.Semaphore(0)
        self.released = threading.Event()
        self._lock = threading.Lock()

    def make(self) -> Readers:
        return self

    def ask(
        self,
        task: str,
        arguments: dict[str, Any],
        blobs: tuple[bytes, ...],
        *,
        processor_seconds: int,
        deadline_seconds: float,
    ) -> Any:
        with self._lock:
            self.asked.append((task, processor_seconds))
        self.begun.release()
        if arguments.get("holds") and processor_seconds > arguments["holds"] - 1:
            self.released.wait(60)
        if processor_seconds < arguments.get("takes", 0):
            raise TookTooLong("too long")
        return task


@pytest.fixture
def readers() -> Readers:
    return Readers()


def wait_for_start(readers: Readers, count: int) -> None:
    for _ in range(count):
        assert readers.begun.acquire(timeout=60)


def test_two_that_never_end_leave_a_child_to_others(readers: Readers) -> None:
    pool = Pool(make_child=readers.make)
    hostile = {"takes": 1000, "holds": MAX_PROCESSOR_SECONDS}
    held = [pool.submit(f"hostile {n}", hostile, owner="plans") for n in range(20)]
    wait_for_start(readers, 21)  # each once, quickly; then one of them among the slow
    others = [pool.submit(f"model {n}", {}, owner=f"m{n}") for n in range(10)]
    assert [each.result(60) for each in others] == [f"model {n}" for n in range(10)]
    assert not any(each.done() for each in held)
    readers.released.set()
    assert all(isinstance(each.exception(60), TookTooLong) for each in held)


def test_each_who_asks_is_served_in_turn(readers: Readers) -> None:
    pool = Pool(num_children=1, make_child=readers.make)
    first = pool.submit("first", {"holds": 1}, owner="plans")
    wait_for_start(readers, 1)
    flood = [pool.submit(f"flood {n}", {}, owner="plans") for n in range(50)]
    other = pool.submit("other", {}, owner="org/m1")
    assert (pool.num_waiting("plans"), pool.num_waiting("org/m1")) == (50, 1)
    readers.released.set()
    done: list[Future[Any]] = [first, other, *flood]
    assert all(each.result(60) for each in done)
    assert [task for task, _ in readers.asked][:3] == ["first", "flood 0", "other"]
    assert pool.num_waiting("plans") == 0


def test_what_takes_longer_than_most_has_its_whole_time_once_more(readers: Readers) -> None:
    pool = Pool(make_child=readers.make)
    large = pool.submit("large", {"takes": 5})
    assert large.result(60) == "large"
    assert readers.asked == [("large", QUICK_PROCESSOR_SECONDS), ("large", MAX_PROCESSOR_SECONDS)]


def test_slow_ones_are_served_while_quick_ones_keep_coming(readers: Readers) -> None:
    pool = Pool(make_child=readers.make)
    slow = pool.submit("slow", {"takes": 5}, owner="org/large")
    quick = [pool.submit(f"quick {n}", {}, owner="plans") for n in range(200)]
    assert slow.result(60) == "slow"
    assert all(each.result(60) for each in quick)


def test_an_error_of_a_task_is_told_to_who_asked(readers: Readers) -> None:
    pool = Pool(make_child=readers.make)
    failed = pool.submit("slow", {"takes": 1000})
    assert isinstance(failed.exception(60), TookTooLong)
    assert pool.submit("next", {}).result(60) == "next"


def test_turns_go_round_the_owners() -> None:
    turns: Turns[int] = Turns()
    for owner, item in (("a", 1), ("a", 2), ("b", 3), ("a", 4), ("c", 5)):
        turns.put(owner, item)
    assert [turns.take() for _ in range(5)] == [1, 3, 5, 2, 4]
    assert not turns
