"""Sets what an engine with a static share takes beside weights and cache, from starts that printed it.

    python -m scripts.static_starts.calibrate --starts STARTS.json [--check]

writes `planner/catalog/static_overheads.json`, or says whether it would differ. Set are the starts of the calibration half
(`scripts/planner_halves.py`); a constant is the middle of what was not free before the weights, by how ranks are joined.
Its band reaches from the least to the most machine, where they are five or more. Fewer say little of their spread: they have
that of all constants, and a band that holds the next machine nine times in ten (Student's t). Where a start does not print what
was free, its cache says it. Starts on the same kind and number of GPUs say much the same: together they are one.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.accuracy.cases import (
    is_inferred,
    is_of_other_maker,
    model_name,
    stated_gpu,
    stated_parameters,
    stated_version,
    unstated_flags,
)
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.gpu_catalog import GIB, Gpu, find_gpu
from exo_inference.planner.overheads import Measured
from exo_inference.planner.planning import plan
from exo_inference.planner.static.stage import (
    ALONE,
    LOADING,
    LOADING_UNIFIED,
    constant_of,
    loaded_weights,
)
from scripts.calibrate_planner import set_constants

TARGET = Path(__file__).parents[2] / "exo_inference/planner/catalog/static_overheads.json"


def missing_before(cases: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the GiB that were not free before the weights, by the name of the constant; a doubling's share of it."""
    sizes: dict[tuple[str, float, str, int], list[float]] = {}
    for case in cases:
        gpu = stated_gpu(case)
        if gpu is None or is_inferred(case, "GPU") or unstated_flags(case):
            continue
        free = case["observed"].get("free_before_weights_gib")
        size = _said_by_cache(case, gpu) if free is None else gpu.reported_bytes / GIB - free
        if size is not None:
            ranks = int(case.get("tp") or 1) * int(case.get("pp") or 1)
            sizes.setdefault((*constant_of(gpu, ranks), gpu.key, ranks), []).append(size)
    middles = {key: statistics.median(values) for key, values in sizes.items()}
    alone = statistics.median([size for (name, *_), size in middles.items() if name == ALONE])
    found: dict[str, list[float]] = {}
    for (name, doubled, _, _), size in middles.items():
        found.setdefault(name, []).append((size - alone) / doubled if doubled else size)
    return found


def _said_by_cache(case: Mapping[str, Any], gpu: Gpu) -> float | None:
    """Return the same of a start that prints its weights and its cache, or the cache's tokens."""
    observed, version = case["observed"], stated_version(case)
    tokens, weights = observed.get("kv_tokens"), observed.get("weights_gib_per_gpu")
    if tokens is None or weights is None or version is None or is_inferred(case, "model"):
        return None
    try:
        model = find_model(model_name(str(case["model"])))
        parameters = stated_parameters(case, version)
    except UsageError:
        return None
    found = plan(model, gpu, int(case["gpu_count"]), parameters)
    if found.basis is None or parameters.num_gpu_blocks_override is not None:
        return None
    cache = tokens * found.kv_bytes_per_token / GIB
    return gpu.reported_bytes / GIB - (weights + cache) / found.basis.setting.memory_share


def left_by_loading(cases: Iterable[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return by how many GiB more starts print for their weights than a known checkpoint takes, by the constant's name."""
    sizes: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        printed, gpu = case["observed"].get("weights_gib_per_gpu"), stated_gpu(case)
        if printed is None or is_inferred(case, "model") or unstated_flags(case):
            continue
        if is_of_other_maker(case):
            continue
        try:
            model = find_model(model_name(str(case["model"])))
            parameters = stated_parameters(case, stated_version(case) or _ANY)
        except UsageError:
            continue
        if parameters.quantization is not None or any(n.startswith("derived") for n in model.notes):
            continue
        basis = plan(model, gpu or find_gpu("h200"), int(case["gpu_count"]), parameters).basis
        if basis is not None:
            weights = loaded_weights(basis.setting, 0)
            name = LOADING_UNIFIED if gpu is not None and gpu.is_unified else LOADING
            key = (name, gpu.key if gpu is not None else "")
            sizes.setdefault(key, []).append(printed - weights.num_bytes / GIB)
    found: dict[str, list[float]] = {}
    for (name, _), values in sizes.items():
        found.setdefault(name, []).append(statistics.median(values))
    return found


_ANY = "0.5.12"
"""A release, where none is stated: weights are the same in all."""


def derive(cases: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    """Return the constants, each with the band that the next machine lies in nine times in ten."""
    groups = sorted((missing_before(cases) | left_by_loading(cases)).items())
    share, freedom = _spread([values for name, values in groups if name != LOADING])
    found = {}
    for name, values in groups:
        middle = statistics.median(values)
        low, high = min(values), max(values)
        if name == LOADING:  # its spread is no share of it, and no middle is less than nothing
            low, high = _around_nothing(values)
            middle = max(0.0, middle)
        elif len(values) < _FEW and not freedom:
            low, high = min(low, middle / 2), max(high, 2 * middle)
        elif len(values) < _FEW:
            wide = _T[min(freedom, len(_T)) - 1] * share * middle * (1 + 1 / len(values)) ** 0.5
            low, high = max(0.0, min(low, middle - wide)), max(high, middle + wide)
        found[name] = Measured(round(middle, 3), round(low, 3), round(high, 3), len(values))
    return found


_FEW = 5
_T = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t that 95 % lie below, and so 90 % of both sides within, from one degree of freedom on."""


def _around_nothing(values: Sequence[float]) -> tuple[float, float]:
    """Return the band of a rest in GiB: of few machines, where nine in ten of the next ones lie by their own deviation."""
    low, high, count = min(values), max(values), len(values)
    if not 1 < count < _FEW:
        return low, high
    wide = _T[count - 2] * statistics.stdev(values) * (1 + 1 / count) ** 0.5
    middle = statistics.median(values)
    return min(low, middle - wide), max(high, middle + wide)


def _spread(groups: Iterable[Sequence[float]]) -> tuple[float, int]:
    """Return the deviation of a machine as a share of its constant, pooled over all, and how many degrees of freedom say it."""
    squares, freedom = 0.0, 0
    for values in groups:
        mean = statistics.fmean(values)
        squares += sum((value / mean - 1) ** 2 for value in values)
        freedom += len(values) - 1
    return (squares / freedom) ** 0.5 if freedom else 0.0, freedom


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the constants, or with --check compare them with the file."""
    description = "Set what is taken before weights on the calibration half of real starts."
    return set_constants("static_starts.calibrate", description, TARGET, derive, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
