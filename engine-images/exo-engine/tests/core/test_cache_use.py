"""What requests share of the cache, and in which numbers it is held, never shows in their tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exo_engine.core.request import EngineRequest
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams

# Natural logarithms; a random model is far more sensitive than a trained one.
TOLERANCES = {"bfloat16": 0.05, "int8": 0.1, "fp8_e4m3": 0.6}
OPTIONS = {"dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 128}


def run(llm: LLM, requests: list[EngineRequest]) -> dict[str, tuple[int, ...]]:
    tokens: dict[str, tuple[int, ...]] = {}
    for each in requests:
        llm.core.add_request(each)
    while llm.core.has_unfinished_requests():
        for output in llm.core.step():
            tokens[output.request_id] = tokens.get(output.request_id, ()) + output.token_ids
    llm.core.check_integrity()
    assert llm.stats().num_used_blocks == 0
    return tokens


@pytest.mark.parametrize(
    ("family", "caching"),
    [
        pytest.param(family, caching, marks=[] if caching or not row else pytest.mark.slow)
        for row, family in enumerate(["qwen3", "mistral-window", "qwen2-half-windowed"])
        for caching in (True, False)
    ],
)
def test_siblings_answer_as_they_would_alone(tiny_model, prompts, family, caching):
    prompt = prompts[3]
    requests = [
        EngineRequest(
            f"s{index}",
            prompt,
            SamplingParams(temperature=1.2, seed=index, max_tokens=20, ignore_eos=True),
            sibling_of="s0" if index else None,
        )
        for index in range(4)
    ]
    options = {**OPTIONS, "enable_prefix_caching": caching, "max_num_batched_tokens": 8}
    llm = LLM(tiny_model(family).path, **options, max_num_seqs=8)
    alone = {}
    for each in requests:
        alone |= run(llm, [replace(each, sibling_of=None, cache_salt=each.request_id)])
    assert len(set(alone.values())) == 4
    before = llm.stats().num_steps_total
    assert run(llm, requests) == alone
    # Five steps for the prompt of 33 tokens, and one more in which the others get their first.
    assert llm.stats().num_steps_total - before == 5 + 20


@pytest.mark.parametrize("options", [{"quantization": "int8"}, {"kv_cache_dtype": "int8"}], ids=str)
def test_a_model_with_states_answers_alike_however_it_is_computed(tiny_model, prompts, options):
    """Linear layers and keys of a byte, beside states in float32."""
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    path = tiny_model("qwen3.5").path
    llm = LLM(path, **OPTIONS, **options)
    assert llm.core.config.block_size > OPTIONS["block_size"], "a block holds a state"
    expected = [each.token_ids for each in llm.generate(prompts, greedy)]
    again = llm.generate(prompts, greedy)
    assert again[-1].num_cached_tokens > 0
    assert [each.token_ids for each in again] == expected
    chunked = LLM(path, **OPTIONS, **options, max_num_batched_tokens=7, max_num_seqs=4)
    assert [each.token_ids for each in chunked.generate(prompts, greedy)] == expected
    assert [llm.generate([prompt], greedy)[0].token_ids for prompt in prompts] == expected


@pytest.mark.parametrize(
    ("family", "kv_dtype"),
    [
        ("qwen3", "bfloat16"),
        ("qwen3", "fp8_e4m3"),
        ("qwen2-half-windowed", "int8"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                ("qwen3", "int8"),
                ("qwen2-half-windowed", "bfloat16"),
                ("qwen2-half-windowed", "fp8_e4m3"),
            )
        ),
    ],
)
def test_a_cache_of_another_type_gives_one_answer_however_it_is_computed(
    tiny_model, prompts, family, kv_dtype
):
    """In chunks, from the prefix cache and in company a prompt meets the same numbers."""
    greedy = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=0)
    path = tiny_model(family).path
    exact = LLM(path, **OPTIONS).generate(prompts, greedy)
    whole = LLM(path, **OPTIONS, kv_cache_dtype=kv_dtype)
    found = whole.generate(prompts, greedy)
    for a, b in zip(exact, found, strict=True):
        assert a.logprobs[0].logprob == pytest.approx(
            b.logprobs[0].logprob, abs=TOLERANCES[kv_dtype]
        )
    again = whole.generate(prompts, greedy)
    chunked = LLM(
        path, **OPTIONS, kv_cache_dtype=kv_dtype, max_num_batched_tokens=7, max_num_seqs=4
    ).generate(prompts, greedy)
    assert again[-1].num_cached_tokens > 0
    for others in (again, chunked):
        assert [c.token_ids for c in others] == [c.token_ids for c in found]
