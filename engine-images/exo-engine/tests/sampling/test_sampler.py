"""Each parameter does what it says, and rows of a batch never influence each other."""

from __future__ import annotations

import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import pytest
import torch
from exo_engine.core.request import TokenLogprobs
from exo_engine.sampling.logprobs import gather_logprobs
from exo_engine.sampling.sampler import RowMask, Samples, unpack
from exo_engine.sampling.sampler import sample as sample_slots
from exo_engine.sampling.state import SamplingState
from exo_engine.sampling_params import SamplingParams

PROBABILITIES = [0.4, 0.3, 0.2, 0.07, 0.03]


def logits(*rows) -> torch.Tensor:
    return torch.tensor([[math.log(p) for p in row] for row in (rows or [PROBABILITIES])])


class Row(NamedTuple):
    params: SamplingParams
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    key: int
    stop_token_ids: tuple[int, ...]


class Token(NamedTuple):
    token_id: int
    is_valid: bool
    logprobs: TokenLogprobs | None


def row(*, prompt=(), output=(), key=0, stop=(), **params) -> Row:
    return Row(SamplingParams(**params), prompt, output, key, stop)


def sample(values: torch.Tensor, rows: list[Row], mask=None) -> list[Token]:
    state = SamplingState(len(rows), values.shape[1], values.device)
    for slot, each in enumerate(rows):
        state.add(
            slot,
            each.params,
            key=each.key,
            prompt_ids=each.prompt_ids,
            output_ids=each.output_ids,
            stop_token_ids=each.stop_token_ids,
        )
    samples = sample_slots(values, state, np.arange(len(rows)), mask)
    reports = samples.reports(samples.packed[len(samples.tokens) :].numpy())
    return [
        Token(token_id, is_valid, reports.get(index))
        for index, (token_id, is_valid) in enumerate(
            zip(samples.tokens.tolist(), samples.is_valid.tolist(), strict=True)
        )
    ]


def draw(num_draws: int, **params) -> Counter:
    """Draw many times from PROBABILITIES, with a key per draw."""
    rows = [row(key=key, **params) for key in range(num_draws)]
    return Counter(t.token_id for t in sample(logits().repeat(num_draws, 1), rows))


def test_greedy_takes_the_likeliest():
    assert sample(logits(), [row(temperature=0)])[0].token_id == 0


def test_drawing_follows_the_probabilities():
    counts = draw(8000)
    for token_id, probability in enumerate(PROBABILITIES):
        assert counts[token_id] / 8000 == pytest.approx(probability, abs=0.02)


def test_temperature_sharpens_and_flattens():
    cold, hot = draw(4000, temperature=0.5), draw(4000, temperature=3.0)
    weights = [p**2 for p in PROBABILITIES]
    assert cold[0] / 4000 == pytest.approx(weights[0] / sum(weights), abs=0.03)
    weights = [p ** (1 / 3) for p in PROBABILITIES]
    assert hot[4] / 4000 == pytest.approx(weights[4] / sum(weights), abs=0.03)


@pytest.mark.parametrize(
    ("params", "kept"),
    [
        pytest.param({"top_k": 2}, {0, 1}, id="top-k"),
        pytest.param({"top_k": 1}, {0}, id="top-k-1"),
        pytest.param({"top_k": 100}, {0, 1, 2, 3, 4}, id="top-k-beyond-vocabulary"),
        pytest.param({"top_p": 0.6}, {0, 1}, id="top-p"),
        pytest.param({"top_p": 0.71}, {0, 1, 2}, id="top-p-reaches-into-next"),
        pytest.param({"top_p": 0.01}, {0}, id="top-p-keeps-the-first"),
        pytest.param({"min_p": 0.45}, {0, 1, 2}, id="min-p"),
        pytest.param({"min_p": 1.0}, {0}, id="min-p-1"),
        pytest.param({"top_k": 3, "top_p": 0.75}, {0, 1}, id="top-p-within-top-k"),
        pytest.param({"logit_bias": {4: 100.0}}, {4}, id="bias"),
        pytest.param({"logit_bias": {0: -100.0, 1: -100.0}}, {2, 3, 4}, id="ban"),
        pytest.param({"allowed_token_ids": (4, 1)}, {1, 4}, id="allowed"),
        pytest.param({"bad_words": ((0,), (1, 2), (3,))}, {1, 2, 4}, id="bad-words"),
    ],
)
def test_filters_keep_exactly_these(params, kept):
    assert set(draw(3000, **params)) == kept


@pytest.mark.parametrize("most", [1e33, 3e38], ids=str)
@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 5}, {"top_p": 0.9}, {"top_k": 5, "top_p": 0.9}, {"min_p": 0.1}, {"top_k": 2000}],
    ids=str,
)
def test_logits_that_go_beyond_float32_leave_the_likeliest(params, most):
    values = torch.randn(4, 3000, generator=torch.Generator().manual_seed(3))
    values[:, 1234] = most
    values[2:, 1230:1234] = most * 0.999
    rows = [row(key=key, temperature=1e-6, **params) for key in range(4)]
    found = sample(values, rows)
    assert [(each.token_id, each.is_valid) for each in found] == [(1234, True)] * 4


def test_filters_look_beyond_the_first_candidates_when_they_must():
    """A flat distribution over more tokens than are sorted at first."""
    flat = torch.zeros(400, 5000)
    flat[:, 17] = 0.5
    rows = [row(key=key, top_p=0.9) for key in range(400)]
    tokens = {t.token_id for t in sample(flat.clone(), rows)}
    assert len(tokens) > 300
    wide = {t.token_id for t in sample(flat.clone(), [row(key=k, top_k=2000) for k in range(400)])}
    assert len(wide) > 300


