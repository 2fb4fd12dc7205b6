"""Engines whose memory is not sized: what is said of them, and what never refuses."""

from __future__ import annotations

import pytest

from exo_inference.planner import Verdict, find_gpu, find_model
from exo_inference.preflight import Subject, judge, to_wire

SMALL, LARGE = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"


def subject(engine: str, *flags: str, model: str = SMALL, count: int = 1) -> Subject:
    gpu = find_gpu("gpua5000")
    return Subject(find_model(model), gpu, count, flags, engine=engine)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("sglang", ("--context-length", "8192")),
        ("tensorrt-llm", ("--max_seq_len=8192",)),
        ("tgi", ("--max-total-tokens", "8192")),
    ],
)
def test_no_figure_of_vllm_is_told_for_another_engine(engine: str, flags: tuple[str, ...]) -> None:
    judgement = judge(subject(engine, *flags))
    assert (judgement.verdict, judgement.plan) == (Verdict.UNKNOWN, None)
    assert (judgement.advice, judgement.improvements) == ((), ())
    (note,) = judgement.notes
    assert note.startswith("not sized for ")
    assert "its weights take 15.0 GiB of the 23.5 GiB of each GPU" in note
    told = to_wire(judgement)
    assert (told.engine, told.parameters) == (engine, list(flags))


@pytest.mark.parametrize(
    ("engine", "flags", "words"),
    [
        ("sglang", ("--mem-fraction-static", "7"), "--mem-fraction-static is 7.0, expected above 0"),
        ("sglang", ("--tp", "1", "--context-length=0"), "--context-length is 0, expected a whole"),
        ("tensorrt-llm", ("--max_seq_len=0",), "--max_seq_len is 0, expected a whole number"),
        ("tgi", ("--cuda-memory-fraction=7",), "--cuda-memory-fraction is 7.0, expected above 0"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_planned_is_told_with_the_flag_that_has_it(
    engine: str, flags: tuple[str, ...], words: str
) -> None:
    (note,) = judge(subject(engine, *flags)).notes
    assert words in note
    written = {flag.partition("=")[0] for flag in flags if flag.startswith("--")}
    assert {word for word in note.split() if word.startswith("--")} <= written


def test_weights_that_are_more_than_the_memory_refuse() -> None:
    judgement = judge(subject("tgi", model=LARGE, count=2))
    assert judgement.verdict is Verdict.REFUSED
    (problem,) = judgement.plan_problems
    assert (problem.code, problem.refuses) == ("memory", True)
    assert "the weights alone take" in problem.detail
    assert judgement.plan is not None
    assert [each.name for each in judgement.plan.components] == ["weights"]
    assert (judgement.plan.kv_capacity_tokens, judgement.plan.speed) == (0, None)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
        ("llama-cpp", ()),
        ("sglang", ("--cpu-offload-gb", "100")),
        ("sglang", ("--kv-cache-dtype", "fp4_e2m1")),
        ("tgi", ("--quantize", "bitsandbytes-nf4")),
        ("tensorrt-llm", ("--free_gpu_memory_fraction", "0.5")),
    ],
)
def test_what_is_not_known_is_not_judged_and_refuses_nothing(
    engine: str, flags: tuple[str, ...]
) -> None:
    judgement = judge(subject(engine, *flags, model=LARGE))
    assert judgement.verdict is Verdict.UNKNOWN
    assert judgement.plan_problems == ()
    assert judgement.notes[0].startswith("not sized for ")
    assert to_wire(judgement).engine == engine


def test_flags_and_sizes_refuse_as_they_do_for_vllm() -> None:
    misspelt = judge(subject("sglang", "--contxt-length", "8192"))
    (problem,) = misspelt.flag_problems
    assert "did you mean --context-length?" in problem.detail
    sizes = judge(subject("sglang", "--tp-size", "4", count=2))
    (problem,) = sizes.flag_problems
    assert (problem.reason, sizes.verdict) == ("model", Verdict.REFUSED)
