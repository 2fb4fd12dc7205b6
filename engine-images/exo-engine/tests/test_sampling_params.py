from __future__ import annotations

import math

import pytest
from exo_engine.errors import InvalidSamplingParams
from exo_engine.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("top_k", -1),
        ("min_p", 1.5),
        ("seed", 2**64),
        ("max_tokens", 0),
        ("min_tokens", -1),
        ("logprobs", -1),
        ("prompt_logprobs", -1),
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name(name, value):
    with pytest.raises(InvalidSamplingParams, match=name) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name


def test_min_tokens_may_not_exceed_max_tokens():
    with pytest.raises(InvalidSamplingParams, match=r"at most max_tokens \(3\), got 4"):
        SamplingParams(min_tokens=4, max_tokens=3)


def test_extremes_are_allowed():
    params = SamplingParams(temperature=0, top_p=1, seed=-1, logit_bias={0: -100}, min_p=1.0)
    assert params.is_greedy
    assert not params.uses_penalties
    assert SamplingParams(presence_penalty=0.1).uses_penalties
