"""This control plane's own starts: graded by what was predicted for them then, or as cases. Pure.

A case can be sent and graded elsewhere, by the planner of that day; names of deployments, replicas
and flags without a bearing on memory are left out of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exo_inference.errors import ExoError
from exo_inference.planner.accuracy.grading import FitGraded, Graded, Grades
from exo_inference.planner.gpu_catalog import GIB
from exo_inference.preflight.flags import read_settings
from exo_inference.wire import PlanStart, PlanVerdict, StartMeasurements


def grade_starts(starts: Iterable[PlanStart]) -> Grades:
    """Hold what was predicted for each start against what it measured."""
    grades = Grades()
    for start in starts:
        grades.num_cases += 1
        _grade_start(start, grades)
    return grades


def _grade_start(start: PlanStart, grades: Grades) -> None:
    predicted, measured = start.predicted, start.measured
    if predicted is None or predicted.verdict == PlanVerdict.UNKNOWN:
        reason = f"nothing could be predicted for {start.model} on {start.gpu_type}"
        grades.not_graded.append((start.replica, "everything", reason))
        return
    kv_bytes, tokens = kv_cache_bytes(measured), measured.kv_capacity_tokens
    pairs = (
        ("weights, known checkpoint", predicted.weights_bytes_per_gpu, measured.weights_bytes, GIB),
        ("available KV memory", predicted.available_kv_bytes_per_gpu, kv_bytes, GIB),
        ("KV capacity in tokens", predicted.kv_capacity_tokens, tokens, 1),
    )
    for quantity, expected, found, unit in pairs:
        if found is None:
            grades.not_graded.append((start.replica, quantity, "the engine did not measure it"))
        else:
            graded = Graded(start.replica, quantity, expected / unit, found / unit)
            grades.graded.append(graded)
    grades.fits.append(FitGraded(start.replica, str(predicted.verdict), "fits"))


def kv_cache_bytes(measured: StartMeasurements) -> int | None:
    """Return what was left for the KV cache, or what its blocks take where it was capped.

    exo-engine caps the cache at what its sequences can use, and measures what was left before that;
    a plan tells what is left after it.
    """
    blocks, block, available = (
        measured.num_kv_blocks, _block_bytes(measured), measured.available_kv_bytes,
    )  # fmt: skip
    if blocks is None or block is None:
        return available
    is_capped = available is None or available >= (blocks + 1) * block
    return blocks * block if is_capped else available


def _block_bytes(measured: StartMeasurements) -> int | None:
    """Return what one block takes: engines before `kv_block_bytes` are read as if all layers shared each block."""
    size, per_token = measured.kv_block_size, measured.kv_bytes_per_token
    if measured.kv_block_bytes is not None or size is None or per_token is None:
        return measured.kv_block_bytes
    return size * per_token


def to_case(start: PlanStart) -> dict[str, Any]:
    """Return a start in the form of the collected ones, as `planner.accuracy.grade` takes them."""
    measured = start.measured
    total, free = measured.device_total_bytes, measured.device_free_bytes
    is_cpu = start.gpu_type == "cpu"
    observed = {
        "weights_gib_per_gpu": _gib(measured.weights_bytes),
        "available_kv_gib": _gib(kv_cache_bytes(measured)),
        "kv_tokens": measured.kv_capacity_tokens,
        "gpu_blocks": measured.num_kv_blocks,
        "block_size": measured.kv_block_size,
        "max_model_len": measured.max_model_len,
        "activation_peak_gib": _gib(measured.activation_peak_bytes),
        "non_torch_gib": _gib(measured.non_torch_bytes),
        "cudagraph_gib": _gib(measured.cuda_graph_bytes),
        "free_at_start_gib": None if is_cpu else _gib(free),
        "outcome": "fits",
    }
    case = {
        "id": start.id,
        "source": f"measured by the engine, {start.started_at}",
        "engine": start.engine,
        "engine_version": start.engine_version,
        "model": start.model,
        "gpu": "cpu" if is_cpu else start.gpu,
        "gpu_vram_gib": _gib(total),
        "gpu_count": start.gpu_count,
        "flags": _flags(start),
        "observed": {key: value for key, value in observed.items() if value is not None},
    }
    return {key: value for key, value in case.items() if value is not None}


def _gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else num_bytes / GIB


def _flags(start: PlanStart) -> dict[str, Any]:
    """Return the flags that a plan depends on, by name."""
    try:
        return read_settings(tuple(start.flags), start.engine).settings
    except ExoError:  # it was never planned either
        return {}
