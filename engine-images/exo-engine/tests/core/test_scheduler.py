"""Who runs when, who gives way, and that everybody gets there; without a model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exo_engine.attention.layer import Reach
from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.request import EngineRequest
from exo_engine.core.step import StepResult
from exo_engine.errors import DuplicateRequest, InternalError, PromptTooLong, RequestError
from exo_engine.sampling_params import SamplingParams
from hypothesis import given, settings
from hypothesis import strategies as st

from .scheduler_steps import EOS, answer, finish, make_scheduler, request, step


def test_prompts_and_single_tokens_share_one_step():
    scheduler = make_scheduler()
    scheduler.add(request("a", 5))
    step(scheduler)
    scheduler.add(request("b", 6))
    scheduled, outputs = step(scheduler)
    assert {name: item.num_tokens for name, item in scheduled.items.items()} == {"a": 1, "b": 6}
    assert {output.request_id for output in outputs} == {"a", "b"}


def test_a_long_prompt_is_cut_to_the_budget_and_others_go_on_meanwhile():
    scheduler = make_scheduler(budget=8)
    scheduler.add(request("short", 3, 10))
    step(scheduler)
    scheduler.add(request("long", 20))
    sizes = [
        {name: item.num_tokens for name, item in step(scheduler)[0].items.items()} for _ in range(4)
    ]
    assert sizes == [
        {"short": 1, "long": 7},
        {"short": 1, "long": 7},
        {"short": 1, "long": 6},
        {"short": 1, "long": 1},
    ]


def test_long_prompts_leave_the_rest_of_a_step_to_others():
    scheduler = make_scheduler(budget=16, long_prefill_tokens=5)
    for name, length in (("long", 12), ("short", 3)):
        scheduler.add(request(name, length, 2))
    sizes = [{n: i.num_tokens for n, i in step(scheduler)[0].items.items()} for _ in range(3)]
    assert sizes == [{"long": 5, "short": 3}, {"short": 1, "long": 5}, {"long": 2}]


def test_prompts_in_parts_share_a_step_and_no_more_of_them_than_asked_for_begin():
    scheduler = make_scheduler(budget=9, max_partial_prefills=2)
    for name, length in (("a", 12), ("b", 8), ("c", 5)):
        scheduler.add(request(name, length, 2))
    sizes = [{n: i.num_tokens for n, i in step(scheduler)[0].items.items()} for _ in range(4)]
    assert sizes == [
        {"a": 5, "b": 4},
        {"a": 5, "b": 4},
        {"b": 1, "a": 2, "c": 5},
        {"a": 1, "c": 1},
    ]


def test_a_prompt_that_would_stay_unfinished_waits_while_enough_others_are():
    scheduler = make_scheduler(budget=9, max_partial_prefills=1, long_prefill_tokens=4)
    for name, length in (("a", 12), ("b", 8), ("c", 3)):
        scheduler.add(request(name, length, 2))
    sizes = [{n: i.num_tokens for n, i in step(scheduler)[0].items.items()} for _ in range(4)]
    assert sizes == [{"a": 4}, {"a": 4}, {"a": 4, "b": 4}, {"a": 1, "b": 4, "c": 3}]


def test_short_prompts_pass_long_ones_when_enough_of_those_are_under_way():
    scheduler = make_scheduler(budget=12, long_prefill_tokens=4, max_long_partial_prefills=1)
    for name, length in (("long", 8), ("longer", 9), ("short", 3)):
        scheduler.add(request(name, length, 2))
    sizes = [{n: i.num_tokens for n, i in step(scheduler)[0].items.items()} for _ in range(3)]
    assert sizes == [
        {"long": 4, "short": 3},
        {"short": 1, "long": 4, "longer": 4},
        {"long": 1, "longer": 4},
    ]
    assert finish(scheduler).keys() == {"longer"}


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it_whole():
    scheduler = make_scheduler(budget=8, enable_chunked_prefill=False, max_model_len=8)
    scheduler.add(request("a", 5, 2))
    scheduler.add(request("b", 5, 2))
    assert set(step(scheduler)[0].items) == {"a"}
    assert {n: i.num_tokens for n, i in step(scheduler)[0].items.items()} == {"a": 1, "b": 5}


def test_no_more_sequences_run_than_allowed():
    scheduler = make_scheduler(max_num_seqs=2)
    for name in "abc":
        scheduler.add(request(name, 2, 3))
    assert set(step(scheduler)[0].items) == {"a", "b"}
    assert scheduler.stats().num_waiting == 1
    assert {name: len(tokens) for name, tokens in finish(scheduler).items()} == {
        "a": 2,
        "b": 2,
        "c": 3,
    }


def test_the_latest_gives_way_when_blocks_run_out_and_starts_over():
    scheduler = make_scheduler(num_blocks=4, block_size=2, max_model_len=8)
    scheduler.add(request("first", 3, 5))
    scheduler.add(request("second", 3, 5))
    assert set(step(scheduler)[0].items) == {"first", "second"}
    step(scheduler)  # both write their fourth token: all blocks are full
    scheduled, _ = step(scheduler)
    assert set(scheduled.items) == {"first"}
    assert scheduled.preempted_ids == ["second"]
    tokens = finish(scheduler)
    assert scheduler.stats().preemptions_total == (1, 0, 0)
    assert len(tokens["second"]) == 3  # two of five came before
    assert scheduler.stats().num_used_blocks == 0


def test_a_preempted_sequence_finds_its_own_blocks_in_the_prefix_cache():
    scheduler = make_scheduler(num_blocks=6, block_size=2, max_model_len=12, caching=True)
    scheduler.add(request("first", 5, 3))
    scheduler.add(request("second", 5, 3))
    num_tokens = 0
    while scheduler.has_unfinished():
        num_tokens += step(scheduler)[0].num_tokens
    assert scheduler.stats().num_preemptions_total == 1
    # Without the cache the second would compute its five prompt tokens twice: 14 + 6.
    assert num_tokens < 20


def test_a_cached_prompt_computes_only_its_last_token():
    scheduler = make_scheduler(caching=True)
    scheduler.add(request("same", 8, 1))
    finish(scheduler)
    scheduler.add(request("same", 8, 1))
    scheduled, outputs = step(scheduler)
    assert scheduled.num_tokens == 1
    assert outputs[0].num_cached_tokens == 7
    assert scheduler.stats().prefix_cache_hits_total == 7
    assert scheduler.stats().prefix_cache_queries_total == 16


def test_prompt_logprobs_need_the_whole_prompt_computed():
    scheduler = make_scheduler(caching=True)
    scheduler.add(request("same", 8, 1))
    finish(scheduler)
    scheduler.add(request("same", 8, 1, prompt_logprobs=0))
    assert step(scheduler)[0].num_tokens == 8


def test_lower_priority_numbers_run_first():
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    scheduler.add(request("late", 2, 2, priority=5))
    scheduler.add(request("middle", 2, 2, priority=1))
    scheduler.add(request("urgent", 2, 2, priority=0))
    order = []
    while scheduler.has_unfinished():
        order += [o.request_id for o in step(scheduler)[1] if o.finish_reason]
    assert order == ["urgent", "middle", "late"]


def test_an_urgent_arrival_takes_the_seat_of_a_less_urgent_one():
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    scheduler.add(request("late", 2, 8, priority=5))
    step(scheduler)
    scheduler.add(request("urgent", 2, 2, priority=0))
    assert set(step(scheduler)[0].items) == {"urgent"}
    assert len(finish(scheduler)["late"]) == 7
    assert scheduler.stats().preemptions_total == (0, 1, 0)


def test_equal_priority_never_takes_a_seat():
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    scheduler.add(request("a", 2, 4))
    step(scheduler)
    scheduler.add(request("b", 2, 4))
    assert set(step(scheduler)[0].items) == {"a"}
    assert scheduler.stats().num_preemptions_total == 0


def test_fcfs_ignores_priority():
    scheduler = make_scheduler(max_num_seqs=1)
    scheduler.add(request("a", 2, 2, priority=5))
    scheduler.add(request("b", 2, 2, priority=0))
    assert set(step(scheduler)[0].items) == {"a"}


@pytest.mark.parametrize("num_steps", [0, 1, 3], ids=["waiting", "in-prompt", "decoding"])
def test_an_aborted_request_leaves_nothing_behind(num_steps):
    scheduler = make_scheduler(budget=4)
    scheduler.add(request("a", 8, 20))
    for _ in range(num_steps):
        step(scheduler)
    scheduler.abort(["a", "unknown"])
    scheduler.check_integrity()
    assert not scheduler.has_unfinished()
    assert scheduler.stats().num_used_blocks == 0
    scheduler.add(request("a", 8, 2))
    assert len(finish(scheduler)["a"]) == 2


def test_others_keep_their_order_when_one_that_waits_is_aborted():
    scheduler = make_scheduler(max_num_seqs=1, policy="priority")
    for priority in (0, 1, 5, 2, 3, 6, 7):
        scheduler.add(request(f"with {priority}", 2, 1, priority=priority))
    scheduler.abort(["with 1"])
    order = []
    while scheduler.has_unfinished():
        order += [output.request_id for output in step(scheduler)[1]]
    assert order == [f"with {priority}" for priority in (0, 2, 3, 5, 6, 7)]


def test_an_abort_between_schedule_and_update_is_no_error():
    scheduler = make_scheduler()
    scheduler.add(request("a", 3))
    scheduled = scheduler.schedule()
    result = answer(scheduled, 1)
    scheduler.abort(["a"])
    assert scheduler.update(scheduled, result) == []
    scheduler.check_integrity()


def test_end_of_sequence_ends_a_request_and_is_named():
    scheduler = make_scheduler()
    scheduler.add(request("a", 3, 10))
    _, outputs = step(scheduler, token=EOS)
    assert (outputs[0].finish_reason, outputs[0].stop_token_id) == ("stop", EOS)
    assert outputs[0].token_ids == (EOS,)


@pytest.mark.parametrize(
    ("params", "token", "reason"),
    [
        pytest.param({"ignore_eos": True}, EOS, None, id="ignored-eos"),
        pytest.param({"stop_token_ids": (7,)}, 7, "stop", id="stop-token"),
        pytest.param({"stop_token_ids": (EOS,), "ignore_eos": True}, EOS, "stop", id="asked-eos"),
        pytest.param({"min_tokens": 2}, EOS, None, id="min-tokens"),
        pytest.param({"max_tokens": 1}, EOS, "stop", id="stop-before-length"),
        pytest.param({"max_tokens": 1}, 7, "length", id="length"),
    ],
)
def test_what_ends_a_request(params, token, reason):
    scheduler = make_scheduler()
    scheduler.add(request("a", 3, **{"max_tokens": 10, **params}))
    assert step(scheduler, token)[1][0].finish_reason == reason


def test_no_finite_logits_end_only_that_request():
    scheduler = make_scheduler()
    scheduler.add(request("bad", 3))
    scheduler.add(request("good", 3))
    scheduled = scheduler.schedule()
    outputs = scheduler.update(scheduled, answer(scheduled, bad=None, good=(1,)))
    assert {o.request_id: o.finish_reason for o in outputs} == {"bad": "error", "good": None}
    assert outputs[0].token_ids == ()
    assert len(finish(scheduler)["good"]) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"epoch": 7}, "answered for epoch 7 of slot 0, but epoch 0", id="of-another"),
        pytest.param({"token_ids": (1, 2)}, "gave 2 tokens where 1 to 1", id="too-many-tokens"),
        pytest.param({"token_ids": ()}, "gave 0 tokens where 1 to 1", id="no-token"),
    ],
)
def test_what_a_runner_was_not_asked_for_is_not_taken(change, message):
    scheduler = make_scheduler()
    scheduler.add(request("a", 3))
    scheduled = scheduler.schedule()
    (given,) = answer(scheduled, 1).sequences
    with pytest.raises(InternalError, match=message):
        scheduler.update(scheduled, StepResult((replace(given, **change),)))


def test_without_max_tokens_a_request_runs_to_the_models_length():
    scheduler = make_scheduler(max_model_len=12)
    scheduler.add(request("a", 5, None))
    assert len(finish(scheduler)["a"]) == 7


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "param"),
    [(64, 1, "prompt"), (100, None, "prompt"), (60, 5, "max_tokens")],
)
def test_what_can_never_fit_is_refused(num_prompt, max_tokens, param):
    scheduler = make_scheduler(num_blocks=16, block_size=4, max_model_len=1000)
    with pytest.raises(PromptTooLong, match="at most 64") as caught:
        scheduler.add(request("a", num_prompt, max_tokens))
    assert caught.value.param == param
    assert not scheduler.has_unfinished()


def test_an_empty_prompt_and_a_duplicate_id_are_refused():
    scheduler = make_scheduler()
    with pytest.raises(RequestError, match="no tokens"):
        scheduler.add(request("a", 0))
    scheduler.add(request("a", 1))
    with pytest.raises(DuplicateRequest, match="'a'"):
        scheduler.add(request("a", 1))


def test_tokens_are_counted_in_the_step_that_computes_them():
    scheduler = make_scheduler(budget=8)
    scheduler.add(request("a", 20, 3))
    counts = []
    while scheduler.has_unfinished():
        step(scheduler)
        counts.append(scheduler.stats().computed_tokens_total)
    assert counts == [8, 16, 20, 21, 22]


def test_abandoned_steps_start_over():
    scheduler = make_scheduler()
    scheduler.add(request("a", 3, 4))
    step(scheduler)
    scheduler.schedule()
    scheduler.abandon()
    scheduler.check_integrity()
    assert scheduler.stats().num_used_blocks == 0
    assert len(finish(scheduler)["a"]) == 3


def test_abandoned_step_of_an_aborted_request_gives_its_blocks_back():
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(request(name, 3, 4))
    scheduler.schedule()
    scheduler.abort(["a"])
    scheduler.abandon()
    scheduler.check_integrity()
    assert scheduler.stats().num_used_blocks == 0
    assert len(finish(scheduler)["b"]) == 4


def test_a_salt_keeps_prefixes_apart():
    scheduler = make_scheduler(num_blocks=40, caching=True)
    prompt = request("a", 12, 1)
    found = []
    for salt in (None, "one", "two", "one", None):
        scheduler.add(replace(prompt, cache_salt=salt))
        found += [output.num_cached_tokens for output in step(scheduler)[1]]
    assert found == [0, 0, 0, 11, 11]


@settings(max_examples=150, deadline=None)
@given(
    num_blocks=st.integers(1, 12),
    block_size=st.integers(1, 4),
    budget=st.integers(1, 16),
    max_num_seqs=st.integers(1, 6),
    caching=st.booleans(),
    policy=st.sampled_from(["fcfs", "priority"]),
    arrivals=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 10), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=10,
    ),
    aborts=st.lists(st.integers(0, 9), max_size=3),
    reaches=st.sampled_from(
        [
            (Reach(),),
            (Reach(window=3),),
            (Reach(), Reach(window=5)),
            (Reach(), Reach(is_state=True)),
        ]
    ),
    has_siblings=st.booleans(),
)
def test_every_request_that_was_admitted_ends_with_all_its_tokens(
    num_blocks,
    block_size,
    budget,
    max_num_seqs,
    caching,
    policy,
    arrivals,
    aborts,
    reaches,
    has_siblings,
):
    """Whatever the sizes: nobody starves, and the budget holds in every step."""
    scheduler = make_scheduler(
        num_blocks=num_blocks,
        block_size=block_size,
        budget=budget,
        max_num_seqs=min(max_num_seqs, budget),
        caching=caching,
        policy=policy,
        reaches=reaches,
    )
    longest = BlockDemand(reaches, block_size, budget).longest(num_blocks)
    expected: dict[str, int] = {}
    tokens: dict[str, list[int]] = {}
    for index, (num_prompt, max_tokens, priority, shares) in enumerate(arrivals):
        prompt = tuple(range(num_prompt)) if shares else (50 + index,) * num_prompt
        params = SamplingParams(max_tokens=max_tokens)
        try:
            sibling = str(max(0, index - 2)) if has_siblings else None
            arrived = EngineRequest(str(index), prompt, params, priority, sibling_of=sibling)
            scheduler.add(arrived)
            expected[str(index)] = max_tokens
        except PromptTooLong:
            assert num_prompt + max_tokens > min(num_blocks * block_size, longest)
        if index % 3 == 2:
            for output in step(scheduler)[1]:
                tokens.setdefault(output.request_id, []).extend(output.token_ids)
    for index in aborts:
        scheduler.abort([str(index)])
        scheduler.check_integrity()
        expected.pop(str(index), None)
    for name, more in finish(scheduler, most_steps=3000).items():
        tokens.setdefault(name, []).extend(more)
    assert {name: len(tokens[name]) for name in expected} == expected
    assert scheduler.stats().num_used_blocks == 0
