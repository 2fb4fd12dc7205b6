"""Derives the measured constants of the planner from the calibration half of the collected starts.

    python -m scripts.calibrate_planner --starts STARTS.json [--check]

writes `planner/catalog/overheads.json`, or says whether it would differ. What follows from an engine's source is
not touched: a constant is the middle of what is left of printed figures when that is taken away. `left_out/` derives
each constant again without one kind of GPU, and predicts the starts on it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.accuracy.cases import (
    is_inferred,
    model_name,
    parse_cases,
    stated_gpu,
    stated_parameters,
    stated_stage,
    stated_version,
    unstated_flags,
)
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.engine_rules import PLANNED, rules_for
from exo_inference.planner.gpu_catalog import GIB, MIB
from exo_inference.planner.memory import Component
from exo_inference.planner.overheads import (
    ALONE,
    BAND,
    BESIDE,
    BESIDE_OF_STATES,
    GRAPHS,
    GRAPHS_OF_STATES,
    LINKED,
    UNIFIED,
    Measured,
    at_ranks,
    beside_constant,
    doublings,
    estimated_graphs,
    graph_sizes,
    graphs_constant,
    outside_constant,
    stage_layers,
)
from exo_inference.planner.planning import plan
from exo_inference.planner.verdict import Plan
from scripts.constants_file import write_or_compare
from scripts.planner_halves import gpu_key, machine_key, split

TARGET = Path(__file__).parents[1] / "exo_inference" / "planner" / "catalog" / "overheads.json"

_FEW = 5
"""Machines that a constant needs for a spread of its own; with fewer it has what Student's t gives for the next one."""

_HALF = (1.000, 0.816, 0.765, 0.741)
"""Student's t that 75 % lie below, and so half of both sides within, from one degree of freedom on."""

_NINE_IN_TEN = (6.314, 2.920, 2.353, 2.132)
"""The same for 95 %, and so nine in ten within."""

_INSIDE = 0.9
"""The share of starts that a band is to hold."""


@dataclass(frozen=True, slots=True)
class Residual:
    """What one start's printed KV memory leaves for memory outside PyTorch.

    Attributes:
        case, gpu, constant: which start, on which kind of GPU, and which constant it sets.
        outside: GiB, by what was printed for the rest.
        doubled: how often the ranks on its NVLink switch are doubled from one.
        fixed_down, fixed_up: squares of the bands of the other components, in GiB.
        printed: KV memory in GiB.
        machine: what starts of one source on the same GPUs have in common.
    """

    case: str
    gpu: str
    constant: str
    outside: float
    fixed_down: float
    fixed_up: float
    printed: float
    doubled: float = 0.0
    machine: str = ""


def _planned(case: Mapping[str, Any]) -> Plan | None:
    """Return the plan of a start that states all that its memory depends on."""
    if case["engine"] not in PLANNED or case.get("approximate") or unstated_flags(case):
        return None
    gpu, version = stated_gpu(case), stated_version(case)
    if gpu is None or version is None or is_inferred(case, "model") or is_inferred(case, "GPU"):
        return None
    rules = rules_for(case["engine"], version)
    try:
        model = find_model(model_name(str(case["model"])))
        parameters = stated_parameters(case, version)
    except UsageError:
        return None
    is_other = not rules.spans_gpus or rules.static_share is not None
    if rules.version < rules.oldest or is_other or model.cannot_size is not None:
        return None
    result = plan(model, gpu, int(case.get("gpu_count") or 1), parameters)
    is_refused = any(each.code == "draft-model" for each in result.problems)
    return None if result.basis is None or is_refused else result


@dataclass(frozen=True, slots=True)
class GraphEstimate:
    """What one start printed for graphs that it was yet to capture.

    It is this that the engine subtracts; what graphs took afterwards was from a third to five times as much.

    Attributes:
        constant, beside: which constants it sets.
        gpu: the kind.
        mib: printed.
        sizes: layers of a stage, as often as graphs are captured.
    """

    constant: str
    beside: str
    gpu: str
    mib: float
    sizes: int

    @property
    def each(self) -> float:
        """MiB per layer and size."""
        return self.mib / self.sizes


