"""Every line that a page of a plan prints, pasted back, plans as the page says: random starts of the engines that are planned."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.cli.plan.command_line import CommandLine
from exo_inference.cli.plan.report import report
from exo_inference.planner import Plan, Verdict, find_gpu, find_model, load_models
from exo_inference.preflight import Subject, judge, to_wire
from exo_inference.preflight.judgement import Judgement

_WIDTH = 400
_UNSURE = "fits at the middle of the estimate, not for sure"
_LINE = "exo ai deployment create chat "


def page_of(judged: Judgement) -> tuple[str, list[str]]:
    """Return the words of a plan's page, and the lines that are to be pasted."""
    subject = judged.subject
    assert subject.model is not None
    assert subject.gpu is not None
    options = {
        "--model-name": subject.model.name,
        "--gpu-type": subject.gpu.family or subject.gpu.key,
        "--gpu-count": str(subject.gpu_count),
        "--inference-engine": subject.engine,
        "--inference-engine-version": subject.version,
    }
    line = CommandLine(
        "create", "chat", tuple(options.items()), subject.flags, subject.version, engine=subject.engine
    )  # fmt: skip
    rows = [row.plain.strip() for row in report(to_wire(judged), line, 1, _WIDTH)]
    lines = [row.removeprefix(_LINE) for row in rows if row.startswith(_LINE)]
    return "\n".join(row for row in rows if not row.startswith(_LINE)), lines


def pasted(line: str) -> Judgement:
    """Judge what a line asks for."""
    words = shlex.split(line)
    chosen = dict(zip(words[::2], words[1::2], strict=True))
    model, gpu = find_model(chosen["--model-name"]), find_gpu(chosen["--gpu-type"])
    flags = tuple(shlex.split(chosen.get("--inference-engine-params", "")))
    subject = Subject(
        model, gpu, int(chosen["--gpu-count"]), flags,
        engine=chosen["--inference-engine"], engine_version=chosen["--inference-engine-version"],
    )  # fmt: skip
    return judge(subject, with_advice=False)


def promise_of(plan: Plan | None) -> tuple[object, ...]:
    """Return what a page says of a plan that follows a change."""
    assert plan is not None
    return (
        plan.verdict, plan.available_kv_bytes_per_gpu, plan.kv_capacity_tokens, plan.max_model_len,
        plan.max_num_seqs, plan.max_concurrency, plan.usd_per_hour,
    )  # fmt: skip


def broken_promises(subject: Subject) -> Iterator[str]:
    """Yield what is wrong with the page of a plan."""
    judged = judge(subject)
    page, lines = page_of(judged)
    promised: list[tuple[Plan | None, str]] = [(each.plan, each.effect) for each in judged.advice]
    promised += [(each.plan, "") for each in judged.improvements if each.flags or each.options]
    if len(lines) != len(promised):
        yield f"{len(lines)} lines of {len(promised)} proposals"
        return
    for (after, effect), line in zip(promised, lines, strict=True):
        again = pasted(line)
        asked = (
            again.subject.flags,
            again.subject.gpu_count,
            again.subject.gpu,
            again.subject.model,
            again.subject.version,
        )
        before = (
            subject.flags, subject.gpu_count, subject.gpu, subject.model, subject.version,
        )  # fmt: skip
        if asked == before:
            yield f"{line}: changes nothing"
        elif again.verdict is not Verdict.FITS and _UNSURE not in effect:
            yield f"{line}: {again.verdict}, {again.plan_problems}, {again.flag_problems}"
        elif promise_of(again.plan) != promise_of(after):
            yield f"{line}: {promise_of(again.plan)}, promised {promise_of(after)}"
    yield from _wrong_words(subject, page, lines)


def _wrong_words(subject: Subject, page: str, lines: Sequence[str]) -> Iterator[str]:
    """Yield experts of models that have none, and numbers that mean no limit."""
    if subject.model is not None and subject.model.moe is None and re.search(r"\bexperts?\b", page):
        yield f"experts of a dense model: {page}"
    typed, told = (
        {int(each.replace(",", "")) for each in re.findall(r"[0-9][0-9,]*", text)}
        for text in (" ".join(subject.flags), "\n".join((page, *lines)))
    )
    if odd := [each for each in told - typed if 2**31 - 2**16 <= each <= 2**31 or each >= 2**62]:
        yield f"{odd} stand for no limit"


