"""The work queue: serial per key, parallel across keys, growing delays."""

from __future__ import annotations

import asyncio

import pytest

from exo_inference.controller.reconcile.queue import WorkQueue


@pytest.fixture
def queue() -> WorkQueue[str]:
    return WorkQueue(first_delay_seconds=0.01, max_delay_seconds=0.05, jitter=lambda: 1.0)


async def take(queue: WorkQueue[str]) -> str:
    return await asyncio.wait_for(queue.get(), 1)


async def expect_nothing(queue: WorkQueue[str]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(queue.get(), 0.02)


async def test_a_waiting_key_is_there_once(queue: WorkQueue[str]) -> None:
    for key in ("a", "b", "a", "a"):
        queue.add(key)
    assert [await take(queue), await take(queue)] == ["a", "b"]
    await expect_nothing(queue)


async def test_a_key_is_never_worked_on_twice_at_once(queue: WorkQueue[str]) -> None:
    queue.add("a")
    assert await take(queue) == "a"
    queue.add("a")
    await expect_nothing(queue)
    queue.done("a")
    assert await take(queue) == "a"
    queue.done("a")
    await expect_nothing(queue)


async def test_other_keys_go_on_meanwhile(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await take(queue)
    queue.add("b")
    assert await take(queue) == "b"


async def test_a_key_comes_again_after_the_time_asked_for(queue: WorkQueue[str]) -> None:
    queue.add("a")
    await take(queue)
    started = asyncio.get_running_loop().time()
    queue.done("a", again_after_seconds=0.05)
    assert await take(queue) == "a"
    assert asyncio.get_running_loop().time() - started >= 0.045


async def test_news_do_not_wait_for_a_delay(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 30)
    queue.add("a")
    assert await take(queue) == "a"
    queue.done("a")
    await expect_nothing(queue)


async def test_the_earlier_of_two_delays_wins(queue: WorkQueue[str]) -> None:
    queue.add_after("a", 30)
    queue.add_after("a", 0.01)
    queue.add_after("a", 30)
    assert await take(queue) == "a"
    queue.close()


async def test_failures_back_off_up_to_a_limit_and_start_anew_after_success(
    queue: WorkQueue[str],
) -> None:
    delays = []
    for _ in range(5):
        queue.add("a")
        await take(queue)
        delays.append(queue.retry("a"))
    assert delays == [0.01, 0.02, 0.04, 0.05, 0.05]
    queue.add("a")
    await take(queue)
    queue.done("a")
    queue.add("a")
    await take(queue)
    assert queue.retry("a") == 0.01
    queue.close()


async def test_a_cancelled_waiter_takes_no_key_with_it(queue: WorkQueue[str]) -> None:
    waiter = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    queue.add("a")
    assert await take(queue) == "a"


async def test_many_workers_share_the_work_without_overlap(queue: WorkQueue[str]) -> None:
    active: set[str] = set()
    done: list[str] = []

    async def work() -> None:
        while True:
            key = await queue.get()
            assert key not in active
            active.add(key)
            await asyncio.sleep(0.001)
            active.discard(key)
            done.append(key)
            queue.done(key)

    workers = [asyncio.create_task(work()) for _ in range(4)]
    for _ in range(5):
        for key in "abcdef":
            queue.add(key)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.03)
    for worker in workers:
        worker.cancel()
    results = await asyncio.gather(*workers, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    assert set(done) == set("abcdef")
