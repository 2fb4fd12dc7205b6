"""A core under simulation: the big deployment's limits and speed, the small model's words."""

from __future__ import annotations

import dataclasses
import random

import pytest
from exo_engine.config import EngineConfig
from exo_engine.core.engine import EngineCore
from exo_engine.core.request import EngineRequest
from exo_engine.core.start_up import StartUp
from exo_engine.errors import CoreFailed, InvalidSamplingParams, PromptTooLong
from exo_engine.llm import LLM
from exo_engine.sampling_params import SamplingParams
from exo_engine.simulation import loading as simulation_loading
from exo_engine.simulation import parse_simulation

WINDOW = 256  # all that the tiny models were made for
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def random_prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    numbers = random.Random(seed)
    return tuple(numbers.randrange(101) for _ in range(length))


@pytest.fixture
def start(tiny_model, document, clock):
    """Return a function that starts a core with changes to the file; time is virtual."""

    def build(changes=None, told=None, **options) -> EngineCore:
        simulation = parse_simulation(document | (changes or {}))
        config = EngineConfig(tiny_model("llama").path, simulation=simulation, **options)
        return EngineCore(
            config, start_up=StartUp((told if told is not None else []).append, clock=clock)
        )

    return build


@pytest.fixture
def real(tiny_model):
    """The small model as it is."""
    return LLM(tiny_model("llama").path, dtype="float32", device="cpu", num_gpu_blocks_override=256)


def run(core: EngineCore, *prompts: tuple[int, ...], **params) -> list[tuple[int, ...]]:
    """Answer prompts together."""
    start = core.stats().num_steps_total
    names = [f"{start}/{index}" for index in range(len(prompts))]
    for name, prompt in zip(names, prompts, strict=True):
        core.add_request(EngineRequest(name, prompt, SamplingParams(**{**GREEDY, **params})))
    answers: dict[str, tuple[int, ...]] = dict.fromkeys(names, ())
    while core.has_unfinished_requests():
        for output in core.step():
            answers[output.request_id] += output.token_ids
    core.check_integrity()
    return list(answers.values())


def greedy(real: LLM, prompt, num_tokens: int) -> tuple[int, ...]:
    params = SamplingParams(**GREEDY, max_tokens=num_tokens)
    return real.generate([prompt], params)[0].token_ids


def test_limits_are_those_of_the_file_and_win_over_flags(start):
    core = start(None, max_model_len=64, max_num_seqs=2, kv_cache_bytes=2**20, dtype="bfloat16")
    assert core.stats().num_blocks == 312_500
    assert core.stats().block_size == 16
    assert core.config.max_model_len == 131_072
    assert core.config.max_num_seqs == 256
    assert core.config.max_num_batched_tokens == 8192
    assert (core.config.device, core.config.dtype) == ("cpu", "float32")


def test_start_goes_through_the_phases_for_as_long_as_they_take(start, clock, capsys):
    told = []
    core = start(told=told)
    assert told == ["loading weights", "capturing CUDA graphs"]
    assert clock.time == pytest.approx(142.5)
    assert capsys.readouterr().err.splitlines() == ["Loading weights took 30 s"]
    assert core.measurements.start_up_seconds == pytest.approx(
        {"loading weights": 30.0, "capturing CUDA graphs": 12.5}
    )


def test_start_without_phases_is_ready_at_once(start, clock):
    start({"phases": []})
    assert clock.time == 100


def test_start_fails_in_its_phase_with_lines_text_and_status(start, clock, capsys, monkeypatch):
    monkeypatch.setattr(simulation_loading, "_load", None)  # nothing is loaded for it
    lines = ["torch.OutOfMemoryError: CUDA out of memory.", "  at capture"]
    told = []
    fail = {"phase": "capturing CUDA graphs", "error": "no room", "exit_code": 71, "log": lines}
    with pytest.raises(CoreFailed, match="no room") as caught:
        start({"fail": fail}, told)
    assert caught.value.exit_code == 71
    assert told == ["loading weights", "capturing CUDA graphs"]
    assert clock.time == pytest.approx(142.5)
    assert capsys.readouterr().err.splitlines()[1:] == lines


