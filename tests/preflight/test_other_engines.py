"""Engines that take no flags of vLLM: what is said of their memory, and what never refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from exo_inference.engines.flags.catalogue import UnknownRelease
from exo_inference.errors import UsageError
from exo_inference.planner import Verdict, find_gpu, find_model
from exo_inference.preflight import Subject, judge, to_wire

SMALL, LARGE = "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.3-70B-Instruct"


def subject(engine: str, *flags: str, model: str = SMALL, count: int = 1) -> Subject:
    gpu = find_gpu("gpua5000")
    return Subject(find_model(model), gpu, count, flags, engine=engine)


@pytest.mark.parametrize(
    ("engine", "flags"),
    [
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
        ("llama-cpp", ("--lora", "adapter.gguf")),
        ("sglang", ("--cpu-offload-gb", "100")),
        ("sglang", ("--load-format", "bitsandbytes")),
        ("sglang", ("--speculative-algorithm", "EAGLE")),
        ("sglang", ("--enable-lora",)),
        ("sglang", ("--is-embedding",)),
        ("sglang", ("--moe-a2a-backend=deepep", "--mem-fraction-static=0.8")),
        ("sglang", ("--model-impl=transformers",)),
        ("tgi", ("--quantize", "bitsandbytes-nf4")),
        ("tensorrt-llm", ("--free_gpu_memory_fraction", "0.5")),
    ],
)
def test_what_is_not_known_is_not_judged_and_refuses_nothing(
    engine: str, flags: tuple[str, ...]
) -> None:
    model = f"{LARGE}-GGUF" if engine == "llama-cpp" else LARGE
    judgement = judge(subject(engine, *flags, model=model))
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


def test_sglang_is_planned_by_its_own_rules() -> None:
    judgement = judge(subject("sglang", "--context-length", "8192", "--mem-fraction-static=0.8"))
    assert judgement.verdict is Verdict.FITS
    assert judgement.plan is not None
    assert judgement.plan.kv_capacity_tokens > 8192
    assert judgement.plan.speed is None
    told = to_wire(judgement)
    assert told.engine_version == judgement.subject.version
    assert told.parameters == ["--context-length", "8192", "--mem-fraction-static=0.8"]


def test_sglang_refuses_weights_beyond_its_share_and_names_ways_out() -> None:
    asked = replace(
        subject("sglang", "--mem-fraction-static=0.8", model=LARGE), gpu=find_gpu("h100")
    )
    judgement = judge(asked)
    assert judgement.verdict is Verdict.REFUSED
    (problem,) = judgement.plan_problems
    assert problem.code == "memory"
    ways = to_wire(judgement).advice
    assert ["--gpu-count=4"] in [way.options for way in ways]
    assert {kind for way in ways for kind in way.kinds} <= {"gpu-count", "gpu-type", "checkpoint"}
    for way in ways:
        assert (way.flags, way.inter_token_seconds_change) == ([], None)
        assert way.plan is not None
        assert way.plan.parameters == ["--mem-fraction-static=0.8"]
        again = replace(judgement.subject, gpu_count=way.plan.gpu_count)
        if way.options == [f"--gpu-count={way.plan.gpu_count}"]:
            assert judge(again).verdict is Verdict.FITS


def test_a_context_that_the_cache_of_sglang_does_not_hold_is_told() -> None:
    judgement = judge(subject("sglang", "--context-length", "131072"))
    assert judgement.verdict is Verdict.FITS
    assert judgement.plan is not None
    assert any("of the 131,072 of the context" in note for note in judgement.plan.notes)


@pytest.mark.parametrize(
    "flag",
    [
        "--cuda-graph-max-bs=8",
        "--cuda-graph-max-bs-decode=8",
        "--disable-cuda-graph",
        "--disable-prefill-cuda-graph",
    ],
)
def test_flags_of_the_default_share_are_planned_beside_the_share_alone(flag: str) -> None:
    (note,) = judge(subject("sglang", flag)).notes
    assert note == (
        f"not sized for SGLang: {flag.partition('=')[0]} changes what --mem-fraction-static is by default; "
        "say --mem-fraction-static too"
    )
    assert judge(subject("sglang", flag, "--mem-fraction-static=0.8")).verdict is Verdict.FITS


def test_tokens_of_sglang_are_capped_as_asked() -> None:
    judgement = judge(subject("sglang", "--max-total-tokens", "4096"))
    assert judgement.plan is not None
    assert judgement.plan.kv_capacity_tokens == 4096


@pytest.mark.parametrize("flag", ["--context-length", "--max-total-tokens"])
@pytest.mark.parametrize("value", ["-1", "1", "0"])
def test_too_few_tokens_are_no_plan(flag: str, value: str) -> None:
    (note,) = judge(subject("sglang", f"{flag}={value}")).notes
    assert f"{flag} is {value}, expected" in note


def test_prompts_that_are_not_cut_are_planned_beside_a_share() -> None:
    assert (
        "--chunked-prefill-size changes"
        in judge(subject("sglang", "--chunked-prefill-size=-1")).notes[0]
    )
    both = judge(subject("sglang", "--chunked-prefill-size=-1", "--mem-fraction-static=0.8"))
    assert both.verdict is Verdict.FITS


def test_tokens_are_given_in_pages() -> None:
    refused = judge(subject("sglang", "--page-size=100000000"))
    assert refused.verdict is Verdict.REFUSED
    assert "--page-size is 0" in judge(subject("sglang", "--page-size=0")).notes[0]


@pytest.mark.parametrize(
    ("model", "flag", "is_told"),
    [
        (SMALL, "--disable-radix-cache", False),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "--disable-radix-cache", True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "--disable-overlap-schedule", True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "--max-total-tokens=300000", True),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "--enable-int8-mamba-checkpoint", True),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "--mm-feature-transport=cpu", True),
        ("openai/gpt-oss-20b", "--attention-backend=triton", False),
        ("openai/gpt-oss-20b", "--disable-radix-cache", True),
        ("google/gemma-3-27b-it", "--disable-radix-cache", False),
        ("google/gemma-3-27b-it", "--enable-multimodal", True),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "--enable-multimodal", False),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "--mm-enable-dp-encoder", True),
        (SMALL, "--dsa-decode-backend=fa3", False),
    ],
)
def test_flags_of_the_cache_count_where_the_model_has_such_layers(
    model: str, flag: str, *, is_told: bool
) -> None:
    judged = judge(replace(subject("sglang", flag, model=model), gpu=find_gpu("b300")))
    told = any("means for its cache is not known" in note for note in judged.notes)
    assert told is is_told
    assert (judged.plan is None) is is_told


def test_weights_refuse_where_nothing_else_is_known() -> None:
    judged = judge(subject("sglang", "--disable-cuda-graph", model=LARGE, count=2))
    assert judged.verdict is Verdict.REFUSED
    assert "the weights alone take" in judged.plan_problems[0].detail


def test_a_wrong_length_is_told_once_and_where_it_is() -> None:
    told = to_wire(judge(subject("sglang", "--context-length=500000")))
    (problem,) = [each for each in told.problems if each.code == "max-model-len"]
    assert problem.location == "$['inference-engine-parameters'][0]"
    assert not any("is answered with an error" in note for note in told.notes)


def test_a_wrong_size_is_told_once() -> None:
    told = to_wire(judge(subject("sglang", "--tp=2")))
    assert len(told.problems) == 1


def test_ways_out_count_on_what_others_leave_free() -> None:
    """On the same kind of GPU there is as little; of another kind all is free."""
    flags = ("--context-length=8192", "--max-running-requests=8", "--mem-fraction-static=0.6")
    asked = replace(subject("sglang", *flags), gpu=find_gpu("h100"), free_bytes=17 * 2**30)
    judged = judge(asked)
    assert judged.verdict is Verdict.REFUSED
    sizes = {
        (each.plan.gpu, each.plan.gpu_count): each.plan.budget_bytes_per_gpu
        for each in judged.advice
    }
    own = judged.plan.gpu if judged.plan is not None else ""
    assert sizes[own, 2] == int(0.6 * 17 * 2**30)
    assert any(size > 17 * 2**30 for (kind, _), size in sizes.items() if kind != own)
    assert judge(replace(asked, gpu_count=2)).verdict is Verdict.FITS


def test_ways_out_name_no_count_that_parallel_sizes_rule_out() -> None:
    """Without a size of tensor parallelism the platform gives that of the count."""
    judgement = judge(subject("sglang", "--data-parallel-size=2", model=LARGE, count=2))
    assert judgement.verdict is Verdict.REFUSED
    assert judgement.advice == ()
    assert judge(subject("sglang", model=LARGE, count=2)).advice


def test_other_releases_of_sglang_are_planned_with_flags_unchecked() -> None:
    asked = replace(
        subject("sglang", "--context-length", "4096", "--new-flag", "1"), plans_unlisted=True
    )
    judged = {
        version: judge(replace(asked, engine_version=version))
        for version in ("0.4.9.post4", "0.5.17", "0.6.0")
    }
    old, own, new = judged.values()
    assert own.verdict is Verdict.REFUSED  # there is no such flag
    for each in (old, new):
        assert each.verdict is Verdict.FITS
        assert each.plan is not None
        assert each.plan.max_model_len == 4096
    assert old.plan is not None
    assert new.plan is not None
    assert old.plan.available_kv_bytes_per_gpu > new.plan.available_kv_bytes_per_gpu
    assert old.plan.notes[0] == (
        "the flags of SGLang 0.4.9.post4 were not checked: those of 0.5.17 alone are known; "
        "memory is planned by the rules of that release"
    )
    assert "planned by those of 0.5.23, the last that were read" in new.plan.notes[0]
    assert to_wire(old).engine_version == "0.4.9.post4"


def test_releases_of_sglang_whose_rules_were_not_read_are_refused_by_name() -> None:
    asked = replace(subject("sglang"), plans_unlisted=True)
    with pytest.raises(
        UnknownRelease,
        match=r"the rules of SGLang 0\.3\.6 were not read; those here begin at 0\.4\.0",
    ):
        judge(replace(asked, engine_version="0.3.6"))
    with pytest.raises(UsageError, match=r"only those of 0\.5\.17"):
        judge(replace(asked, engine_version="0.5.12", plans_unlisted=False))


def test_gemma_3_has_its_own_context_in_sglang_where_the_release_reads_it_right() -> None:
    asked = replace(
        subject("sglang", model="google/gemma-3-4b-it"), gpu=find_gpu("H100"), plans_unlisted=True
    )
    for version in (None, "0.5.10", "0.5.23"):
        found = judge(replace(asked, engine_version=version)).plan
        assert found is not None
        assert found.max_model_len == 131_072
    (note,) = judge(replace(asked, engine_version="0.5.9")).notes
    assert "takes its context to be longer than it is; say --context-length" in note
    said = judge(replace(asked, engine_version="0.5.9", flags=("--context-length=8192",)))
    assert said.verdict is Verdict.FITS


def test_ways_out_for_sglang_are_gpus_that_the_release_serves() -> None:
    asked = Subject(
        find_model(LARGE), find_gpu("gpua5000"), 4, engine="sglang", plans_unlisted=True
    )
    old, new = (judge(replace(asked, engine_version=each)) for each in ("0.4.4", "0.5.23"))
    gpus = [{way.plan.gpu for way in each.advice} for each in (old, new)]
    assert any("Blackwell" in gpu or "B300" in gpu for gpu in gpus[1])
    assert not any("Blackwell" in gpu or "B300" in gpu for gpu in gpus[0])