_GGUF = (
    "Qwen/QwQ-32B-BF16-GGUF", "Qwen/Qwen3-8B-Q4_K_M-GGUF", "meta-llama/Llama-3.3-70B-Instruct-Q4_K_M-GGUF",
    "google/gemma-3-27b-it-Q4_0-GGUF", "Qwen/Qwen3.6-27B-Q8_0-GGUF", "Qwen/Qwen3-235B-A22B-Q4_K_M-GGUF",
    "Qwen/Qwen3-30B-A3B-Q8_0-GGUF", "openai/gpt-oss-120b", "deepseek-ai/DeepSeek-V3.1-IQ4_XS-GGUF",
    "Qwen/Qwen3.5-397B-A17B-Q4_0-GGUF", "zai-org/GLM-4.5-Air-Q4_K_M-GGUF", "mistralai/Mixtral-8x7B-Instruct-v0.1-Q5_K_M-GGUF",
)  # fmt: skip
_GPUS = (
    "gpu3", "gpua5000", "gpu3080ti", "gpua30", "gpurtx6000pro", "t4", "l4", "rtx-4090", "h100", "gb10",
)  # fmt: skip
OFFLOAD: Mapping[str, Sequence[str]] = {
    "--cpu-moe": (),
    "--n-cpu-moe": ("0", "1", "5", "10", "30", "999"),
    "--gpu-layers": ("auto", "all", "-1", "-2", "0", "1", "20", "40", "60", "999"),
    "--ctx-size": ("0", "4096", "32768", "100000", "1000000"),
    "--fit": ("on", "off"),
    "--parallel": ("-1", "1", "2", "8"),
}
FLAGS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "llama-cpp": {
        **OFFLOAD,
        "-ngl": ("auto", "33"),
        "-c": ("65536",),
        "--cache-type-k": ("f16", "q8_0", "q4_0", "f32"),
        "--cache-type-v": ("f16", "q8_0", "bf16"),
        "--flash-attn": ("on", "off"),
        "--fit-target": ("512", "4096", "2048,512"),
        "--fit-ctx": ("1024", "16384"),
        "--kv-unified": (),
        "--no-kv-unified": (),
        "--kv-unified-per-slot": ("8192",),
        "--swa-full": (),
        "--no-op-offload": (),
        "--no-kv-offload": (),
        "--tensor-split": ("3,1", "1,1,1,1"),
        "--split-mode": ("none", "layer"),
        "--override-tensor": ("exps=CPU",),
        "--ubatch-size": ("256", "2048"),
        "--batch-size": ("4096",),
        "--threads": ("8",),
    },
    "sglang": {
        "--context-length": ("2048", "32768", "131072"),
        "--mem-fraction-static": ("0.5", "0.8", "0.93"),
        "--max-running-requests": ("1", "64", "512"),
        "--chunked-prefill-size": ("-1", "2048", "16384"),
        "--max-total-tokens": ("4096", "100000"),
        "--page-size": ("1", "64"),
        "--kv-cache-dtype": ("auto", "fp8_e4m3", "fp8_e5m2"),
        "--dtype": ("auto", "half", "bfloat16"),
        "--tensor-parallel-size": ("1", "2", "4"),
        "--tp": ("2",),
        "--data-parallel-size": ("2",),
        "--cuda-graph-max-bs-decode": ("8", "256"),
        "--log-level": ("info",),
    },
    "vllm": {
        "--max-model-len": ("2048", "32768", "131072", "auto", "-1"),
        "--max-num-seqs": ("1", "64", "512", "1024"),
        "--gpu-memory-utilization": ("0.5", "0.92", "0.98"),
        "--max-num-batched-tokens": ("2048", "8192", "32768"),
        "--kv-cache-dtype": ("auto", "fp8", "bfloat16"),
        "--dtype": ("auto", "half", "bfloat16", "float32"),
        "--quantization": ("fp8",),
        "--tensor-parallel-size": ("1", "2", "4"),
        "-tp": ("2", "8"),
        "--pipeline-parallel-size": ("2",),
        "--data-parallel-size": ("2",),
        "--enable-expert-parallel": (),
        "--enforce-eager": (),
        "--no-enable-prefix-caching": (),
        "--no-enable-chunked-prefill": (),
        "--block-size": ("16", "64"),
        "--kv-cache-memory-bytes": ("4G",),
        "--num-gpu-blocks-override": ("100", "10000"),
        "--limit-mm-per-prompt.image": ("0", "4"),
        "--seed": ("3",),
    },
}
"""Flags with values that are tried; those without any are switches."""
VERSIONS = ("0.12.0", "0.15.1", "0.20.0", "0.28.0", "0.33.0")


def _uses(engine: str) -> st.SearchStrategy[list[tuple[str, ...]]]:
    flags = FLAGS[engine]
    # Those of offload are what contexts and ways out depend on.
    names = st.sampled_from([*flags, *(tuple(OFFLOAD) * 3 if engine == "llama-cpp" else ())])
    use = names.flatmap(
        lambda name: (
            st.sampled_from(flags[name]).map(lambda value: (name, value))
            if flags[name]
            else st.just((name,))
        )
    )
    return st.lists(use, max_size=4, unique_by=lambda each: each[0])


def _starts(engine: str, models: Sequence[str], gpus: Sequence[str]) -> st.SearchStrategy[Subject]:
    return st.builds(
        lambda model, gpu, count, uses, version: Subject(
            find_model(model), find_gpu(gpu), count, tuple(word for use in uses for word in use),
            engine=engine, engine_version=version,
        ),
        st.sampled_from(models), st.sampled_from(gpus), st.sampled_from([1, 2, 4]), _uses(engine),
        st.sampled_from(VERSIONS if engine == "vllm" else [None]),
    )  # fmt: skip


def _check(starts: st.SearchStrategy[Subject], examples: int) -> None:
    def keeps_promises(start: Subject) -> None:
        assert list(broken_promises(start)) == []

    settings(max_examples=examples)(given(starts)(keeps_promises))()


@pytest.mark.parametrize("examples", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_lines_for_llama_cpp(examples: int) -> None:
    _check(_starts("llama-cpp", _GGUF, _GPUS), examples)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("examples", [12, pytest.param(40, marks=pytest.mark.slow)])
def test_lines_for_engines_of_safetensors(engine: str, examples: int) -> None:
    _check(_starts(engine, sorted(load_models()), _GPUS[:-1]), examples)
