"""`deployment plan --for`: what it prints of a row is a command line whose plan holds."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.planner import load_models
from tests.cli.conftest import Exo

PLAN = ("ai", "deployment", "plan", "--offline")
LONG = "mistralai/Ministral-3-8B-Instruct-2512"
"""Its own context does not fit where requests of 1,300 tokens do."""


def pasted(exo: Exo, line: str, *others: str) -> dict[str, object]:
    """Plan what a command asks for, and return the plan."""
    words = shlex.split(line)
    verb = words.index("deployment") + 1
    given = words[verb + 1 + (words[verb] == "create") :]
    plan = json.loads(exo(*PLAN, *given, *others, "-O", "json").out)
    assert isinstance(plan, dict)
    return plan


def printed_line(out: str) -> str:
    [line] = [row.strip() for row in out.splitlines() if row.startswith("     exo ai deployment ")]
    return line


@pytest.mark.parametrize("examples", [8, pytest.param(25, marks=pytest.mark.slow)])
def test_rows_hold_as_they_are_printed(exo: Exo, examples: int) -> None:
    @settings(max_examples=examples)
    @given(
        st.sampled_from([LONG, "meta-llama/Llama-3.1-70B-Instruct", *sorted(load_models())]),
        st.sampled_from([1, 1000, 7000, 30000]),
        st.sampled_from([1, 24, 300]),
        st.sampled_from(["", "--max_model_len=40000", "--max-model-len 40000 --enforce-eager", "--kv-cache-dtype=fp8"]),
        st.sampled_from([(), ("--compare=H100,L4,cpu",), ("--gpu-type", "A100", "--gpu-count", "2")]),
    )  # fmt: skip
    def hold(name: str, prompt: int, answer: int, flags: str, gpus: tuple[str, ...]) -> None:
        check_rows(exo, name, prompt, answer, flags, gpus)

    hold()


def check_rows(
    exo: Exo, name: str, prompt: int, answer: int, flags: str, gpus: tuple[str, ...]
) -> None:
    """Plan what each row says and what the line says, and compare."""
    demand = ("--for", f"requests=5/s input={prompt} output={answer}", *gpus)
    asked = (*PLAN, "--model-name", name, f"--inference-engine-params={flags}", *demand)
    result = exo(*asked, "-O", "json")
    rows = json.loads(result.out) if result.code == 0 else []
    for row in rows:
        line = shlex.join([
            "exo", "ai", "deployment", "create", "x", "--model-name", name, "--gpu-type", row["gpu_type"], "--gpu-count",
            str(row["gpu_count"]), "--inference-engine-params", shlex.join(row["parameters"]),
        ])  # fmt: skip
        assert pasted(exo, line)["verdict"] == "fits"
    if rows:
        plan = pasted(exo, printed_line(exo(*asked).out))
        assert (plan["verdict"], plan["gpu_type"], plan["gpu_count"], plan["parameters"]) == (
            "fits", rows[0]["gpu_type"], rows[0]["gpu_count"], rows[0]["parameters"],
        )  # fmt: skip


def test_the_flags_of_the_rows_are_printed(exo: Exo) -> None:
    demand = ("--model-name", LONG, "--for", "requests=5/s input=1000 output=300")
    out = exo(*PLAN, *demand).out
    assert "Each row is planned with --max-model-len=2048." in out
    assert printed_line(out) == (
        f"exo ai deployment create ministral-3-8b-instruct-2512 --model-name {LONG} --gpu-type gpurtx6000pro "
        "--gpu-count 1 --inference-engine-params '--max-model-len=2048'"
    )


def test_the_line_has_the_replicas_and_what_else_was_asked_for(exo: Exo) -> None:
    others = (
        "--inference-engine-version",
        "0.20.0",
        "--inference-engine-params",
        "--enforce-eager",
    )
    demand = ("--gpu-type", "gpu3", "--for", "requests=5/s input=1000 output=300")
    line = printed_line(exo(*PLAN, "--model-name", LONG, *others, *demand).out)
    words = shlex.split(line)
    assert words[words.index("--replicas") + 1] != "1"
    assert words[words.index("--inference-engine-version") + 1] == "0.20.0"
    assert words[-1] == "--enforce-eager --max-model-len=2048"
    assert pasted(exo, line)["verdict"] == "fits"


def test_a_gpu_by_another_name_is_found_again(exo: Exo) -> None:
    demand = ("--compare=H100", "--for", "requests=5/s input=1000 output=300")
    out = exo(*PLAN, "--model-name", LONG, *demand).out
    assert pasted(exo, printed_line(out))["gpu_type"] == "h100-sxm"


@pytest.mark.parametrize("flag", ["--max-model-len=4096", "--max_model_len=4096", "--max-model-len 4096"])  # fmt: skip
def test_a_length_that_was_asked_for_is_kept(exo: Exo, flag: str) -> None:
    demand = ("--gpu-type", "H100", "--for", "requests=5/s input=1000 output=300")
    result = exo(*PLAN, "--model-name", LONG, *demand, f"--inference-engine-params={flag}")
    assert result.code == 0
    assert printed_line(result.out).endswith(f"--inference-engine-params '{flag}'")
