"""`deployment plan` of releases of vLLM whose flags are not listed: memory is planned, flags are not checked."""

from __future__ import annotations

import json

import pytest

from exo_inference.engines.flags.catalogue import listed_releases
from exo_inference.wire import DeploymentPlan
from tests.cli.conftest import Exo

PLAN = (
    "ai",
    "deployment",
    "plan",
    "--offline",
    "--model-name",
    "Qwen/Qwen3-32B",
    "--gpu-type",
    "L40S",
)


@pytest.mark.parametrize("version", ["0.6.6", "0.8.5", "0.10.2", "v0.11.0"])
def test_memory_of_an_older_release_is_planned_by_its_rules(exo: Exo, version: str) -> None:
    argv = ["Qwen/Qwen2.5-32B-Instruct" if each == "Qwen/Qwen3-32B" else each for each in PLAN]
    result = exo(*argv, "--gpu-count", "4", "--inference-engine-version", version, "-O", "json")
    plan = DeploymentPlan.model_validate(json.loads(result.out))
    assert (result.code, plan.verdict.value, plan.engine_version) == (0, "fits", version)
    listed = listed_releases()
    assert plan.notes[0] == (
        f"the flags of vLLM {version} were not checked: those of {listed[0]} to {listed[-1]} are known; "
        "memory is planned by the rules of that release"
    )
    # Graphs are outside the budget before 0.20, and 0.6.6 has V0's smaller step.
    graphs = next(each for each in plan.components if each.name == "cuda_graphs")
    assert not graphs.in_budget


def test_a_later_release_is_planned_by_the_last_rules_that_were_read(exo: Exo) -> None:
    last = listed_releases()[-1]
    later = f"0.{int(last.split('.')[1]) + 1}.0"
    argv = (*PLAN, "--gpu-count", "4", "--inference-engine-version")
    plans = [json.loads(exo(*argv, version, "-O", "json").out) for version in (last, later)]
    assert plans[0]["available_kv_bytes_per_gpu"] == plans[1]["available_kv_bytes_per_gpu"]
    assert f"memory is planned by those of {last}, the last that were read" in plans[1]["notes"][0]


def test_flags_that_nobody_can_check_are_kept_and_values_that_are_planned_with_are_checked(
    exo: Exo,
) -> None:
    argv = (*PLAN, "--gpu-count", "4", "--inference-engine-version", "0.10.2", "-O", "json")
    flags = "--max-model-len=8192 --swap-space=4 --frob"
    plan = json.loads(exo(*argv, "--inference-engine-params", flags).out)
    assert plan["max_model_len"] == 8192
    assert {"--swap-space=4", "--frob"} <= set(plan["parameters"])
    wrong = exo(*argv, "--inference-engine-params", "--max-model-len=abc")
    assert wrong.code == 1
    assert "--max-model-len is 'abc'" in wrong.out + wrong.err


def test_what_is_advised_plans_again_and_is_no_deployment_to_create(exo: Exo) -> None:
    result = exo(*PLAN, "--gpu-count", "1", "--inference-engine-version", "0.10.2")
    pasted = [line.strip() for line in result.out.splitlines() if " exo ai deployment " in line]
    assert result.code == 1
    assert pasted
    assert all(line.startswith("exo ai deployment plan --model-name ") for line in pasted)
    assert all("--inference-engine-version 0.10.2" in line for line in pasted)


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.5.4", "the rules of vLLM 0.5.4 were not read; those here begin at 0.6.6"),
        ("abc", "'abc' is not a release of vLLM"),
    ],
)
def test_what_nobody_read_is_refused(exo: Exo, version: str, said: str) -> None:
    result = exo(*PLAN, "--inference-engine-version", version)
    assert (result.code, said in result.err) == (2, True)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "exo"])
def test_a_release_of_thousands_of_digits_is_refused_in_short(exo: Exo, engine: str) -> None:
    version = ("--inference-engine", engine, "--inference-engine-version", "9" * 4301 + ".0.0")
    result = exo(*PLAN, *version)
    assert (result.code, result.out) == (2, "")
    assert "Name one from" in result.err or "Leave the version out" in result.err
    assert len(result.err) < 500
