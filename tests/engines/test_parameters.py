"""Checking engine flags: what argparse would take passes, mistakes are named with a suggestion."""

from __future__ import annotations

import pytest

from exo_inference.engines import get_engine

engine = get_engine("exo")


@pytest.mark.parametrize(
    "items",
    [
        [],
        ["--max-model-len=4096"],
        ["--max-model-len", "4096"],
        ["--max_model_len=32k"],
        ["--max-model-len", "-1"],
        ["--max-model-len=auto"],
        ["--enable-prefix-caching"],
        ["--no-enable-prefix-caching"],
        ["--enable_prefix_caching=false"],
        ["--dtype=bfloat16", "--seed", "7", "--gpu-memory-utilization=0.9"],
        ["--override-generation-config", '{"temperature": 0.2}'],
        ["--chat-template={{ messages }}"],
    ],
    ids=str,
)
def test_right_flags_pass(items: list[str]) -> None:
    assert engine.read(items).problems == ()


@pytest.mark.parametrize(
    ("items", "index", "words"),
    [
        (["--max-model-length=1"], 0, "did you mean --max-model-len?"),
        (["--utilization=1"], 0, "did you mean --gpu-memory-utilization?"),
        (["--zzzzzz"], 0, "there is no parameter --zzzzzz"),
        (["--max-model-len"], 0, "needs a value (a whole number)"),
        (["--max-model-len", "--seed=1"], 0, "needs a value"),
        (["--seed=1", "--max-model-len=many"], 1, "'many', expected a whole number"),
        (["--gpu-memory-utilization=lots"], 0, "expected a number"),
        (["--dtype=float7"], 0, "expected one of: auto, half"),
        (["--override-generation-config={"], 0, "expected a JSON object"),
        (["--enable-prefix-caching=maybe"], 0, "expected true or false"),
        (["--port=80"], 0, "is set by the platform: replicas listen"),
        (["--model", "other/model"], 0, "is set by the platform"),
        (["-tp", "2"], 0, "use the deployment's gpu-count"),
        (["--tensor-parallel-size=2"], 0, "use the deployment's gpu-count"),
        (["--api-key=x"], 0, "reveal-api-key"),
        (["4096"], 0, "flags start with --"),
        (["--seed=1 --dtype=auto"], 0, "expected a whole number"),
        (["seed 1"], 0, "separate items"),
        (["--enable-prefix-caching", "yes"], 1, "takes no value here"),
        (["--seed=1", "--seed=2"], 1, "a second time"),
        (["--seed=1", "--chat-template=a\x00b"], 1, "control character"),
        (["--chat-template=a\x85b"], 0, "control character"),
        (["--chat-template=a\ufffeb"], 0, "control character"),
        ([""], 0, "flags start with --"),
        (["--"], 0, "there is no parameter"),
    ],
    ids=str,
)
def test_mistakes_are_named(items: list[str], index: int, words: str) -> None:
    problems = engine.read(items).problems
    assert problems[0].index == index
    assert words in problems[0].detail


def test_all_mistakes_are_found() -> None:
    items = ["--nope", "--seed=x", "--port", "80", "stray"]
    assert [problem.index for problem in engine.read(items).problems] == [0, 1, 2, 4]