def test_measurements_say_that_they_are_simulated_and_measure_nothing(start):
    measured = dataclasses.asdict(start().measurements)
    assert measured["simulated"] is True
    assert (measured["num_kv_blocks"], measured["kv_capacity_tokens"]) == (312_500, 5_000_000)
    assert measured["max_model_len"] == 131_072
    unknown = ("weights_bytes", "available_kv_bytes", "kv_bytes_per_token", "device_total_bytes")
    assert [measured[key] for key in unknown] == [None] * 4


def test_answers_within_the_window_are_the_small_models_own(start, real):
    prompts = [random_prompt(length, length) for length in (1, 17, 100, 200)]
    assert run(start(), *prompts, max_tokens=40) == [greedy(real, each, 40) for each in prompts]


def test_small_model_sees_the_last_half_window_of_a_long_prompt(start, real):
    prompt = random_prompt(3000)
    (answer,) = run(start(), prompt, max_tokens=100)
    assert answer == greedy(real, prompt[-WINDOW // 2 :], 100)


def test_full_window_begins_anew_with_its_second_half(start, real):
    prompt = random_prompt(250)
    (answer,) = run(start(), prompt, max_tokens=100)
    assert answer[:6] == greedy(real, prompt, 6)  # the seventh sees all that there is room for
    seen = (prompt + answer)[: WINDOW + 1]
    assert answer[7:] == greedy(real, seen[-WINDOW // 2 :], 93)


def test_more_sequences_than_the_small_cache_holds_are_answered_alike(start, real, monkeypatch):
    monkeypatch.setattr(simulation_loading, "_MAX_CACHE_BYTES", 0)  # room for one window
    prompts = [random_prompt(length, length) for length in (30, 90, 150, 200)]
    assert run(start(), *prompts, max_tokens=20) == [greedy(real, each, 20) for each in prompts]


def test_preemption_and_prefix_cache_are_those_of_the_simulated_cache(start, real):
    small = {"kv_capacity_tokens": 160, "max_model_len": 160}
    core = start(small)
    prompts = [random_prompt(50, seed) for seed in range(4)]
    assert run(core, *prompts, max_tokens=40) == [greedy(real, each, 40) for each in prompts]
    assert core.stats().num_preemptions_total > 0
    assert core.stats().num_used_blocks == 0
    (again,) = run(core, prompts[0], max_tokens=40)
    (once_more,) = run(core, prompts[0], max_tokens=40)
    assert again == once_more == greedy(real, prompts[0], 40)
    assert core.stats().prefix_cache_hits_total >= 48


def test_time_to_first_token_and_between_tokens_are_those_of_the_file(start, clock):
    core = start()
    begin = clock.time
    core.add_request(
        EngineRequest("a", random_prompt(60_000), SamplingParams(**GREEDY, max_tokens=11))
    )
    times = []
    while core.has_unfinished_requests():
        if core.step():
            times.append(clock.time - begin)
    assert times[0] == pytest.approx(0.2 + 59_000 / 8000 * 2)
    assert times[10] - times[0] == pytest.approx(0.2)
    run(core, random_prompt(60_000), max_tokens=1)  # from the prefix cache
    assert clock.time - begin - times[10] == pytest.approx(0.02)


def test_longer_than_the_simulated_length_is_refused(start):
    core = start()
    with pytest.raises(PromptTooLong, match="at most 131072"):
        core.add_request(EngineRequest("a", (1,) * 131_072, SamplingParams()))


def test_prompt_log_probabilities_are_right_or_refused(start, real):
    core = start()
    prompt = random_prompt(WINDOW)
    params = SamplingParams(**GREEDY, max_tokens=1, prompt_logprobs=0)
    core.add_request(EngineRequest("a", prompt, params))
    (output,) = core.step()
    wanted = real.generate([prompt[:-1]], params)[0].prompt_logprobs
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    assert [each.logprob for each in output.prompt_logprobs[1:-1]] == pytest.approx(
        [each.logprob for each in wanted[1:]], abs=1e-4
    )
    with pytest.raises(InvalidSamplingParams, match="at most 256"):
        core.add_request(EngineRequest("b", (*prompt, 1), params))
