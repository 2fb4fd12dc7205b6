"""A real start of exo-engine is recorded, and its plan was right."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from exo_inference.sdk import Client

from .conftest import Stack

# Engines give way: beside much work a start takes minutes.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def replica(stack: Stack, talk: dict[str, Any]) -> dict[str, Any]:
    """Return the replica that `talk` has now: tests let it crash, or scale it to 0 and back."""
    return shown(stack)


def shown(stack: Stack) -> dict[str, Any]:
    (replica,) = json.loads(stack.exo("deployment", "show", "talk", "-O", "json").stdout)[
        "replica_status"
    ]
    return replica


def accuracy(stack: Stack, *flags: str) -> dict[str, Any]:
    return json.loads(stack.exo("plan", "accuracy", "-O", "json", *flags).stdout)


def errors_of(stack: Stack, replica: str, count: int) -> list[dict[str, Any]]:
    """Wait for so many starts of a replica; return what was graded of them."""
    with Client(state_dir=stack.state_dir) as client:
        while [start.replica for start in client.plan_starts()].count(replica) < count:
            time.sleep(0.05)
    return [each for each in accuracy(stack)["graded"] if each["case"] == replica]


def test_a_start_is_recorded_and_its_plan_was_right(stack: Stack, replica: dict[str, Any]) -> None:
    graded = errors_of(stack, replica["name"], 1)
    num_starts = len(graded) // 3  # another test lets it crash
    limits = {
        "weights, known checkpoint": 0.02,
        "available KV memory": 0.05,
        "KV capacity in tokens": 0.0,
    }
    assert sorted(each["quantity"] for each in graded) == sorted([*limits] * num_starts)
    for each in graded:
        assert abs(each["error"]) <= limits[each["quantity"]]
        if each["quantity"] == "KV capacity in tokens":
            assert each["predicted"] == each["measured"] == 8 * 1024
        print(f"{each['quantity']}: {each['predicted']:.6g}, measured {each['measured']:.6g}")


@pytest.mark.slow
def test_a_replica_that_crashed_has_a_record_for_each_run(
    stack: Stack, replica: dict[str, Any]
) -> None:
    before = len(errors_of(stack, replica["name"], 1)) // 3
    os.kill(replica["pid"], signal.SIGKILL)
    graded = errors_of(stack, replica["name"], before + 1)
    assert shown(stack)["pid"] != replica["pid"]
    assert len(graded) == 3 * (before + 1)


@pytest.mark.slow
def test_recorded_starts_can_be_exported_and_graded_elsewhere(
    stack: Stack, replica: dict[str, Any], tmp_path: Path
) -> None:
    errors_of(stack, replica["name"], 1)
    path = tmp_path / "starts.json"
    stack.exo("plan", "accuracy", "--export", str(path))
    wanted = {"max_num_seqs": 8, "max_model_len": 1024}
    exported = json.loads(path.read_text())["cases"]
    cases = [each for each in exported if wanted.items() <= each.get("flags", {}).items()]
    assert cases
    # On the CPU the platform sizes the cache, so whoever grades it has to know the size.
    assert {len(each["flags"]) for each in cases} == {3}
    assert all(each["flags"]["kv_cache_memory_bytes"] > 0 for each in cases)
    assert "talk" not in path.read_text()
    elsewhere = accuracy(stack, "--cases", str(path))["not_graded"]
    assert not {each["case"] for each in elsewhere} & {case["id"] for case in cases}
