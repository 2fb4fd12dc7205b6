"""Several tokens of one sequence in one step: guesses that hold, and those that are taken back."""

from __future__ import annotations

import pytest
from exo_engine.attention.layer import Reach

from .scheduler_steps import EOS, answer, finish, make_scheduler, request, step


def test_guesses_that_hold_are_several_tokens_of_one_step():
    scheduler = make_scheduler()
    scheduler.add(request("a", 3, 10))
    step(scheduler)
    scheduler.propose("a", (5, 6, 7))
    scheduled = scheduler.schedule()
    item = scheduled.items["a"]
    assert (item.start, item.end, item.num_samples) == (3, 7, 4)
    assert scheduled.frame.proposed.tolist() == [5, 6, 7]
    (output,) = scheduler.update(scheduled, answer(scheduled, 5, 6, 7, 8))
    assert output.token_ids == (5, 6, 7, 8)
    assert step(scheduler)[0].items["a"].start == 7
    assert len(finish(scheduler)["a"]) == 10 - 6


def test_guesses_that_do_not_hold_are_taken_back():
    scheduler = make_scheduler(caching=True, block_size=2, num_blocks=32)
    scheduler.add(request("a", 3, 10))
    step(scheduler)
    scheduler.propose("a", (5, 6, 7))
    scheduled = scheduler.schedule()
    (output,) = scheduler.update(scheduled, answer(scheduled, 5, 9))
    scheduler.check_integrity()
    assert output.token_ids == (5, 9)
    assert step(scheduler)[0].items["a"].start == 5  # 9 is the last known one, at place 5
    prompt = scheduled.items["a"].sequence.token_ids
    assert prompt[3:] == [1, 5, 9, 1]
    # Nothing that was taken back can be found: two blocks hold what was computed and confirmed.
    assert len(scheduler.blocks.find_prefix([*prompt[:5], 6, 7])) == 2


@pytest.mark.parametrize(
    ("params", "tokens", "kept", "reason"),
    [
        ({"max_tokens": 10}, (4, EOS, 4), (4, EOS), "stop"),
        ({"max_tokens": 10, "min_tokens": 3}, (EOS, EOS, 4), (EOS, EOS), "stop"),
        ({"max_tokens": 4}, (4, 4, 4), (4, 4, 4), "length"),
        ({"max_tokens": 3}, (4, 4), (4, 4), "length"),
    ],
)
def test_several_tokens_end_with_the_one_that_ends_the_request(params, tokens, kept, reason):
    scheduler = make_scheduler()
    scheduler.add(request("a", 3, **params))
    step(scheduler)
    scheduler.propose("a", (4, 4, 4))
    scheduled = scheduler.schedule()
    (output,) = scheduler.update(scheduled, answer(scheduled, *tokens))
    assert (output.token_ids, output.finish_reason) == (kept, reason)
    assert scheduler.stats().num_used_blocks == 0


def test_guesses_take_what_is_left_of_the_budget_and_no_more():
    scheduler = make_scheduler(budget=4)
    for name in "ab":
        scheduler.add(request(name, 2, 10))
    step(scheduler)
    scheduler.propose("b", (5, 6, 7))
    scheduler.propose("a", (5, 6, 7))
    scheduled, _ = step(scheduler)
    assert [(i.num_tokens, i.num_samples) for i in scheduled.items.values()] == [(4, 4)]
    assert len(step(scheduler)[0].items) == 2


def test_guess_for_a_request_that_waits_is_not_kept():
    scheduler = make_scheduler()
    scheduler.add(request("a", 1, 10))
    scheduler.propose("a", (5, 6, 7))
    assert step(scheduler)[0].num_tokens == 1


def test_guess_of_what_follows_a_token_that_nobody_has_seen_is_not_kept():
    scheduler = make_scheduler()
    scheduler.add(request("a", 3, 10))
    scheduler.schedule()
    scheduler.propose("a", (5, 6, 7))
    assert scheduler.schedule().items["a"].num_tokens == 1


def test_what_was_computed_behind_the_end_is_not_kept():
    scheduler = make_scheduler(caching=True, block_size=7)
    scheduler.add(request("a", 3, 10))
    step(scheduler)
    scheduler.propose("a", (4, EOS, 4))
    scheduled = scheduler.schedule()
    assert scheduled.items["a"].end == 7
    (output,) = scheduler.update(scheduled, answer(scheduled, 4, EOS, 4, 8))
    assert (output.token_ids, output.finish_reason) == ((4, EOS), "stop")
    assert scheduler.blocks.num_cached_blocks == 0, "its seventh token is none of the answer"


def test_guesses_are_not_computed_where_a_state_could_not_take_them_back():
    scheduler = make_scheduler(reaches=(Reach(), Reach(is_state=True)))
    scheduler.add(request("a", 3, 10))
    step(scheduler)
    scheduler.propose("a", (5, 6, 7))
    assert step(scheduler)[0].num_tokens == 1
