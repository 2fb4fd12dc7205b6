"""A way out on one line: what is pasted keeps the flags that were there."""

from __future__ import annotations

import shlex

from exo_inference.engines import vllm
from exo_inference.planner import find_gpu, find_model, plan
from exo_inference.preflight import Subject, describe_advice, judge, to_wire
from tests.planner.flags import settings_of

MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"


def ways_out(*flags: str) -> list[str]:
    subject = Subject(find_model(MINISTRAL), find_gpu("gpua5000"), 1, flags)
    return [describe_advice(advice) for advice in to_wire(judge(subject)).advice]


def test_flags_are_pasted_as_one_option_together_with_those_that_were_there() -> None:
    lines = ways_out("--seed=7", '--limit-mm-per-prompt={"image": 1}')
    pasted = [shlex.split(line.partition(": requests")[0]) for line in lines if "requests" in line]
    assert pasted
    for words in pasted:
        (option,) = [word for word in words if word.startswith("--inference-engine-params=")]
        flags = shlex.split(option.partition("=")[2])
        assert "--seed=7" in flags
        assert '--limit-mm-per-prompt={"image":1}' in flags
        assert vllm.ENGINE.read(flags).problems == ()


def test_what_is_pasted_fits() -> None:
    for line in ways_out():
        words = shlex.split(line.partition(": ")[0])
        options = dict(word.removeprefix("--").split("=", 1) for word in words)
        model = options.get("model-name", MINISTRAL)
        flags = shlex.split(options.get("inference-engine-params", ""))
        gpu, count = find_gpu(options.get("gpu-type", "gpua5000")), int(options.get("gpu-count", 1))
        found = plan(
            find_model(model),
            gpu,
            count,
            settings_of(flags, engine_version="0.28.0"),
        )
        assert found.verdict == "fits", line
