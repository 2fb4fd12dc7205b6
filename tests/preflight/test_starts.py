"""A control plane's own starts: graded by the prediction of the day, and as cases for others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exo_inference.planner import cpu_as_gpu, find_gpu, find_model, plan
from exo_inference.planner.accuracy.cases import parse_cases
from exo_inference.planner.accuracy.grading import grade
from exo_inference.preflight import Subject, judge, to_wire
from exo_inference.preflight.starts import grade_starts, kv_cache_bytes, to_case
from exo_inference.wire import PlanStart, StartMeasurements, StartPrediction
from tests.planner.flags import settings_of

QWEN = "Qwen/Qwen3-0.6B"
RAM = 16 * 2**30
CPU = {
    "simulated": False, "dtype": "float32", "max_model_len": 4672, "max_num_seqs": 64,
    "weights_bytes": 2_384_199_680, "available_kv_bytes": 2**30, "kv_bytes_per_token": 229_376,
    "kv_block_size": 16, "num_kv_blocks": 292, "kv_capacity_tokens": 4672,
    "device_total_bytes": RAM, "device_free_bytes": RAM // 2,
}  # fmt: skip


def make_start(measured: dict[str, Any] = CPU, **changes: Any) -> PlanStart:
    """Return a start of Qwen3-0.6B on a CPU with what the planner says of it today."""
    found = judge(
        Subject(find_model(QWEN), cpu_as_gpu(RAM), 1, ("--max-num-seqs=64",), engine="exo")
    )
    figures = to_wire(found).model_dump(
        include=StartPrediction.model_fields.keys() - {"components"}
    )
    start = {
        "id": "4d01a164", "deployment": "secret-project", "replica": "secret-project-1",
        "started_at": "2026-11-20T20:00:00Z", "engine": "exo", "engine_version": "0.1.0",
        "model": QWEN, "gpu": "CPU", "gpu_type": "cpu", "gpu_count": 1,
        "flags": ["--max-num-seqs", "64", "--served-by=somebody"], "predicted": figures,
        "measured": StartMeasurements.model_validate(measured),
    }  # fmt: skip
    return PlanStart.model_validate({**start, **changes})


def errors_by_quantity(start: PlanStart) -> dict[str, float]:
    """Return the relative errors of what was predicted of a start: 1.0 is twice what was measured."""
    return {each.quantity: each.error for each in grade_starts([start]).graded}


def test_a_start_is_graded_by_what_was_predicted_for_it() -> None:
    assert errors_by_quantity(make_start()) == pytest.approx(
        {"weights, known checkpoint": 0, "available KV memory": 0, "KV capacity in tokens": 0},
        abs=0.001,
    )
    halved = make_start({**CPU, "weights_bytes": CPU["weights_bytes"] // 2})
    assert errors_by_quantity(halved)["weights, known checkpoint"] == pytest.approx(1.0)


def test_a_block_of_a_mixed_model_serves_one_group_of_its_layers() -> None:
    """Five windows to one full layer in six groups: a token takes a place in six blocks of 1 MiB."""
    figures = {
        "num_kv_blocks": 100, "kv_block_size": 16, "kv_bytes_per_token": 6 * 65536,
        "kv_block_bytes": 2**20, "available_kv_bytes": 200 * 2**20,
    }  # fmt: skip
    assert kv_cache_bytes(StartMeasurements.model_validate(figures)) == 100 * 2**20


def test_a_cache_that_was_capped_is_held_against_its_blocks() -> None:
    capped = make_start({**CPU, "available_kv_bytes": 8 * 2**30, "num_kv_blocks": 146})
    assert errors_by_quantity(capped)["available KV memory"] == pytest.approx(1.0, rel=0.01)
    blockless = make_start({**CPU, "num_kv_blocks": None, "available_kv_bytes": 2**29})
    assert errors_by_quantity(blockless)["available KV memory"] == pytest.approx(1.0, abs=0.001)


def test_a_start_that_was_forced_against_the_plan_counts_as_wrong() -> None:
    start = make_start()
    assert start.predicted is not None
    refused = start.predicted.model_copy(update={"verdict": "refused"})
    grades = grade_starts([start, make_start(predicted=refused)])
    assert [each.is_right for each in grades.fits] == [True, False]


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [
        ({"predicted": None}, {"everything"}),
        ({"measured": {"weights-bytes": 12}}, {"available KV memory", "KV capacity in tokens"}),
    ],
)
def test_what_is_not_known_is_not_graded(changes: dict[str, Any], unknown: set[str]) -> None:
    grades = grade_starts([make_start(**changes)])
    assert unknown <= {quantity for _, quantity, _ in grades.not_graded}
    assert unknown.isdisjoint(each.quantity for each in grades.graded)


def test_an_exported_start_is_graded_alike_elsewhere() -> None:
    start = make_start()
    (case,) = parse_cases(json.dumps({"cases": [to_case(start)]}), "starts.json")
    again = {each.quantity: each.error for each in grade([case]).graded}
    assert again == pytest.approx(errors_by_quantity(start), abs=1e-9)


def test_an_exported_start_on_gpus_is_planned_with_its_flags() -> None:
    flags = ("-tp", "2", "--gpu-memory-utilization=0.8", "--enforce-eager", "--port=1")
    model = find_model("meta-llama/Llama-3.1-8B-Instruct")
    parameters = settings_of(flags, engine_version="0.28.0")
    wanted = plan(model, find_gpu("gpua5000"), 2, parameters)
    total = find_gpu("gpua5000").reported_bytes
    measured = {
        "weights_bytes": 8 * 10**9,
        "available_kv_bytes": 10**10,
        "device_total_bytes": total,
    }
    start = make_start(
        measured, engine="vllm", engine_version="0.28.0", model=model.name, gpu=wanted.gpu,
        gpu_type="gpua5000", gpu_count=2, flags=list(flags),
    )  # fmt: skip
    case = to_case(start)
    assert case["flags"] == {
        "tensor_parallel_size": 2, "gpu_memory_utilization": 0.8, "enforce_eager": True,
    }  # fmt: skip
    graded = {each.quantity: each for each in grade([case]).graded}
    kv_memory = graded["available KV memory"].predicted * 2**30
    assert kv_memory == pytest.approx(wanted.available_kv_bytes_per_gpu, rel=1e-6)


def test_an_exported_start_names_neither_deployment_nor_other_flags() -> None:
    text = json.dumps(to_case(make_start()))
    assert "secret" not in text
    assert "somebody" not in text
    assert '"max_num_seqs": 64' in text
