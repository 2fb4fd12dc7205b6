"""Sets the constants of the planner's speeds on one half of the published figures, and grades both halves.

    python -m scripts.calibrate_speeds --figures FIGURES.json [--check] [--write PAGE.md]

The halves are those of the starts (`scripts/planner_halves.py`): by model and GPU, so that near-duplicates fall on one
side. Each constant in turn is moved up or down while that brings the estimates nearer to the printed times, by ever
smaller factors: the same figures always give the same constants.
"""

from __future__ import annotations

import argparse
import json
import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from exo_inference.planner.speed.constants import SpeedConstants
from scripts.constants_file import write_or_compare
from scripts.planner_halves import sets_constants
from scripts.published_speeds import Figure, parse_figures, read_figures
from scripts.speed_page import LeftOut, render, render_found, render_left_out

TARGET = Path(__file__).parents[1] / "exo_inference" / "planner" / "catalog" / "speeds.json"

_SET = (
    "memory_share", "compute_share", "compute_loss", "amd_share", "grouped_width", "layer", "experts", "early_groups",
    "expert_launches", "early_attention", "latent", "switch", "bus", "bus_share", "copied_share", "step",
    "sequence", "prompt", "template", "waiting", "ahead", "old_step", "old_sequence", "old_prompt", "prompt_layer",
    "old_prompt_layer", "old_reduce", "launch",
)  # fmt: skip
_MOST_SHARE = 0.92
"""Of the memory bandwidth: what copies of large arrays reach."""
_REACH = 3.0
"""A constant stays within so many times of where it began: what no figure tells must not take another's place."""
_SHARES = frozenset({"memory_share", "compute_share", "amd_share", "bus_share", "copied_share"})
_FACTORS = (1.6, 1.25, 1.1, 1.04, 1.015)
_ROUNDS = 8
"""At most so many passes over all constants for each factor."""
_RETURNS = 3
"""How often the search goes back to the largest factor: what one constant could not leave, it leaves when others have moved."""
_NEAR_FACTORS, _NEAR_ROUNDS = (1.1, 1.04), 2
"""The same where constants are moved on from those of all figures."""
_BEGUN = SpeedConstants()
_HELD = 0.3
"""How much a constant that is e times what it began as counts, as a figure that is e times off counts 1: of 0.1 to 1, and of
distances and their squares, what left the calibration half's figures nearest."""
_FAR = math.log(2)
"""A figure that is further off pulls no harder: its run had a cause that no constant has."""


def halves(figures: Sequence[Figure]) -> tuple[list[Figure], list[Figure]]:
    """Return the figures that set constants, and those that are graded; some are neither."""
    found: tuple[list[Figure], list[Figure]] = ([], [])
    for each in figures:
        if each.is_stated and not each.is_cached:
            found[0 if sets_constants(each.record) else 1].append(each)
    return found


def distance(figures: Sequence[Figure], constants: SpeedConstants) -> float:
    """Return how far the estimates are from the printed times: the mean of their logarithms' distances.

    Figures of one model on one kind of GPU weigh together as the root of their number: they say much the same. A
    processor's factor counts as one figure that says 1: a host is as others until its figures say more than that. Each constant
    is held to what it began as by the square of its distance, so that what figures hardly tell apart does not drift.
    """
    return _mean(figures, [_off(each, constants) for each in figures], constants)


def _off(figure: Figure, constants: SpeedConstants) -> float:
    return min(_FAR, abs(math.log(figure.predict(constants) / figure.seconds)))


def _mean(figures: Sequence[Figure], offs: Sequence[float], constants: SpeedConstants) -> float:
    """Return the mean of the figures' distances and of what holds the constants."""
    sums: dict[tuple[object, ...], list[float]] = {}
    for each, off in zip(figures, offs, strict=True):
        sums.setdefault(_run(each), []).append(off)
    for processor in constants.hosts:
        sums["host", processor] = [abs(math.log(constants.hosts[processor]))]
    weights = [len(run) ** 0.5 for run in sums.values()]
    means = [sum(run) / len(run) for run in sums.values()]
    moved = (math.log(getattr(constants, name) / getattr(_BEGUN, name)) for name in _SET)
    held = _HELD * sum(each**2 for each in moved)
    return float((sum(map(operator.mul, weights, means)) + held) / sum(weights))


def _run(figure: Figure) -> tuple[object, ...]:
    inputs = figure.inputs
    return inputs.model.name, inputs.gpu.key, inputs.ranks, inputs.rules.is_legacy


def split_found(
    setting: Sequence[Figure], graded: Sequence[Figure]
) -> tuple[list[Figure], list[Figure]]:
    """Return the figures that were written down before the planner was asked, and the others that set constants."""
    found = [each for each in (*setting, *graded) if "found" in each.record]
    return found, [each for each in setting if "found" not in each.record]


def settle(figures: Sequence[Figure]) -> SpeedConstants:
    """Return the constants set on these figures, to three digits; bands are not among them."""
    hosts = sorted({each.inputs.gpu.processor for each in figures} - {""})
    start = SpeedConstants(hosts=dict.fromkeys(hosts, 1.0))
    best = _settle(figures, start, _FACTORS, _ROUNDS)
    for _ in range(_RETURNS):
        best = _settle(figures, best, _FACTORS, _ROUNDS)
    for name in (*_SET, *hosts):
        best = _with(best, name, float(f"{_value(best, name):.3g}"))
    return best


