"""Guesses verified by graphs of several tokens per sequence: the answers are those without guesses and graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from exo_engine import LLM, SamplingParams
from exo_engine.core import runner
from exo_engine.core.request import EngineRequest
from exo_engine.kernels.triton.launch import Launch

from ..fake_gpu import FakeGpu, NoWaiting, give_zeros

NUM_TOKENS = 6
NAN = 255
"""Four bytes of it are no number."""
WAYS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0, "seed": 1},
    "top-k": {"temperature": 0.9, "top_k": 9, "min_p": 0.01, "seed": 2},
    "top-p": {"temperature": 1.2, "top_p": 0.9, "seed": 3},
}


@pytest.fixture
def gpu(monkeypatch) -> FakeGpu:
    """A device that verifies up to three guesses of a sequence."""
    fake, capture = FakeGpu(), runner.ModelRunner.capture_graphs
    monkeypatch.setattr(runner, "device_ops", lambda device: fake)
    monkeypatch.setattr(
        runner.ModelRunner, "capture_graphs", lambda self, most: capture(self, most, (1, 4))
    )
    return fake


def plainly(model, prompts, asked) -> list:
    """Answer without graphs, guesses and Triton's kernels."""
    llm = LLM(
        model.path, device="cpu", dtype="float32", attention_backend="reference", max_model_len=64
    )
    return llm.generate(prompts, asked)


def make(model, *, max_num_seqs: int = 2, **options) -> LLM:
    return LLM(
        model.path, device="cpu", dtype="float32", attention_backend="triton", max_num_seqs=max_num_seqs,
        max_model_len=64, async_scheduling=False, **options,
    )  # fmt: skip


def params(**others) -> SamplingParams:
    return SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, **others)


def guessed(llm: LLM, prompts, asked, plain, num_right: dict[str, int]) -> dict[str, tuple]:
    """Answer with guesses, of which some are right and the last one is wrong; tokens and reports."""
    for name, prompt, each in zip("abc", prompts, asked, strict=False):
        llm.core.add_request(EngineRequest(name, prompt, each))
    found = dict.fromkeys("abc"[: len(asked)], ((), ()))
    while llm.core.has_unfinished_requests():
        for name, own in num_right.items():
            tokens = plain["abc".index(name)].token_ids
            place = len(found[name][0])
            wrong = (tokens[place + own] + 1) % 101 if place + own < len(tokens) else 0
            llm.core._scheduler.propose(name, (*tokens[place : place + own], wrong))
        for output in llm.core.step():
            tokens, reports = found[output.request_id]
            found[output.request_id] = (
                tokens + output.token_ids,
                reports + tuple(each.token_id for each in output.logprobs or ()),
            )
        llm.core.check_integrity()
    return found


@pytest.mark.parametrize("way", [pytest.param("greedy", marks=pytest.mark.slow), "top-p"])
def test_right_guesses_are_taken_in_one_step_and_nobody_waits(gpu, tiny_model, monkeypatch, way):
    model, asked = tiny_model("llama"), [params(**WAYS[way])] * 2
    prompts = [(1, 2, 3, 4), (5, 6, 7, 8, 9)]
    plain = plainly(model, prompts, asked)
    llm = make(model)
    dispatch, steps = runner.ModelRunner._dispatch, []

    def watched(self, frame):
        before = gpu.num_replayed, gpu.num_fetched
        with NoWaiting():
            pending = dispatch(self, frame)
        steps.append((gpu.num_replayed - before[0], gpu.num_fetched - before[1]))
        return pending

    monkeypatch.setattr(runner.ModelRunner, "_dispatch", watched)
    found = guessed(llm, prompts, asked, plain, {"a": 2, "b": 0})
    assert [found[name][0] for name in "ab"] == [each.token_ids for each in plain]
    # The prompts, and then "b" alone decides: each of its steps yields one token.
    assert len(steps) == NUM_TOKENS
    assert steps[0] == (0, 1)
    assert set(steps[1:]) == {(1 if way == "greedy" else 2, 1)}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3", "mistral-window", "gemma3"])