def graph_estimates(cases: Iterable[Mapping[str, Any]]) -> list[GraphEstimate]:
    """Return the estimates that starts printed for captured graphs."""
    found = []
    for case in cases:
        printed = case["observed"].get("cudagraph_est_gib")
        result = _planned(case)
        if printed is None or printed <= 0 or result is None or result.basis is None:
            continue
        setting = result.basis.setting
        model = setting.model
        sizes = stage_layers(model, setting.ranks) * graph_sizes(setting.max_num_seqs)
        names = graphs_constant(model), beside_constant(model)
        found.append(GraphEstimate(*names, gpu_key(case), printed * GIB / MIB, sizes))
    return found


def graph_constants(found: Sequence[GraphEstimate]) -> dict[str, Measured]:
    """Return one middle of all estimates, and what models with and without states have beside it.

    The spread per layer and size is for graphs that nothing is subtracted for; no estimate is less than its sizes.
    """
    middle = statistics.median([one.each for one in found])
    constants = {}
    for name in (GRAPHS, GRAPHS_OF_STATES):
        values = [one.each for one in found if one.constant == name]
        constants[name] = _around(middle, values)
    for name in (BESIDE, BESIDE_OF_STATES):
        values = [(one.mib - middle * one.sizes) * MIB / GIB for one in found if one.beside == name]
        constants[name] = _around(max(0.0, statistics.median(values)), values)
    return constants


def _around(middle: float, values: Sequence[float]) -> Measured:
    """Return a middle with the half of these values that lies in the middle of them."""
    low, high = _quantile(values, 0.25), _quantile(values, 0.75)
    return _rounded(middle, min(low, middle), max(high, middle), len(values))


def residuals(cases: Iterable[Mapping[str, Any]], graphs: Mapping[str, Measured]) -> list[Residual]:
    """Return what each start leaves for memory outside PyTorch, graphs reckoned with these constants."""
    found = []
    for case in cases:
        printed = case["observed"].get("available_kv_gib")
        result = _planned(case)
        if printed is None or result is None or result.basis is None:
            continue
        found.append(_residual(case, result, float(printed), graphs))
    return found


def _residual(
    case: Mapping[str, Any], result: Plan, printed: float, graphs: Mapping[str, Measured]
) -> Residual:
    assert result.basis is not None
    setting, stage = result.basis.setting, stated_stage(case)
    available = result.available_kv_bytes_per_gpu
    if stage is not None:
        available = result.stages[stage].available_kv_bytes
    parts = {each.name: each for each in result.basis.stage.components if each.is_in_budget}
    left = available / GIB - printed + parts["non_torch"].num_bytes / GIB
    weights = case["observed"].get("weights_gib_per_gpu")
    if weights is not None:
        planned = result.weights_bytes_per_gpu
        if stage is not None:
            planned = result.stages[stage].weights_bytes
        left += planned / GIB - float(weights) + _draft(parts)
    share = setting.memory_share
    down = (setting.gpu.shortfall_bytes * share / GIB) ** 2
    up = (setting.gpu.reported_error_bytes * share / GIB) ** 2
    for name, each in parts.items():
        if name == "cuda_graphs" and each.num_bytes:
            model, num_seqs = setting.model, setting.max_num_seqs
            sizes, beside = graphs[graphs_constant(model)], graphs[beside_constant(model)]
            each = estimated_graphs(model, setting.ranks, num_seqs, sizes, beside)
            left += (parts[name].num_bytes - each.num_bytes) / GIB
        if name not in ("non_torch", "weights"):  # weights have a band of their own
            down += ((each.high - each.num_bytes) / GIB) ** 2
            up += (each.spread_down / GIB) ** 2
    constant = outside_constant(setting.model, setting.ranks, setting.gpu)
    doubled = doublings(setting.model, setting.ranks, setting.gpu) if constant == LINKED else 0.0
    machine = machine_key(case)
    return Residual(
        str(case["id"]), gpu_key(case), constant, left, down, up, printed, doubled, machine
    )