def test_a_row_is_drawn_the_same_alone_and_in_any_company():
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(9, 3000, generator=generator) * 3
    rows = [
        row(key=11, seed=1),
        row(key=12, top_p=0.8),
        row(key=13, top_k=5),
        row(key=14, min_p=0.1),
        row(temperature=0),
        row(key=16, top_k=1500, top_p=0.99, temperature=3.0),
        row(key=17, top_p=0.999, temperature=4.0),
        row(key=18, prompt=(1, 2), output=(3, 3), repetition_penalty=1.5),
        row(key=19, output=(5,) * 7, presence_penalty=1.0, logprobs=2),
    ]
    together = sample(batch.clone(), rows)
    alone = [sample(batch[i : i + 1].clone(), [rows[i]])[0] for i in range(9)]
    assert [t.token_id for t in together] == [t.token_id for t in alone]
    backwards = sample(batch.flip(0).clone(), rows[::-1])[::-1]
    assert [t.token_id for t in together] == [t.token_id for t in backwards]


def test_the_position_draws_anew():
    tokens = {sample(logits(), [row(key=3, output=(0,) * n)])[0].token_id for n in range(50)}
    assert len(tokens) >= 3


def test_repetition_penalty_weighs_on_prompt_and_output():
    values = torch.tensor([[2.0, 1.9, -1.0, -1.1]])
    params = {"temperature": 0, "repetition_penalty": 1.5}
    assert sample(values.clone(), [row(prompt=(0,), **params)])[0].token_id == 1
    assert sample(values.clone(), [row(prompt=(0,), output=(1,), **params)])[0].token_id == 0
    adjusted = values.clone()
    sample(adjusted, [row(prompt=(0,), output=(2,), **params)])
    assert adjusted.tolist()[0] == pytest.approx([2 / 1.5, 1.9, -1.5, -1.1])


def test_frequency_and_presence_penalties_count_output_only():
    values = torch.zeros(1, 4)
    sample(values, [row(prompt=(3,), output=(0, 0, 1), frequency_penalty=0.5, presence_penalty=1)])
    assert values.tolist()[0] == pytest.approx([-2.0, -1.5, 0.0, 0.0])


def test_stop_tokens_are_held_back_until_min_tokens():
    held = row(temperature=0, min_tokens=2, stop=(0,), output=(3,))
    free = row(temperature=0, min_tokens=2, stop=(0,), output=(3, 3))
    tokens = sample(logits(PROBABILITIES, PROBABILITIES), [held, free])
    assert [token.token_id for token in tokens] == [1, 0]


def test_logprobs_describe_the_models_distribution_not_the_filtered_one():
    token = sample(logits(), [row(temperature=0, logit_bias={3: 50.0}, logprobs=2)])[0]
    assert token.logprobs.token_id == 3
    assert token.logprobs.logprob == pytest.approx(math.log(0.07), abs=1e-5)
    assert token.logprobs.rank == 4
    assert [token_id for token_id, _ in token.logprobs.top] == [0, 1]
    assert token.logprobs.top[1][1] == pytest.approx(math.log(0.3), abs=1e-5)


def test_zero_logprobs_report_the_chosen_token_only():
    token = sample(logits(), [row(temperature=0, logprobs=0)])[0]
    assert token.logprobs.top == ()
    assert token.logprobs.rank == 1
    assert sample(logits(), [row(temperature=0)])[0].logprobs is None


def test_rows_ask_for_different_numbers_of_logprobs():
    reports = gather_logprobs(logits(PROBABILITIES, PROBABILITIES), [0, 1], [1, 9])
    assert [len(report.top) for report in reports] == [1, 5]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_broken_logits_invalidate_their_row_only(value):
    values = logits(PROBABILITIES, PROBABILITIES)
    values[0, 2] = value
    tokens = sample(values, [row(key=1), row(key=1)])
    assert [token.is_valid for token in tokens] == [False, True]


def test_a_word_is_bad_only_after_its_beginning():
    params = {"temperature": 0, "bad_words": ((3, 0), (4, 3, 1), (9, 4, 3, 2))}
    outputs = [(), (3,), (4, 3), (9, 4, 3), (3, 4)]
    tokens = sample(logits(*[PROBABILITIES] * 5), [row(output=out, **params) for out in outputs])
    assert [token.token_id for token in tokens] == [0, 1, 2, 3, 0]


def test_a_mask_has_a_bit_per_token_of_each_row():
    values = torch.zeros(2, 70)
    values[:, 3] = 9.0
    mask = torch.tensor([[-1, -1, -1], [0, -(2**31), 0]], dtype=torch.int32)
    tokens = sample(values.clone(), [row(temperature=0)] * 2, RowMask(None, mask))
    assert [token.token_id for token in tokens] == [3, 63]
    only = RowMask(torch.tensor([1]), mask[1:])
    assert [each.token_id for each in sample(values, [row(temperature=0)] * 2, only)] == [3, 63]


def test_a_row_without_any_token_left_is_invalid():
    params = {"allowed_token_ids": (2,), "bad_words": ((2,),)}
    tokens = sample(logits(PROBABILITIES, PROBABILITIES), [row(**params), row(key=1)])
    assert [token.is_valid for token in tokens] == [False, True]


@pytest.mark.parametrize("are_equal", [False, True])
def test_what_is_brought_to_the_host_tells_no_numbers_from_no_token(are_equal):
    tokens, is_finite = torch.tensor([0, 5, 6, 2**31]), torch.tensor([True, False, True, True])
    is_valid = is_finite if are_equal else torch.tensor([True, False, False, True])
    packed = Samples(tokens, is_valid, is_finite).packed.numpy()
    expected = (tokens, is_valid, is_finite)
    assert [each.tolist() for each in unpack(packed)] == [each.tolist() for each in expected]
