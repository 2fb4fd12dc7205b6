"""Several answers to one prompt: it is computed once, and each goes on from there by itself."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from exo_engine.attention.layer import Reach
from exo_engine.core.request import EngineRequest
from exo_engine.core.scheduled import ScheduledStep
from exo_engine.sampling_params import SamplingParams

from .scheduler_steps import answer, finish, make_scheduler, set_budget, step


def siblings(count: int, num_prompt: int, max_tokens: int = 4, **others) -> list[EngineRequest]:
    """As the server makes them of `n`."""
    prompt = tuple(random.Random(7).randrange(50) for _ in range(num_prompt))
    params = SamplingParams(max_tokens=max_tokens)
    first = EngineRequest("s0", prompt, params, **others)
    return [first] + [replace(first, request_id=f"s{i}", sibling_of="s0") for i in range(1, count)]


@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize(
    "reaches", [(Reach(),), (Reach(), Reach(window=40))], ids=["full", "window"]
)
def test_siblings_compute_their_prompt_once(caching, reaches):
    scheduler = make_scheduler(
        num_blocks=400, block_size=16, budget=128, caching=caching, reaches=reaches
    )
    for each in siblings(8, 500):
        scheduler.add(each)
    num_prompt_tokens = most_used = 0
    steps = []
    while scheduler.has_unfinished():
        scheduled, _ = step(scheduler)
        steps.append([item.num_tokens for item in scheduled.items.values()])
        num_prompt_tokens += sum(
            max(0, min(item.end, 500) - item.start) for item in scheduled.items.values()
        )
        most_used = max(most_used, scheduler.stats().num_used_blocks)
    assert num_prompt_tokens == 500 + 7
    # Each of seven has one block of its own, per group: that of the last tokens.
    assert most_used <= (32 + 7 + 8) * len(reaches)
    assert steps[4] == [1] * 8


def test_siblings_of_a_model_with_states_begin_with_the_state_before_the_last_tokens():
    reaches = (Reach(), Reach(is_state=True))
    scheduler = make_scheduler(
        num_blocks=400, block_size=16, budget=128, caching=True, reaches=reaches
    )
    for each in siblings(8, 500):
        scheduler.add(each)
    num_prompt_tokens = 0
    while scheduler.has_unfinished():
        items = step(scheduler)[0].items.values()
        num_prompt_tokens += sum(max(0, min(item.end, 500) - item.start) for item in items)
    assert num_prompt_tokens == 500 + 7 * 4  # 496 are whole blocks


def test_sibling_waits_for_the_copies_of_blocks_that_the_first_one_could_not_give_back_yet():
    """With three steps on their way windows are left late: the first one has more blocks than it needs at most."""
    reaches = (Reach(), Reach(window=8))
    scheduler = make_scheduler(
        num_blocks=11, block_size=3, budget=3, max_num_seqs=2, reaches=reaches
    )
    for each in siblings(2, 14, max_tokens=2):
        scheduler.add(each)
    on_their_way, found = deque[ScheduledStep](), []
    while scheduler.has_unfinished():
        while len(on_their_way) < 3:
            scheduled = scheduler.schedule()
            scheduler.check_integrity()
            if not scheduled.items:
                break
            on_their_way.append(scheduled)
        first = on_their_way.popleft()
        if first.items.keys() == {"s0"} and first.items["s0"].end == 14:
            # It holds ten of eleven blocks, and nine are the most it needs; a copy takes two.
            assert scheduler.stats().num_used_blocks == 10
        found += scheduler.update(first, answer(first, 1))
    assert [output.request_id for output in found] == ["s0", "s0", "s1", "s1"]
    assert scheduler.stats().num_used_blocks == 0


def test_siblings_of_one_that_is_gone_go_on_alone():
    scheduler = make_scheduler(num_blocks=40, budget=4)
    for each in siblings(3, 9):
        scheduler.add(each)
    step(scheduler)
    assert (scheduler.stats().num_running, scheduler.stats().num_waiting) == (1, 2)
    scheduler.abort(["s0", "s2"])
    scheduler.check_integrity()
    assert {name: len(tokens) for name, tokens in finish(scheduler).items()} == {"s1": 4}
    assert scheduler.stats().num_used_blocks == 0


def test_sibling_takes_nothing_of_one_that_was_preempted_and_computes_its_prompt_anew():
    scheduler = make_scheduler(budget=4, max_num_seqs=2)
    first, second = siblings(2, 9)
    scheduler.add(first)
    for _ in range(3):
        step(scheduler)
    scheduler.schedule()
    scheduler.abandon()
    scheduler.add(second)
    set_budget(scheduler, 7)
    sizes = {name: (i.start, i.end) for name, i in step(scheduler)[0].items.items()}
    assert sizes == {"s0": (0, 7)}
    set_budget(scheduler, 32)
    sizes = {name: (i.start, i.end) for name, i in step(scheduler)[0].items.items()}
    assert sizes == {"s0": (7, 10), "s1": (0, 9)}


def test_runner_is_told_of_a_block_in_whose_place_a_copy_came():
    scheduler = make_scheduler(block_size=4)
    scheduler.add(siblings(1, 5)[0])
    sequence = step(scheduler)[0].items["s0"].sequence
    before = list(scheduler.blocks.tables(sequence.table_key)[0])
    scheduler.blocks.fork(sequence.table_key, "another", 5)
    frame = scheduler.schedule().frame
    (after,) = scheduler.blocks.tables(sequence.table_key)
    assert frame.copies[0].tolist() == [before[1], after[1]]
    told = frame.tables
    assert (told.firsts.tolist(), told.blocks[0].tolist()) == ([1], after[1:])


def test_one_that_only_says_it_is_a_sibling_computes_its_own_prompt():
    scheduler = make_scheduler(num_blocks=40)
    first, second = siblings(2, 9)
    scheduler.add(first)
    scheduler.add(replace(second, prompt_token_ids=(1,) * 9))
    scheduler.add(replace(second, request_id="salted", cache_salt="other"))
    scheduler.add(replace(second, request_id="late", sibling_of="nobody"))
    assert {i.num_tokens for i in step(scheduler)[0].items.values()} == {9, 5}
    assert len(finish(scheduler)) == 4