def _draft(parts: Mapping[str, Component]) -> float:
    draft = parts.get("draft_model")
    return 0.0 if draft is None else draft.num_bytes / GIB


def measure(left: Sequence[tuple[Residual, float]], spread: Sequence[float]) -> Measured:
    """Return the middle of all starts, and the spread of half of the machines.

    Starts of one source on the same GPUs say much the same: together they are one machine. Fewer than five machines say
    little of their spread: half of the next ones lie as far as Student's t gives, though none holds less than nothing.
    One alone has the spread of eight in ten of all starts around their middles, `spread`.
    """
    values = [value for _, value in left]
    middle = statistics.median(values)
    machines = _by_machine(left)
    medians = [statistics.median(each) for each in machines]
    low, high = _quantile(medians, 0.25), _quantile(medians, 0.75)
    if len(medians) == 1:
        low = min(low, middle + _quantile(spread, 0.1))
        high = max(high, middle + _quantile(spread, 0.9))
    elif len(medians) < _FEW:
        wide = next_machine(machines, _HALF)
        low, high = min(low, max(0.0, middle - wide)), max(high, middle + wide)
    return _rounded(middle, min(low, middle), max(high, middle), len(values))


def _rounded(middle: float, low: float, high: float, starts: int) -> Measured:
    return Measured(round(middle, 3), round(low, 3), round(high, 3), starts)


def _by_machine(left: Sequence[tuple[Residual, float]]) -> list[list[float]]:
    machines: dict[str, list[float]] = {}
    for each, value in left:
        machines.setdefault(each.machine, []).append(value)
    return list(machines.values())


def next_machine(machines: Sequence[Sequence[float]], table: Sequence[float]) -> float:
    """Return how far a start on the next machine lies from the middle: machines differ, and so do starts on one."""
    count = len(machines)
    within = [value - statistics.fmean(each) for each in machines for value in each]
    freedom = len(within) - count
    repeats = sum(value**2 for value in within) / freedom if freedom else 0.0
    between = statistics.variance([statistics.median(each) for each in machines])
    return float(table[count - 2] * ((between + repeats) * (1 + 1 / count)) ** 0.5)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * (len(ordered) - 1))))]


def derive(cases: Sequence[Mapping[str, Any]]) -> dict[str, Measured]:
    """Return all constants, set on these starts."""
    graphs = graph_constants(graph_estimates(cases))
    left = residuals(cases, graphs)
    constants = graphs | outside_constants(left)
    ratios = [ratio for _, ratio in band_ratios(left)]
    constants[BAND] = _rounded(band_width(ratios), min(ratios), max(ratios), len(ratios))
    if UNIFIED in constants:
        constants[UNIFIED] = _shared_with_cpu(left, constants)
    return constants


def band_ratios(left: Sequence[Residual]) -> list[tuple[str, float]]:
    """Return how many times the spread each start lies from what other kinds of GPU predict, with its own kind."""
    held_out = [(each, set_without(left, each)) for each in left]
    return [(each.gpu, _ratio(each, found)) for each, found in held_out if found is not None]


