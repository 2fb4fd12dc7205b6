"""Sampling by slots gives, step after step, what sampling row by row gives."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from exo_engine.sampling.sampler import sample
from exo_engine.sampling.state import SamplingState
from exo_engine.sampling.token_tables import pack_bits, unpack_bits
from exo_engine.sampling_params import SamplingParams

VOCAB, SLOTS = 1500, 6
CPU = torch.device("cpu")


def some_params(numbers: random.Random) -> SamplingParams:
    """Return parameters in which anything may be set beside anything."""

    def maybe(value, otherwise):
        return value if numbers.random() < 0.35 else otherwise

    token_ids = tuple(numbers.sample(range(VOCAB), 8))
    words = tuple(
        tuple(numbers.choice(token_ids[:3]) for _ in range(numbers.randint(1, 5))) for _ in range(4)
    )
    return SamplingParams(
        temperature=maybe(0.0, numbers.uniform(0.2, 3.0)),
        top_p=maybe(numbers.uniform(0.05, 1.0), 1.0),
        top_k=maybe(numbers.choice((1, 7, 1100, 2000)), 0),
        min_p=maybe(numbers.uniform(0.0, 0.4), 0.0),
        min_tokens=maybe(3, 0),
        logprobs=maybe(numbers.randint(0, 5), None),
        presence_penalty=maybe(numbers.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(numbers.uniform(-2, 2), 0.0),
        repetition_penalty=maybe(numbers.uniform(0.5, 2.0), 1.0),
        logit_bias=maybe({each: numbers.uniform(-9, 9) for each in token_ids[:4]}, None),
        allowed_token_ids=maybe(tuple(numbers.sample(range(VOCAB), 700)) + token_ids, None),
        bad_words=maybe(words, ()),
    )


def assert_same_report(found, expected):
    if expected is None:
        assert found is None
        return
    assert (found.token_id, found.rank) == (expected.token_id, expected.rank)
    assert [token_id for token_id, _ in found.top] == [token_id for token_id, _ in expected.top]
    values = [found.logprob, *(value for _, value in found.top)]
    wanted = [expected.logprob, *(value for _, value in expected.top)]
    assert values == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 8))]
)
def test_slots_that_come_and_go_equal_rows(plain, seed):
    """The plain sampler gets whole histories; the state gets differences."""
    numbers = random.Random(seed)
    torch.manual_seed(seed)
    state = SamplingState(SLOTS, VOCAB, CPU)
    rows: dict[int, plain.SamplingRow] = {}
    for step in range(60):
        for slot in range(SLOTS):
            if slot in rows and numbers.random() < 0.1:
                del rows[slot]
                state.remove(slot)
            elif slot not in rows and numbers.random() < 0.4:
                rows[slot] = plain.SamplingRow(
                    some_params(numbers),
                    tuple(numbers.choices(range(VOCAB), k=9)),
                    numbers.choices(range(VOCAB), k=numbers.choice((0, 0, 5))),
                    numbers.getrandbits(64),
                    tuple(numbers.choices(range(VOCAB), k=2)),
                )
                state.add(
                    slot,
                    rows[slot].params,
                    key=rows[slot].key,
                    prompt_ids=rows[slot].prompt_token_ids,
                    output_ids=tuple(rows[slot].output_token_ids),
                    stop_token_ids=rows[slot].stop_token_ids,
                )
        slots = numbers.sample(
            sorted(rows), numbers.randint(0, len(rows)) if step % 3 else len(rows)
        )
        if not slots:
            continue
        logits = torch.randn(len(slots), VOCAB) * 4
        expected = plain.sample(logits.clone(), [rows[slot] for slot in slots])
        found = sample(logits, state, np.array(slots))
        assert found.tokens.tolist() == [each.token_id for each in expected]
        assert found.is_valid.all()
        reports = found.reports(found.packed[len(found.tokens) :].numpy())
        for row, each in enumerate(expected):
            assert_same_report(reports.get(row), each.logprobs)
        # Low numbers often, so that words and penalties have something to see.
        tokens = [numbers.choice((each.token_id, 1, 2)) for each in expected]
        state.append(np.array(slots), torch.tensor(tokens))
        for slot, token in zip(slots, tokens, strict=True):
            rows[slot].output_token_ids.append(token)


def test_only_slots_with_penalties_are_counted():
    state = SamplingState(64, VOCAB, CPU)
    for slot in range(64):
        penalty = 1.0 if slot % 16 == 0 else 0.0
        state.add(slot, SamplingParams(presence_penalty=penalty), key=slot)
    assert state.seen._counts.shape == (4, VOCAB)
    for slot in range(64):
        state.remove(slot)
    for slot in range(4):
        state.add(slot, SamplingParams(presence_penalty=1.0), key=slot)
    assert state.seen._counts.shape == (4, VOCAB)


def test_a_step_of_the_same_slots_is_planned_once():
    state = SamplingState(3, VOCAB, CPU)
    for slot in range(3):
        state.add(slot, SamplingParams(), key=slot)
    first = state.plan(np.array([0, 2]))
    assert state.plan(np.array([0, 2])) is first
    assert state.plan(np.array([2, 0])) is not first
    state.remove(1)
    assert state.plan(np.array([2, 0])) is not first


def test_bits_are_packed_lowest_first():
    words = pack_bits([0, 33, 69], 3)
    assert words.tolist() == [1, 2, 32]
    bits = unpack_bits(torch.from_numpy(words).unsqueeze(0), 70)
    assert bits.nonzero()[:, 1].tolist() == [0, 33, 69]


def test_a_long_bad_word_makes_no_others_longer():
    """One of 1,000 tokens made those of all other requests as long: gigabytes, looked through at each step."""
    state = SamplingState(SLOTS, VOCAB, CPU)
    for slot in range(SLOTS - 1):
        state.add(slot, SamplingParams(bad_words=((1, 2), (3, 4, 5))), key=slot)
    state.add(SLOTS - 1, SamplingParams(bad_words=((7,) * 1000,)), key=9)
    words = state.plan(np.arange(SLOTS)).words
    assert {tuple(each.beginnings.shape) for each in words} == {(5, 1), (5, 2), (1, 1024)}
    state.remove(SLOTS - 1)
    assert len(state.plan(np.arange(SLOTS - 1)).words) == 2
