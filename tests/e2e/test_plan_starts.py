"""A real start of exo-engine is recorded, and its plan was right."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .conftest import Stack

FLAGS = "--max-num-seqs=8 --max-model-len=1024"


@pytest.fixture(scope="module")
def replica(stack: Stack) -> Iterator[dict[str, Any]]:
    stack.exo("model", "create", "exo/tiny-chat", "--wait")
    stack.exo(
        *("deployment", "create", "graded", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu"),
        *("--gpu-count", "1", "--inference-engine-params", FLAGS, "--wait"),
    )
    yield shown(stack)
    stack.exo("deployment", "delete", "graded", "--force")
    stack.exo("model", "delete", "exo/tiny-chat", "--force", check=False)


def shown(stack: Stack) -> dict[str, Any]:
    (replica,) = json.loads(stack.exo("deployment", "show", "graded", "-O", "json").stdout)[
        "replica_status"
    ]
    return replica


def accuracy(stack: Stack, *flags: str) -> dict[str, Any]:
    return json.loads(stack.exo("plan", "accuracy", "-O", "json", *flags).stdout)


def errors_of(stack: Stack, replica: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many starts of a replica; return what was graded of them."""
    end = time.monotonic() + 60
    while True:
        graded = [each for each in accuracy(stack)["graded"] if each["case"] == replica]
        if len(graded) >= 3 * count:
            return graded
        assert time.monotonic() < end, "the start was not recorded"
        time.sleep(0.2)


def test_a_start_is_recorded_and_its_plan_was_right(stack: Stack, replica: dict[str, Any]) -> None:
    graded = errors_of(stack, replica["name"], 1)
    found = {each["quantity"]: each for each in graded}
    assert len(found) == len(graded) == 3
    assert abs(found["weights, known checkpoint"]["error"]) < 0.02
    assert abs(found["available KV memory"]["error"]) < 0.05
    tokens = found["KV capacity in tokens"]
    assert tokens["predicted"] == tokens["measured"] == 8 * 1024
    for each in graded:
        print(f"{each['quantity']}: {each['predicted']:.6g}, measured {each['measured']:.6g}")


def test_a_replica_that_crashed_has_a_record_for_each_run(
    stack: Stack, replica: dict[str, Any]
) -> None:
    errors_of(stack, replica["name"], 1)
    os.kill(replica["pid"], signal.SIGKILL)
    graded = errors_of(stack, replica["name"], 2)
    assert shown(stack)["pid"] != replica["pid"]
    assert len(graded) == 6


def test_recorded_starts_can_be_exported_and_graded_elsewhere(
    stack: Stack, replica: dict[str, Any], tmp_path: Path
) -> None:
    errors_of(stack, replica["name"], 1)
    path = tmp_path / "starts.json"
    stack.exo("plan", "accuracy", "--export", str(path))
    wanted = {"max_num_seqs": 8, "max_model_len": 1024}
    cases = [each for each in json.loads(path.read_text())["cases"] if each.get("flags") == wanted]
    assert cases
    assert "graded" not in path.read_text()
    elsewhere = accuracy(stack, "--cases", str(path))["not_graded"]
    assert not {each["case"] for each in elsewhere} & {case["id"] for case in cases}