def band_width(ratios: Sequence[float]) -> float:
    """Return how many times the spread nine in ten of the next starts lie within."""
    rank = -(-int(_INSIDE * 100) * (len(ratios) + 1) // 100) - 1
    return sorted(ratios)[min(len(ratios) - 1, rank)]


def _shared_with_cpu(left: Sequence[Residual], constants: Mapping[str, Measured]) -> Measured:
    """Return what is counted where memory is shared with the CPU: the change of what the host has available.

    vLLM takes that for the free memory (`MemorySnapshot.measure`), so all that runs there is in it. Its starts are on one kind
    of GPU and have no part in the band of the others: nine in ten of the next ones lie within theirs.
    """
    here = [(each, each.outside) for each in left if each.constant == UNIFIED]
    machines, found = _by_machine(here), constants[UNIFIED]
    if not 1 < len(machines) < _FEW:
        return found
    wide = next_machine(machines, _NINE_IN_TEN) / constants[BAND].value
    return _rounded(found.value, found.value - wide, found.value + wide, found.starts)


def outside_constants(left: Sequence[Residual]) -> dict[str, Measured]:
    """Return what ranks hold outside PyTorch, by how they are joined; over a switch, by doublings."""
    alone = [each.outside for each in left if each.constant == ALONE]
    base = statistics.median(alone) if alone else 0.0
    groups: dict[str, list[tuple[Residual, float]]] = {}
    for each in left:
        groups.setdefault(each.constant, []).append((each, _per_doubling(each, base)))
    middles = {
        name: statistics.median([value for _, value in values]) for name, values in groups.items()
    }
    often = statistics.median([each.doubled for each in left if each.doubled] or [1.0])
    found = {}
    for name, values in sorted(groups.items()):
        # What is shared with the CPU is shared with all that runs there: its spread is its own.
        alike = [each for each in left if (each.constant == UNIFIED) == (name == UNIFIED)]
        share = often if name == LINKED else 1.0
        spread = [
            (_per_doubling(each, base) - middles[each.constant]) * max(1.0, each.doubled) / share
            for each in alike
        ]
        found[name] = measure(values, spread)
    return found


def _per_doubling(one: Residual, base: float) -> float:
    return (one.outside - base) / one.doubled if one.doubled else one.outside


def set_without(left: Sequence[Residual], one: Residual, apart: str = "gpu") -> Measured | None:
    """Return a start's constant, set on other kinds of GPU (or machines) alone; None where there is none."""
    own = getattr(one, apart)
    constants = outside_constants([each for each in left if getattr(each, apart) != own])
    found = constants.get(one.constant)
    if found is None or not one.doubled:
        return found
    return at_ranks(found, constants.get(ALONE, Measured(0.0, 0.0, 0.0, 0)), one.doubled)


def _ratio(one: Residual, constant: Measured) -> float:
    """Return how many times the spread a start lies from its prediction."""
    error = constant.value - one.outside  # above 0: more was left than predicted
    if error >= 0:
        spread = one.fixed_up + max(0.0, constant.value - constant.low) ** 2
    else:
        spread = one.fixed_down + max(0.0, constant.high - constant.value) ** 2
    return float(abs(error) / max(0.01, spread**0.5))


def render(constants: Mapping[str, Measured]) -> str:
    """Return the file of constants."""
    lines = [f"{json.dumps(name)}: {json.dumps(asdict(each))}" for name, each in constants.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the constants, or with --check compare them with the file."""
    description = "Set the planner's measured constants on the calibration half of real starts."
    return set_constants("calibrate_planner", description, TARGET, derive, arguments)


def set_constants(
    module: str,
    description: str,
    target: Path,
    derive_from: Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Measured]],
    arguments: Sequence[str] | None,
) -> int:
    """Write what the calibration half of a file of starts gives, or with --check compare it with the file.

    Args:
        module: of `scripts`, for the usage.
        description: what it does.
        target: the file of constants.
        derive_from: makes them of the starts.
        arguments: `--starts FILE`, and `--check`; None: those of the process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m scripts.{module}", description=description)
    parser.add_argument("--starts", type=Path, required=True, help="JSON file of starts")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 where it would differ"
    )
    options = parser.parse_args(arguments)
    cases = parse_cases(options.starts.read_text(encoding="utf-8"), str(options.starts))
    text = render(derive_from(split(cases)[0]))
    return write_or_compare(target, text, options.starts, check=options.check)


if __name__ == "__main__":
    raise SystemExit(main())
