"""Sets each measured constant again without one kind of GPU, and predicts the starts on it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from exo_inference.planner.gpu_catalog import GIB, MIB
from exo_inference.planner.overheads import GRAPHS, GRAPHS_OF_STATES, Measured
from scripts.calibrate_planner import (
    GraphEstimate,
    band_ratios,
    band_width,
    graph_constants,
    graph_estimates,
    outside_constants,
    residuals,
    set_without,
)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One constant, and how starts fare that it is set without; errors as shares of what they printed.

    Attributes:
        constant, value: which, and what it is with all.
        mean, median: of the errors; None where all of its starts are on one machine.
        apart: what is left out at once: `kind of GPU`, or `machine` where all are on one kind; empty for neither.
        unit: of the value.
        gib: mean and median of the errors in GiB, where what is predicted may be next to nothing.
    """

    constant: str
    value: Measured
    mean: float | None = None
    median: float | None = None
    apart: str = ""
    unit: str = "GiB"
    gib: tuple[float, float] | None = None


_APART = {"gpu": "kind of GPU", "machine": "machine"}


def leave_one_out(cases: Sequence[Mapping[str, Any]]) -> list[LeftOut]:
    """Return how well each constant for memory outside PyTorch predicts starts when it is set without their kind of GPU."""
    left = residuals(cases, graph_constants(graph_estimates(cases)))
    rows = []
    for name, value in outside_constants(left).items():
        mine = [each for each in left if each.constant == name]
        apart = next((key for key in _APART if len({getattr(e, key) for e in mine}) > 1), None)
        if apart is None:
            rows.append(LeftOut(name, value))
            continue
        held_out = [(each, set_without(left, each, apart)) for each in mine]
        errors = [
            abs(each.outside - constant.value) / max(0.01, abs(each.printed))
            for each, constant in held_out
            if constant is not None
        ]
        rows.append(_left_out(name, value, errors, _APART[apart]))
    return rows


def _left_out(name: str, value: Measured, errors: Sequence[float], apart: str) -> LeftOut:
    return LeftOut(name, value, statistics.fmean(errors), statistics.median(errors), apart)


def graphs_left_out(cases: Sequence[Mapping[str, Any]]) -> list[LeftOut]:
    """Return how well the constants of graphs predict the estimates of a kind of GPU that they are set without.

    What a layer takes for a size predicts by itself, and once more with what lies beside that.
    """
    found = graph_estimates(cases)
    rows = []
    for name, value in graph_constants(found).items():
        errors, sizes = [], []
        for one in found:
            others = [each for each in found if each.gpu != one.gpu]
            if name not in (one.constant, one.beside) or not _has_all(others):
                continue
            constants = graph_constants(others)
            predicted = constants[one.constant].value * one.sizes
            if name == one.beside:
                predicted += constants[name].value * GIB / MIB
            sizes.append(abs(predicted - one.mib) * MIB / GIB)
            errors.append(abs(predicted - one.mib) / one.mib)
        if errors:
            row = _left_out(name, value, errors, _APART["gpu"])
            both = statistics.fmean(sizes), statistics.median(sizes)
            rows.append(replace(row, unit=name.split()[1], gib=both))
    return rows


def _has_all(found: Sequence[GraphEstimate]) -> bool:
    return {each.constant for each in found} == {GRAPHS, GRAPHS_OF_STATES}


def band_left_out(cases: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many starts lie in the band that is set without their kind of GPU, and of how many."""
    ratios = band_ratios(residuals(cases, graph_constants(graph_estimates(cases))))
    inside = 0
    for gpu, ratio in ratios:
        others = [each for other, each in ratios if other != gpu]
        inside += ratio <= band_width(others)
    return inside, len(ratios)
