"""Hostile flags of an engine that loads GGUF files, sent over HTTP: a 4xx in bounded time, and nothing is created."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import requests

from exo_inference.engines import engines_on
from exo_inference.planner import find_gpu
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.state_dir import StateDir
from tests.controller.conftest import Controller
from tests.controller.fakes import FakePlatform

MODEL = "meta-llama/Llama-3.1-8B-Instruct-GGUF:Q4_K_M"
GPU = InstanceTypeInfo(
    "gpua5000", 16, 16, gpu=find_gpu("gpua5000"), engine="vllm", engines=engines_on("gpu")
)
PARAMETERS = "inference-engine-parameters"
MOST_SECONDS = 10
"""On a machine that does nothing else each takes some hundredths of one."""


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    state = StateDir(tmp_path_factory.mktemp("hostile") / "state")
    made = Controller(state, platform=FakePlatform(families=(GPU,)))
    with made.running():
        made.create_model(MODEL)
        yield made


def post(controller: Controller, body: bytes, query: str = "") -> requests.Response:
    """Send a body, and check that the answer comes in time and is none of a failure."""
    started = time.monotonic()
    headers = {"content-type": "application/json"}
    answer = controller.call("POST", f"/v2/ai/deployment{query}", data=body, headers=headers)
    assert time.monotonic() - started < MOST_SECONDS
    assert answer.status_code < 500, answer.text
    return answer


def asked(flags: Any, **changes: Any) -> bytes:
    body = {
        "name": "chat",
        "model": {"name": MODEL},
        "gpu-type": "gpua5000",
        "gpu-count": 1,
        "replicas": 1,
        "inference-engine": "llama-cpp",
        PARAMETERS: flags,
    }
    return json.dumps({**body, **changes}).encode()


def refuse(controller: Controller, body: bytes) -> requests.Response:
    answer = post(controller, body)
    assert 400 <= answer.status_code < 500, answer.text
    assert len(answer.content) < 100_000, "the answer repeats what was sent"
    assert not controller.client().list_deployments()["deployments"]
    return answer


def test_a_deployment_of_a_gguf_file_is_admitted_and_planned(controller: Controller) -> None:
    """Without flags that hurt, so that the refusals below are of these."""
    answer = post(controller, asked(["--ctx-size", "8192"]), "?dry-run=dry-run")
    assert answer.status_code == 200, answer.text
    plan = answer.json()["plan"]
    assert (plan["verdict"], plan["model"], plan["kv-capacity-tokens"]) == ("fits", MODEL, 8192)


def test_a_new_model_says_how_much_is_fetched(controller: Controller) -> None:
    body = json.dumps({"name": "Qwen/Qwen3-8B-GGUF:Q8_0"}).encode()
    answer = controller.call("POST", "/v2/ai/model?dry-run=dry-run", data=body)
    assert answer.json()["message"].endswith("; 3.15 MB in 1 file to fetch")


NUMBERS = [
    "ctx-size", "batch-size", "ubatch-size", "parallel", "n-cpu-moe", "fit-ctx", "kv-unified-per-slot",
]  # fmt: skip
HUGE, NEGATIVE = (
    ["9" * 400, "9" * 30_000, str(2**63), "1e308", "nan", "0x7fffffff"],
    ["-5", "-2147483649"],
)


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [*HUGE, *NEGATIVE], ids=lambda value: value[:12])
def test_numbers_that_no_engine_starts_with(controller: Controller, name: str, value: str) -> None:
    answer = refuse(controller, asked([f"--{name}", value]))
    assert f"--{name}" in answer.json()["message"]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("--parallel", value) for value in ("0", "257", str(2**31 - 1))),
        *(("--gpu-layers", value) for value in ("9" * 400, "nan", "٣", "all,auto", "--1")),
        *(("--cache-type-k", value) for value in ("nonsense", "", "f16\0", "q4_0" * 5000)),
        *(("--cache-type-v", value) for value in ("q8_K", "F16 ", "../f16")),
        *(("--tensor-split", value) for value in ("nan,nan", "inf", "-1", "1e309,1", "," * 30_000, "0,0")),
        *(("--tensor-split", value) for value in ("1," * 15_000, "9" * 30_000, "1/2/x")),
        *(("--fit-target", value) for value in ("nan", "-1", "1," * 15_000, "9" * 30_000, "")),
        *(("--override-tensor", value) for value in ("(a+)+$", "((.*)*)*x", "(" * 30_000, "")),
        ("--override-tensor", "a=CPU," + "a?" * 5_000 + "a" * 5_000),
        ("--split-mode", "none\nlayer"),
        ("--ctx-size", ["["] * 3),
    ],
    ids=lambda value: str(value)[:16],
)  # fmt: skip
def test_values_that_mean_nothing(controller: Controller, flag: str, value: Any) -> None:
    refuse(controller, asked([flag, value]))


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "((.*)*)*x", "blk.(" + "a?" * 5000 + ")" + "a" * 5000]
)
def test_patterns_are_not_tried_on_names(controller: Controller, pattern: str) -> None:
    """They are the engine's to read; the control plane must not stumble over them."""
    flags = ["--override-tensor", f"{pattern}=CPU"]
    answer = post(controller, asked(flags), "?dry-run=dry-run")
    assert answer.status_code == 200, answer.text
    refuse(controller, asked([*flags, "--no-such-flag"]))


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["-c", "1"] * 5_000, id="right"),
        pytest.param(["-c", "x"] * 5_000, id="wrong"),
        pytest.param(["-x"] * 10_000, id="unknown"),
        pytest.param(["-ot", "a=CPU"] * 5_000, id="overrides"),
        pytest.param(["-ts"] * 10_000, id="without-values"),
        pytest.param(["--ctx-size", "8192"] * 5_000, id="too-many-bytes"),
        pytest.param([""] * 10_000, id="empty"),
    ],
)
def test_ten_thousand_flags(controller: Controller, flags: list[str]) -> None:
    refuse(controller, asked(flags))


@pytest.mark.parametrize(
    "flags",
    [
        [["["]],
        [{"--ctx-size": 1}],
        {"--ctx-size": "1"},
        "--ctx-size 1",
        [None],
        [10**400],
        [True],
        7,
    ],
    ids=lambda value: str(value)[:16],
)
def test_parameters_that_are_no_list_of_texts(controller: Controller, flags: Any) -> None:
    answer = refuse(controller, asked(flags))
    assert answer.json()["errors"][0]["location"].startswith(f"$['{PARAMETERS}']")


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("[" * 100_000 + "]" * 100_000, id="lists"),
        pytest.param('{"a":' * 100_000 + "1" + "}" * 100_000, id="objects"),
        pytest.param("[" + '"-c","1",' * 110_000 + '"-c"]', id="items"),
        pytest.param("[" + "9" * 1_000_000 + "]", id="digits"),
        pytest.param("{" + ",".join(f'"-c{n}":1' for n in range(60_000)) + "}", id="keys"),
        pytest.param('["' + "\\u0000" * 100_000 + '"]', id="zeros"),
        pytest.param("[1e999999]", id="infinity"),
        pytest.param('["\\ud800"]', id="half-a-pair"),
    ],
)
def test_json_that_is_meant_to_hurt(controller: Controller, value: str) -> None:
    whole = asked("HERE").replace(b'"HERE"', value.encode())
    refuse(controller, whole)
