"""The longest context that users are told is one whose own plan fits, of every engine."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exo_inference.planner import Gpu, Verdict, families, find_gpu, find_model, load_models
from exo_inference.planner.catalog_models import read_entry
from exo_inference.preflight import Subject, judge, to_wire

GPUS = [*families(), *map(find_gpu, ("T4", "L4", "A100", "H100"))]
LENGTHS = {"vllm": "--max-model-len", "exo": "--max-model-len", "sglang": "--context-length"}
FLAGS = [
    (), ("--dtype=float32",), ("--kv-cache-dtype=fp8",), ("--gpu-memory-utilization=0.8",), ("--enforce-eager",),
    ("--max-num-seqs=1024",), ("--max-num-batched-tokens=16384",),
]  # fmt: skip
GGUF = [
    "Qwen/Qwen3-30B-A3B-Instruct-2507-F16-GGUF", "Qwen/Qwen3-14B-Q4_K_M-GGUF", "Qwen/QwQ-32B-Q8_0-GGUF",
    "meta-llama/Llama-3.1-70B-Instruct-Q4_K_M-GGUF", "openai/gpt-oss-20b-GGUF",
]  # fmt: skip


def asked(subject: Subject, *flags: str) -> Subject:
    return Subject(
        subject.model, subject.gpu, subject.gpu_count, flags, engine=subject.engine,
        engine_version=subject.engine_version,
    )  # fmt: skip


def told(subject: Subject) -> int:
    return to_wire(judge(subject, with_advice=False)).safe_max_model_len


def fits(subject: Subject, *flags: str) -> bool:
    return judge(asked(subject, *flags), with_advice=False).verdict is Verdict.FITS


@pytest.mark.parametrize("examples", [60, pytest.param(250, marks=pytest.mark.slow)])
def test_what_is_told_fits_when_it_is_asked_for(examples: int) -> None:
    drawn = given(
        st.sampled_from(sorted(load_models())),
        st.sampled_from(GPUS),
        st.sampled_from([1, 2, 4, 8]),
        st.sampled_from([("vllm", "0.12.0"), ("vllm", "0.20.0"), ("vllm", "0.28.0"), ("exo", None), ("sglang", None)]),
        st.sampled_from([0, 2048, 8192]),
        st.sampled_from(FLAGS),
    )  # fmt: skip
    settings(max_examples=examples)(drawn(check_told))()


@example(
    "mistralai/Devstral-Small-2-24B-Instruct-2512",
    find_gpu("H100"),
    1,
    ("vllm", "0.20.0"),
    2048,
    (),
)
@example("meta-llama/Llama-3.1-70B-Instruct", find_gpu("A100"), 2, ("vllm", "0.20.0"), 8192, ())
@example("nvidia/Qwen3.6-35B-A3B-NVFP4", find_gpu("gpua30"), 2, ("vllm", "0.28.0"), 0, ("--dtype=float32",))  # fmt: skip
def check_told(
    name: str, gpu: Gpu, count: int, engine: tuple[str, str | None], length: int, flags: Sequence[str]
) -> None:  # fmt: skip
    """Ask for the length that is told."""
    kind, version = engine
    others = tuple(flags) if kind != "sglang" else ()
    flag = LENGTHS[kind]
    subject = Subject(
        find_model(name), gpu, 1 if kind == "exo" else count, (*others, f"{flag}={length}") if length else others,
        engine=kind, engine_version=version,
    )  # fmt: skip
    longest = told(subject)
    assert not longest or fits(subject, *others, f"{flag}={longest}")


@pytest.mark.parametrize("name", GGUF)
@pytest.mark.parametrize("gpu", ["A100", "gpua5000", "L4"])
@pytest.mark.parametrize("flags", [(), ("--ctx-size", "8192"), ("--gpu-layers", "auto")])
def test_what_is_told_of_a_gguf_file_fits_when_it_is_asked_for(
    name: str, gpu: str, flags: tuple[str, ...]
) -> None:
    subject = Subject(find_model(name), find_gpu(gpu), 1, flags, engine="llama-cpp")
    longest = told(subject)
    kept = flags if "auto" in flags else ()
    assert not longest or fits(subject, *kept, "--ctx-size", str(longest))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["nvidia/Qwen3.6-35B-A3B-NVFP4", "Qwen/Qwen3.5-27B", "tiiuae/Falcon-H1-7B-Instruct"]),
    st.sampled_from(GPUS), st.sampled_from([1, 2, 4]), st.sampled_from(FLAGS),
)  # fmt: skip
@example("nvidia/Qwen3.6-35B-A3B-NVFP4", find_gpu("gpua30"), 2, ("--dtype=float32",))
def test_what_is_to_be_set_for_states_makes_it_fit(
    name: str, gpu: Gpu, count: int, flags: tuple[str, ...]
) -> None:
    subject = Subject(find_model(name), gpu, count, flags)
    judged = judge(subject, with_advice=False)
    codes = {each.code for each in judged.plan_problems}
    if judged.flag_problems or codes - {"memory", "max-num-seqs", "gpu-count"}:
        return
    for each in judged.plan_problems:
        said = re.search(r"set (--max-num-seqs=\d+) or less(?:, and (--max-\S+) or less)?", each.detail)  # fmt: skip
        if said is not None:
            kept = [flag for flag in flags if not flag.startswith("--max-num-seqs")]
            assert fits(subject, *kept, *filter(None, said.groups()))


def test_no_length_is_told_where_something_else_keeps_it_from_starting() -> None:
    subject = Subject(read_entry("Qwen/Qwen3-8B"), find_gpu("H100"), 3)
    judged = judge(subject, with_advice=False)
    assert judged.verdict is Verdict.REFUSED
    assert told(subject) == 0
