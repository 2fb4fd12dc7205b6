"""A plan that is short of memory, or may be, says so: always, and never with a size below zero."""

from __future__ import annotations

import re
from itertools import islice

import pytest

from exo_inference.planner import (
    EngineParameters,
    Plan,
    Verdict,
    find_gpu,
    find_model,
    load_gpus,
    plan,
)
from exo_inference.planner.catalog_models import load_models
from exo_inference.planner.explain import explain

_NEGATIVE = re.compile(r"(?<![\w\d.,=-])-\d[\d.,]* ([GMK]iB|bytes|USD)|\(-\d")


def _plans(engine: str) -> list[Plan]:
    parameters = EngineParameters(engine=engine)
    return [
        plan(find_model(name), gpu, 1, parameters)
        for name in islice(load_models(), 0, None, 9)
        for gpu in load_gpus().values()
    ]


@pytest.mark.parametrize("engine", ["vllm", "exo", "sglang"])
def test_every_tight_plan_says_why_and_no_text_has_a_negative_size(engine: str) -> None:
    plans = _plans(engine)
    tight = [each for each in plans if each.verdict is Verdict.TIGHT]
    assert len(tight) >= 3
    assert all(each.problems and not each.problems[0].refuses for each in tight)
    fitting = [each for each in plans if each.verdict is Verdict.FITS]
    # Another number format is told of what fits, too.
    assert {problem.code for each in fitting for problem in each.problems} <= {"dtype"}
    details = [problem.detail for each in plans for problem in each.problems]
    assert [text for text in details if _NEGATIVE.search(text)] == []


def test_what_is_missing_is_told_where_not_even_weights_fit_at_worst() -> None:
    tight = plan(
        find_model("nvidia/Qwen3-235B-A22B-NVFP4"), find_gpu("H200"), 1, EngineParameters()
    )
    assert tight.verdict is Verdict.TIGHT
    assert tight.available_kv_bytes_low < 0
    assert re.fullmatch(
        r"at worst \d+\.\d\d GiB per GPU are \d\.\d\d GiB too little for weights and overheads alone, one request of "
        r"40,960 tokens needs 3\.67 GiB", tight.problems[0].detail,
    )  # fmt: skip
    refused = plan(
        find_model("Qwen/Qwen3-VL-4B-Instruct"), find_gpu("RTX 3060"), 1, EngineParameters()
    )
    assert (
        "10.59 GiB of 11.51 GiB are 0.77 GiB too little for weights" in refused.problems[0].detail
    )


def test_the_arithmetic_of_a_refused_plan_has_no_negative_sizes() -> None:
    refused = plan(find_model("Qwen/Qwen3-32B"), find_gpu("L4"), 1, EngineParameters())
    steps = explain(refused)
    available = next(step for step in steps if step.title == "Available for the KV cache")
    assert available.result.count("too little") == 3
    assert [step for step in steps if _NEGATIVE.search(f"{step.formula} {step.result}")] == []


def test_no_request_of_one_token_is_told_of_and_no_lack_of_nothing() -> None:
    """Where the middle of the estimate leaves nothing, an engine that takes what fits would take one token."""
    tight = plan(
        find_model("Qwen/Qwen3.6-35B-A3B"), find_gpu("RTX PRO 4000"), 4,
        EngineParameters(engine="sglang"),
    )  # fmt: skip
    details = [problem.detail for each in (tight, *_plans("sglang")) for problem in each.problems]
    assert [text for text in details if "of 1 tokens" in text or "are 0.00 GiB" in text] == []
