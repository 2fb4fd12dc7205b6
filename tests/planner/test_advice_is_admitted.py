"""Advice is not only true for memory: pasted, it passes the rules about flags and GPUs as well."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import Gpu, Verdict, families, find_gpu, find_model, load_models
from exo_inference.planner.catalog_models import read_entry
from exo_inference.preflight.judgement import Subject, judge


def pasted(subject: Subject, flags: tuple[str, ...], options: tuple[str, ...]) -> Subject:
    chosen = dict(option.removeprefix("--").split("=", 1) for option in options)
    return Subject(
        find_model(chosen["model-name"]) if "model-name" in chosen else subject.model,
        find_gpu(chosen["gpu-type"]) if "gpu-type" in chosen else subject.gpu,
        int(chosen.get("gpu-count", subject.gpu_count)),
        flags,
        engine=subject.engine,
        engine_version=chosen.get("inference-engine-version", subject.engine_version),
    )


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_advice_for_vllm_is_admitted(examples: int) -> None:
    drawn = given(
        st.sampled_from(sorted(load_models())),
        st.sampled_from([*families(), find_gpu("T4"), find_gpu("V100"), find_gpu("H100")]),
        st.sampled_from([1, 2, 4]),
        st.sampled_from(["0.12.0", "0.15.1", "0.20.0", "0.28.0", "0.33.0"]),
    )
    settings(max_examples=examples)(drawn(check_advice))()


def check_advice(name: str, gpu: Gpu, count: int, version: str) -> None:
    """Judge again with each piece of advice."""
    subject = Subject(read_entry(name), gpu, count, engine_version=version)
    judged = judge(subject)
    for each in (*judged.advice, *judged.improvements):
        if not each.flags and not each.options:
            continue
        assert each.plan is not None
        flags = tuple(each.plan.parameters.format())
        again = judge(pasted(subject, flags, each.options), with_advice=False)
        assert again.flag_problems == ()
        assert again.verdict is each.plan.verdict  # tight where nothing fits for sure
        assert again.verdict in (Verdict.FITS, Verdict.TIGHT)


@pytest.mark.parametrize("gpu", ["gpu3080ti", "gpua5000"])
@pytest.mark.parametrize("count", [1, 2])
def test_advice_for_exo_engine_is_admitted(gpu: str, count: int) -> None:
    asked = ("--max-model-len=32768",)
    subject = Subject(find_model("Qwen/Qwen3-8B"), find_gpu(gpu), count, asked, engine="exo")
    advice = judge(subject).advice
    assert advice or judge(subject).verdict is Verdict.FITS
    for each in advice:
        flags = tuple(each.plan.parameters.format())
        again = judge(pasted(subject, flags, each.options), with_advice=False)
        assert again.verdict is Verdict.FITS


@pytest.mark.parametrize("version", [None, "0.20.0", "0.33.0"])
def test_a_gpu_that_a_release_has_no_kernels_for_is_offered_the_newest_that_has(
    version: str | None,
) -> None:
    subject = Subject(find_model("Qwen/Qwen3-1.7B"), find_gpu("V100"), 1, engine_version=version)
    first = judge(subject).advice[0]
    assert first.options == ("--inference-engine-version=0.19.1",)
    assert first.plan.verdict is Verdict.FITS
    larger = replace(subject, model=find_model("Qwen/Qwen3-8B"))
    pairs = [each for each in judge(larger).advice if "engine-version" in each.kinds]
    assert {"--gpu-count=2", "--inference-engine-version=0.19.1"} in [
        set(each.options) for each in pairs
    ]


def test_no_release_is_offered_that_does_not_read_the_flags() -> None:
    asked = ("--max-model-len=auto", "--moe-backend=marlin")  # the second one is not in 0.18
    subject = Subject(find_model("Qwen/Qwen3-4B"), find_gpu("V100"), 1, asked)
    judged = judge(subject)
    for each in judged.advice:
        again = judge(
            pasted(subject, tuple(each.plan.parameters.format()), each.options), with_advice=False
        )
        assert again.flag_problems == ()


def test_a_gpu_that_the_release_serves_is_offered_no_other_release() -> None:
    judged = judge(Subject(find_model("Qwen/Qwen3-8B"), find_gpu("T4"), 1))
    assert judged.advice
    assert all("engine-version" not in each.kinds for each in judged.advice)


@pytest.mark.parametrize(
    ("name", "asked", "offered"),
    [
        ("unsloth/Qwen3-8B-bnb-4bit", "0.28.0", "0.27.1"),
        ("unsloth/Qwen3-8B-GGUF:Q4_K_M", "0.28.0", "0.23.0"),
        ("Qwen/Qwen3.6-35B-A3B-FP8", "0.12.0", None),  # no class yet: any later one
    ],
)
def test_a_release_is_offered_that_reads_the_format_and_has_the_class(
    name: str, asked: str, offered: str | None
) -> None:
    subject = Subject(find_model(name), find_gpu("H100"), 1, engine_version=asked)
    judged = judge(subject)
    assert judged.verdict is Verdict.REFUSED
    others = [each for each in judged.advice if each.kinds == ("engine-version",)]
    assert len(others) == 1
    again = judge(pasted(subject, (), others[0].options), with_advice=False)
    assert again.verdict is Verdict.FITS
    assert offered is None or others[0].options == (f"--inference-engine-version={offered}",)
