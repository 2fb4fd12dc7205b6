"""What the core promises beyond greedy tokens: seeds, log-probabilities, refusals, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from exo_engine.config import EngineConfig
from exo_engine.core import loading
from exo_engine.core.engine import EngineCore
from exo_engine.core.memory import cache_plan, fit_positions
from exo_engine.core.request import NOTHING_LEFT, EngineRequest
from exo_engine.core.step import StepResult
from exo_engine.errors import (
    ConfigurationError,
    InvalidSamplingParams,
    OutOfMemory,
    PromptTooLong,
    RequestError,
)
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams

OPTIONS = {"dtype": "float32", "device": "cpu", "block_size": 4, "max_model_len": 96}


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def llm(tiny_model, request):
    llm = LLM(tiny_model("qwen3").path, **OPTIONS, async_scheduling=request.param)
    yield llm
    llm.core.check_integrity()
    assert llm.stats().num_used_blocks == 0


def seeded(seed: int, **params) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.3, "max_tokens": 24, "seed": seed, **params})


def test_seeded_output_does_not_depend_on_company_chunks_or_preemption(tiny_model, prompts, llm):
    params = [seeded(0), seeded(1, top_p=0.9), seeded(2, top_k=9), seeded(3), seeded(4, min_p=0.02)]
    together = [c.token_ids for c in llm.generate(prompts, params)]
    assert len(set(together[0])) > 5
    alone = [llm.generate([p], each)[0].token_ids for p, each in zip(prompts, params, strict=True)]
    assert alone == together

    scarce = LLM(
        tiny_model("qwen3").path,
        **{**OPTIONS, "max_model_len": 88},
        num_gpu_blocks_override=24,
        max_num_batched_tokens=9,
        max_num_seqs=5,
    )
    assert [c.token_ids for c in scarce.generate(prompts, params)] == together
    assert scarce.stats().num_preemptions_total > 0

    backwards = llm.generate(prompts[::-1], params[::-1])[::-1]
    assert [c.token_ids for c in backwards] == together


def test_other_seeds_give_other_output(llm, prompts):
    outputs = {llm.generate([prompts[2]], seeded(seed))[0].token_ids for seed in range(5)}
    assert len(outputs) == 5


def test_without_a_seed_requests_differ_from_each_other(llm, prompts):
    params = SamplingParams(temperature=1.0, max_tokens=16)
    outputs = {c.token_ids for c in llm.generate([prompts[2]] * 4, params)}
    assert len(outputs) == 4


def test_logprobs_are_the_oracles(tiny_model, prompts, llm):
    model = tiny_model("qwen3")
    params = SamplingParams(temperature=0, max_tokens=5, logprobs=4, prompt_logprobs=2)
    for prompt, completion in zip(prompts, llm.generate(prompts, params), strict=True):
        tokens = [*prompt, *completion.token_ids]
        with torch.no_grad():
            expected = model.oracle(torch.tensor([tokens])).logits[0].log_softmax(-1)
        assert completion.prompt_logprobs[0] is None
        reports = [*completion.prompt_logprobs[1:], *completion.logprobs]
        for position, report in enumerate(reports):
            row = expected[position]
            assert report.token_id == tokens[position + 1]
            assert report.logprob == pytest.approx(row[report.token_id].item(), abs=1e-3)
            assert report.rank == int((row > row[report.token_id]).sum()) + 1
            num_top = 2 if position < len(prompt) - 1 else 4
            values = row.topk(num_top).values.tolist()
            assert [value for _, value in report.top] == pytest.approx(values, abs=1e-3)


def test_prompt_logprobs_survive_chunks_preemption_and_a_warm_cache(tiny_model, prompts, llm):
    params = SamplingParams(temperature=0, max_tokens=20, prompt_logprobs=0)
    llm.generate(prompts, params)  # fills the cache
    expected = llm.generate(prompts, params)
    scarce = LLM(
        tiny_model("qwen3").path,
        **{**OPTIONS, "max_model_len": 80},
        num_gpu_blocks_override=22,
        max_num_batched_tokens=6,
        max_num_seqs=5,
    )
    found = scarce.generate(prompts, params)
    assert scarce.stats().num_preemptions_total > 0
    for a, b in zip(expected, found, strict=True):
        assert a.prompt_logprobs[0] is b.prompt_logprobs[0] is None
        assert [e.logprob for e in a.prompt_logprobs[1:]] == pytest.approx(
            [e.logprob for e in b.prompt_logprobs[1:]], abs=1e-3
        )


def test_end_of_sequence_comes_from_the_models_files(tiny_model, prompts, tmp_path):
    model = tiny_model("llama")
    (eos,) = model.greedy(prompts[1], 3)[2:]
    (tmp_path / "config.json").write_text((model.path / "config.json").read_text())
    (tmp_path / "model.safetensors").symlink_to(model.path / "model.safetensors")
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{eos}]}}')
    llm = LLM(tmp_path, **OPTIONS)
    tokens = model.greedy(prompts[1], 10)
    end = tokens.index(eos) + 1
    stopped, ignored, held = llm.generate(
        [prompts[1]] * 3,
        [
            SamplingParams(temperature=0, max_tokens=10),
            SamplingParams(temperature=0, max_tokens=10, ignore_eos=True),
            SamplingParams(temperature=0, max_tokens=10, min_tokens=6),
        ],
    )
    assert (stopped.token_ids, stopped.finish_reason) == (tokens[:end], "stop")
    assert (ignored.token_ids, ignored.finish_reason) == (tokens, "length")
    assert eos not in held.token_ids[:6]


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ((101,), {}, RequestError, "token id 101, but the vocabulary has ids from 0 to 100"),
        ((-1,), {}, RequestError, "token id -1"),
        ((), {}, RequestError, "no tokens"),
        ((1,) * 96, {}, PromptTooLong, "at most 96"),
        ((1,), {"max_tokens": 96}, PromptTooLong, "together 97"),
        ((1,), {"logprobs": 21}, InvalidSamplingParams, "logprobs is 21, but at most 20"),
        (
            (1,),
            {"stop_token_ids": (500,)},
            InvalidSamplingParams,
            "stop_token_ids has token id 500",
        ),
        ((1,), {"logit_bias": {500: 1.0}}, InvalidSamplingParams, "logit_bias has token id 500"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_alone(llm, prompt, params, error, message):
    with pytest.raises(error, match=message):
        llm.generate([prompt], SamplingParams(**params))
    assert len(llm.generate([[1, 2]], SamplingParams(max_tokens=3))[0].token_ids) == 3


def test_one_refused_prompt_refuses_the_batch_and_leaves_nothing_behind(llm):
    with pytest.raises(RequestError):
        llm.generate([[1, 2], [999]])
    assert not llm.core.has_unfinished_requests()


def test_aborted_requests_give_no_further_output(llm):
    for name in ("a", "b"):
        llm.core.add_request(EngineRequest(name, (1, 2, 3), SamplingParams(max_tokens=30)))
    llm.core.step()
    llm.core.abort_requests(["a"])
    names = set()
    while llm.core.has_unfinished_requests():
        names |= {output.request_id for output in llm.core.step()}
    assert names == {"b"}


def test_stats_count_from_zero_after_the_warm_up(llm):
    assert llm.stats().generation_tokens_total == 0
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True))
    stats = llm.stats()
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (3, 4)
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)


def test_kv_usage_is_the_held_fraction(llm):
    llm.core.add_request(EngineRequest("a", (1,) * 9, SamplingParams(max_tokens=30)))
    llm.core.step()
    stats = llm.stats()
    assert stats.num_used_blocks == 3
    assert stats.kv_cache_usage == 3 / stats.num_blocks
    llm.core.abort_requests(["a"])


@pytest.mark.parametrize("num_right", [0, 1, 3])
def test_guesses_change_the_number_of_steps_and_nothing_else(llm, prompts, num_right):
    params = [
        seeded(1, logprobs=2),
        seeded(2, top_p=0.8, frequency_penalty=0.5, repetition_penalty=1.2),
        SamplingParams(temperature=0, max_tokens=24, min_tokens=5),
    ]
    plain = llm.generate(prompts[:3], params)
    num_steps = llm.stats().num_steps_total
    for name, prompt, each in zip("abc", prompts, params, strict=False):
        llm.core.add_request(EngineRequest(name, prompt, each))
    outputs = {name: [] for name in "abc"}
    while llm.core.has_unfinished_requests():
        for name, completion in zip("abc", plain, strict=True):
            place = sum(len(output.token_ids) for output in outputs[name])
            right = completion.token_ids[place : place + num_right]
            llm.core._scheduler.propose(name, (*right, 17, 18))
        for output in llm.core.step():
            outputs[output.request_id].append(output)
        llm.core.check_integrity()
    for name, completion in zip("abc", plain, strict=True):
        assert sum((o.token_ids for o in outputs[name]), ()) == completion.token_ids
    reports = [entry for output in outputs["a"] for entry in output.logprobs]
    assert [e.token_id for e in reports] == list(plain[0].token_ids)
    assert [e.logprob for e in reports] == pytest.approx(
        [e.logprob for e in plain[0].logprobs], abs=1e-4
    )
    if not llm.core.config.async_scheduling:  # there, tokens are pending whenever one could guess
        assert llm.stats().num_steps_total - num_steps <= 1 + 24 / (num_right + 1) + 1


# --- memory -----------------------------------------------------------------------------------


def test_the_cache_size_is_counted_in_bytes(tiny_model):
    # qwen3: 2 (K and V) * 3 layers * 2 heads * 16 * 4 bytes = 768 per token, 4 tokens per block
    llm = LLM(tiny_model("qwen3").path, **OPTIONS, kv_cache_bytes=30 * 768 * 4 + 100)
    assert llm.stats().num_blocks == 30


def test_the_cache_is_never_larger_than_all_sequences_could_use(tiny_model):
    llm = LLM(tiny_model("qwen3").path, **OPTIONS, max_num_seqs=2)
    assert llm.stats().num_blocks == 2 * 96 // 4


def test_a_length_that_was_asked_for_must_fit(tiny_model):
    found = "override is 10, but one sequence of --max-model-len 96 tokens needs 24 KV blocks"
    with pytest.raises(ConfigurationError, match=found) as caught:
        LLM(tiny_model("qwen3").path, **OPTIONS, num_gpu_blocks_override=10)
    assert "override 24 or more, or leave it out, or use --max-model-len 40" in caught.value.hint
    assert caught.value.exit_code == 78


def test_a_length_that_was_asked_for_must_fit_what_is_free(tiny_model, monkeypatch):
    path = tiny_model("qwen3").path
    monkeypatch.setattr("exo_engine.core.memory.default_cpu_kv_cache_bytes", lambda free: 40 * 768)
    with pytest.raises(OutOfMemory, match="room for 10") as caught:
        LLM(path, **OPTIONS)
    assert "--max-model-len 40" in caught.value.hint
    assert caught.value.exit_code == 71


def test_a_length_nobody_asked_for_is_what_fits(tiny_model):
    options = {**OPTIONS, "max_model_len": None}
    llm = LLM(tiny_model("qwen3").path, **options, num_gpu_blocks_override=10)
    assert llm.core.config.max_model_len == 40
    assert len(llm.generate([[1]], SamplingParams(temperature=0))[0].token_ids) == 39


@pytest.mark.parametrize(
    ("length", "least", "told", "shorter"),
    [
        (96, 96 * 768, "one sequence of --max-model-len 96 tokens needs 73728 bytes", ""),
        (96, 96 * 768, "one sequence of --max-model-len 96 tokens", ", or use --max-model-len 92 or less"),
        (None, 4 * 768, "a block of 4 tokens needs 3072 bytes of KV cache", ""),
    ],
)  # fmt: skip
def test_a_cache_that_was_asked_for_too_small_is_refused_before_the_weights_are_read(
    tiny_model, monkeypatch, length, least, told, shorter
):
    path, options = tiny_model("qwen3").path, {**OPTIONS, "max_model_len": length}
    assert LLM(path, **options, kv_cache_bytes=least).stats().num_blocks == least // 3072
    monkeypatch.setattr("exo_engine.core.loading.load_decoder", None)
    given = least - 1 if shorter else 1000
    with pytest.raises(ConfigurationError, match=f"bytes is {given}, but {told}") as caught:
        LLM(path, **options, kv_cache_bytes=given)
    assert caught.value.exit_code == 78
    expected = f"Give --kv-cache-memory-bytes {least} or more, or leave it out{shorter}."
    assert caught.value.hint == expected


def test_a_default_cache_below_one_block_is_for_want_of_memory(tiny_model, monkeypatch):
    monkeypatch.setattr("exo_engine.core.memory.default_cpu_kv_cache_bytes", lambda free: 1000)
    with pytest.raises(OutOfMemory, match=r"is 1000 bytes, but one KV block of 4 tokens takes \d+"):
        LLM(tiny_model("qwen3").path, **OPTIONS)


def test_a_cache_beyond_the_free_memory_is_refused(tiny_model):
    options = {**OPTIONS, "num_gpu_blocks_override": 2**40}
    with pytest.raises(OutOfMemory, match=r"--num-gpu-blocks-override is .* GiB, but only"):
        LLM(tiny_model("qwen3").path, **options)


def test_weights_beyond_the_free_memory_are_refused_before_loading(tiny_model, monkeypatch):
    monkeypatch.setattr("exo_engine.core.memory.free_host_bytes", lambda: 50_000)
    with pytest.raises(OutOfMemory, match=r"loading the weights .* in float32 takes") as caught:
        LLM(tiny_model("qwen3").path, **OPTIONS)
    assert "--dtype bfloat16" in caught.value.hint


def test_running_out_of_device_memory_is_told_as_such(llm, monkeypatch):
    def run_out(*args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(llm.core.executor.runner._decoder, "forward", run_out)
    llm.core.add_request(EngineRequest("a", (1, 2, 3), SamplingParams()))
    with pytest.raises(OutOfMemory, match="a step of 3 tokens ran out of memory"):
        llm.core.step()
    llm.core.abort_requests(["a"])


def test_the_largest_step_fills_its_budget(tiny_model, monkeypatch):
    """The step that sizes the cache on CUDA."""
    core = EngineCore(EngineConfig(tiny_model("qwen3").path, **OPTIONS))
    config = replace(core.config, max_num_batched_tokens=64, max_num_seqs=8)
    decoder = core.executor.runner._decoder
    forward, sizes = decoder.forward, []

    def watched(token_ids, *rest):
        sizes.append(len(token_ids))
        return forward(token_ids, *rest)

    monkeypatch.setattr(decoder, "forward", watched)
    loading._run_largest_step(decoder, config)
    assert sizes == [64]


@pytest.fixture
def positions_of_a_gib(monkeypatch):
    """64 GiB are free, of which tables of positions may take half, and a GiB for each."""
    monkeypatch.setattr("exo_engine.core.memory.free_host_bytes", lambda: 64 * 2**30)
    monkeypatch.setattr(loading.Decoder, "position_bytes", lambda self, number: number * 2**30)


def test_positions_that_have_no_room_shorten_the_longest_sequence(
    tiny_model, positions_of_a_gib, caplog
):
    core = EngineCore(EngineConfig(tiny_model("qwen3").path, **{**OPTIONS, "max_model_len": None}))
    assert core.config.max_model_len == 32
    assert "max_position_embeddings" in caplog.text
    (done,) = LLM(tiny_model("qwen3").path, **{**OPTIONS, "max_model_len": 32}).generate([[1, 2]])
    assert len(done.token_ids) <= 30


def test_more_positions_than_there_is_room_for_are_refused(tiny_model, positions_of_a_gib):
    with pytest.raises(OutOfMemory, match=r"--max-model-len 96 tokens take 96.0 GiB") as caught:
        EngineCore(EngineConfig(tiny_model("qwen3").path, **OPTIONS))
    assert caught.value.hint == "Use --max-model-len 32 or less, or free memory."


@pytest.mark.parametrize("was_asked", [False, True])
def test_positions_may_not_take_what_the_cache_will(tiny_model, positions_of_a_gib, was_asked):
    """Half of what their tables take stays, beside the cache; none is left to shorten to."""
    core = EngineCore(EngineConfig(tiny_model("qwen3").path, **{**OPTIONS, "max_model_len": 32}))
    plan = cache_plan(core.spec, core.config)
    for left, longest in ((3, 6), (0, 0)):
        num_blocks = (64 - left) * 2**30 // plan.block_bytes
        config = replace(core.config, max_model_len=7)
        if was_asked or not longest:
            with pytest.raises(OutOfMemory):
                fit_positions(2**30, core.spec, config, num_blocks, was_asked=was_asked)
        else:
            found = fit_positions(2**30, core.spec, config, num_blocks, was_asked=False)
            assert found == longest


def test_broken_logits_end_one_request_with_an_error(llm, monkeypatch):
    result = llm.core.executor.result

    def break_first():
        first, *others = result().sequences
        return StepResult((replace(first, token_ids=(), is_valid=False), *others))

    monkeypatch.setattr(llm.core.executor, "result", break_first)
    for name in ("bad", "good"):
        llm.core.add_request(EngineRequest(name, (1, 2), SamplingParams(max_tokens=3)))
    reasons = {}
    for _ in range(3):
        for output in llm.core.step():
            reasons[output.request_id] = output.finish_reason
        monkeypatch.setattr(llm.core.executor, "result", result)
    assert reasons == {"bad": "error", "good": "length"}


@pytest.mark.parametrize(
    ("words", "param"),
    [
        ({"allowed_token_ids": (7, 8), "stop_token_ids": (7, 8), "min_tokens": 2}, "min_tokens"),
        (
            {
                "allowed_token_ids": (7, 8),
                "bad_words": ((7,),),
                "stop_token_ids": (8,),
                "min_tokens": 2,
            },
            "min_tokens",
        ),
        ({"allowed_token_ids": (7, 8), "bad_words": ((7,), (8,))}, "allowed_token_ids"),
    ],
)
def test_a_request_that_forbids_all_that_it_allows_is_refused_at_once(llm, words, param):
    with pytest.raises(InvalidSamplingParams, match="none is left to choose") as caught:
        llm.generate([[1, 2]], SamplingParams(max_tokens=4, **words))
    assert caught.value.param == param
    llm.generate([[1, 2]], SamplingParams(max_tokens=4, allowed_token_ids=(7, 8), min_tokens=4))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_that_is_left_without_a_token_is_at_fault_itself(llm, temperature):
    """As soon as the one token that it allows may not follow; what runs beside it goes on."""
    words = {"temperature": temperature, "max_tokens": 4, "ignore_eos": True}
    bad = SamplingParams(allowed_token_ids=(7,), bad_words=((7, 7),), **words)
    for name, params in (("bad", bad), ("good", SamplingParams(**words))):
        llm.core.add_request(EngineRequest(name, (1, 2), params))
    outputs = {"bad": [], "good": []}
    while llm.core.has_unfinished_requests():
        for output in llm.core.step():
            outputs[output.request_id].append(output)
    assert [each.token_ids for each in outputs["bad"]] == [(7,), ()]
    assert [each.fault for each in outputs["bad"]] == [None, NOTHING_LEFT]
    assert sum(len(each.token_ids) for each in outputs["good"]) == 4
    with pytest.raises(InvalidSamplingParams, match="leave no token to choose") as caught:
        llm.generate([[1, 2]], bad)
    assert caught.value.param is None


def test_a_request_with_broken_numbers_does_not_spoil_the_next_ones(tiny_model):
    """Blocks that held NaN are handed on; what others have not written must not reach them."""
    llm = LLM(tiny_model("qwen3").path, **OPTIONS, num_gpu_blocks_override=24)
    greedy = SamplingParams(temperature=0, max_tokens=10)
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 6, 7]]
    expected = [c.token_ids for c in llm.generate(prompts, greedy)]
    embedding = llm.core.executor.runner._decoder.embedding.weight
    with torch.inference_mode():
        saved = embedding[100].clone()
        embedding[100] = torch.nan
    (broken,) = llm.generate([[1, 2, 3, 4] + [100] * 80], greedy)
    assert (broken.finish_reason, broken.token_ids) == ("error", ())
    with torch.inference_mode():
        embedding[100] = saved
    assert [c.token_ids for c in llm.generate(prompts, greedy)] == expected
    healed = llm.generate([[1, 2, 3, 4] + [100] * 80], greedy)[0]
    assert healed.finish_reason == "length"


def test_unknown_options_are_refused(tiny_model):
    with pytest.raises(ConfigurationError, match="warp_speed"):
        LLM(tiny_model("qwen3").path, warp_speed=9)