def derive(figures: Sequence[Figure]) -> tuple[SpeedConstants, list[LeftOut]]:
    """Return the constants set on these figures, and how each kind of GPU fares by those of the others."""
    best = settle(figures)
    left_out = leave_one_out(figures, best)
    return _with_band(left_out, replace(best, figures=len(figures))), left_out


def leave_one_out(figures: Sequence[Figure], constants: SpeedConstants) -> list[LeftOut]:
    """Return for each kind of GPU how its figures fare by constants that are moved to what the others alone say."""
    found = []
    for key in sorted({each.inputs.gpu.key for each in figures}):
        rest = [each for each in figures if each.inputs.gpu.key != key]
        told = {each.inputs.gpu.processor for each in rest}
        start = constants
        for processor in constants.hosts:
            if processor not in told:
                start = _with(start, processor, 1.0)
        left = tuple(each for each in figures if each.inputs.gpu.key == key)
        found.append(LeftOut(key, left, _settle(rest, start, _NEAR_FACTORS, _NEAR_ROUNDS)))
    return found


def _settle(
    figures: Sequence[Figure], start: SpeedConstants, factors: Sequence[float], rounds: int
) -> SpeedConstants:
    """Return the constants after moving each while that brings the estimates nearer."""
    best, offs = start, [_off(each, start) for each in figures]
    least = _mean(figures, offs, best)
    for factor in factors:
        for _ in range(rounds):
            before = least
            for name in (*_SET, *start.hosts):
                for move in (factor, 1 / factor):
                    tried = _moved(best, name, move)
                    if tried == best:  # it stands at its limit
                        continue
                    moved = [
                        _off(each, tried) if _depends(each, name, tried) else off
                        for each, off in zip(figures, offs, strict=True)
                    ]
                    found = _mean(figures, moved, tried)
                    if found < least - 1e-9:
                        best, least, offs = tried, found, moved
            if before - least < 1e-6:
                break
    return best


def _depends(figure: Figure, name: str, constants: SpeedConstants) -> bool:
    """Whether a figure's estimate changes with a constant: a processor's factor is of its own figures alone."""
    return name not in constants.hosts or figure.inputs.gpu.processor == name


def _value(constants: SpeedConstants, name: str) -> float:
    """Return a constant, or the factor of a processor."""
    return float(constants.hosts[name] if name in constants.hosts else getattr(constants, name))


def _with(constants: SpeedConstants, name: str, value: float) -> SpeedConstants:
    is_host = name in constants.hosts
    changed: dict[str, Any] = (
        {"hosts": {**constants.hosts, name: value}} if is_host else {name: value}
    )
    return replace(constants, **changed)


def _moved(constants: SpeedConstants, name: str, factor: float) -> SpeedConstants:
    start = 1.0 if name in constants.hosts else getattr(SpeedConstants(), name)
    most = start * _REACH
    if name in _SHARES:
        most = _MOST_SHARE if name == "memory_share" else 1.0
    value = min(most, max(start / _REACH, _value(constants, name) * factor))
    return _with(constants, name, value)


def _with_band(left_out: Sequence[LeftOut], constants: SpeedConstants) -> SpeedConstants:
    """Add between which times the estimate nine in ten figures lie, first tokens and all others.

    Each is estimated without its kind of GPU: constants fit the figures that they were set on better than others.
    """
    groups: tuple[list[float], list[float]] = ([], [])
    for each in left_out:
        for figure in each.figures:
            ratio = figure.seconds / figure.predict(each.constants)
            groups[figure.quantity == "ttft_ms"].append(ratio)
    (low, high), (prompt_low, prompt_high) = map(_middle_of, groups)
    return replace(constants, low=low, high=high, prompt_low=prompt_low, prompt_high=prompt_high)


def _middle_of(ratios: Sequence[float]) -> tuple[float, float]:
    """Return between which ratios nine in ten lie, outwards to two digits."""
    ordered, last = sorted(ratios), len(ratios) - 1
    low, high = ordered[math.floor(0.05 * last)], ordered[math.ceil(0.95 * last)]
    return min(1.0, math.floor(100 * low) / 100), max(1.0, math.ceil(100 * high) / 100)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the constants and the page, or with --check compare the constants with the file."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.calibrate_speeds",
        description="Set the constants of the planner's speeds on one half of published figures.",
    )
    parser.add_argument("--figures", type=Path, required=True, help="JSON file of figures")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 where it would differ"
    )
    parser.add_argument("--write", type=Path, help="page with both halves, to replace")
    options = parser.parse_args(arguments)
    records = parse_figures(options.figures.read_text(encoding="utf-8"), str(options.figures))
    setting, graded = halves(read_figures(records))
    constants, left_out = derive(setting)
    text = json.dumps(asdict(constants), indent=0) + "\n"
    code = write_or_compare(TARGET, text, options.figures, check=options.check)
    if options.write is not None and not options.check:
        found, others = split_found(setting, graded)
        page = render(setting, graded, constants) + render_left_out(left_out, constants)
        page += render_found(found, others, settle(others))
        options.write.write_text(page, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