@pytest.mark.parametrize("num_right", [1, 2])
def test_any_guesses_and_any_way_to_choose_give_the_same(
    gpu, tiny_model, prompts, family, num_right
):
    model = tiny_model(family)
    prompts = [prompt for prompt in prompts if len(prompt) > 3][:3]
    others = {"temperature": 0.8, "top_p": 0.8, "repetition_penalty": 1.3, "logprobs": 1, "seed": 5}
    for asked in (
        [params(**WAYS["plain"]), params(**WAYS["top-k"]), params(**WAYS["greedy"])],
        [params(**WAYS["top-p"]), params(**others), params(temperature=0.8, top_k=90, seed=3)],
    ):
        plain = plainly(model, prompts, asked)
        llm = make(model, max_num_seqs=3)
        before = gpu.num_replayed
        found = guessed(llm, prompts, asked, plain, {"a": num_right, "b": num_right, "c": 0})
        assert gpu.num_replayed > before
        for name, expected in zip("abc", plain, strict=True):
            assert found[name][0] == expected.token_ids
            assert found[name][1] == tuple(each.token_id for each in expected.logprobs or ())


@pytest.mark.slow
def test_a_sequence_shorter_than_the_graph_is_computed_without_one(gpu, tiny_model):
    model, asked = tiny_model("llama"), [params(temperature=0.0)]
    plain = plainly(model, [(7,)], asked)
    llm = make(model)
    before = gpu.num_replayed
    assert guessed(llm, [(7,)], asked, plain, {"a": 0})["a"][0] == plain[0].token_ids
    assert gpu.num_replayed - before == NUM_TOKENS - 1  # all but the second, of three tokens


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mistral-window", "gemma3"])
def test_nothing_is_read_that_a_window_gave_back(gpu, tiny_model, monkeypatch, family):
    """A prompt found in the cache is longer than the window; it has no guesses, and another sequence has three.

    What the two do not hold belongs to others, who may have anything there.
    """
    model, prompts = tiny_model(family), [(1, 2, 3, 4), tuple(range(10, 35))]
    greedy = params(temperature=0.0)
    asked = [replace(greedy, max_tokens=3 * NUM_TOKENS), greedy]
    plain = plainly(model, prompts, asked)
    llm = make(model, block_size=4)
    llm.generate(prompts[1:], replace(greedy, max_tokens=1))
    dispatch, steps = runner.ModelRunner._dispatch, []

    def poisoned(self, frame):
        holdings = llm.core._scheduler.blocks._holdings.values()
        held = {block for holding in holdings for table in holding.tables for block in table}
        self._cache.pool[:, sorted(set(range(self._cache.num_blocks)) - held)] = NAN
        before = gpu.num_replayed
        pending = dispatch(self, frame)
        steps.append((frame.starts.tolist(), frame.num_tokens.tolist(), gpu.num_replayed - before))
        return pending

    monkeypatch.setattr(runner.ModelRunner, "_dispatch", poisoned)
    found = guessed(llm, prompts, asked, plain, {"a": 2})
    assert [found[name][0] for name in "ab"] == [each.token_ids for each in plain]
    assert steps[0][:2] == ([0, 24], [4, 1])
    assert [each[1] for each in steps[1:NUM_TOKENS]] == [[4, 1]] * (NUM_TOKENS - 1)
    # Where the graph's three tokens more reach no other block, it serves.
    assert 0 < sum(each[2] for each in steps[:NUM_TOKENS]) < NUM_TOKENS


def test_a_rehearsal_of_several_tokens_tells_what_their_graphs_take(gpu, tiny_model, monkeypatch):
    monkeypatch.setattr(Launch, "run", give_zeros)
    llm = make(tiny_model("llama"), max_num_seqs=1)
    computing = llm.core._pipeline.executor.runner
    assert computing.graph_bytes == gpu.bytes_of_graph * gpu.num_captured
    assert computing.rehearse_graphs(64, (1, 4)) == computing.graph_bytes
    assert computing.rehearse_graphs(64) < computing.graph_bytes
