"""Sets the constants of the planner's speeds on a processor on one model's figures, and grades it on the others.

    python -m scripts.calibrate_processor --figures docs/benchmarks/cpu.json --held docs/benchmarks/cpu-avx2.json \
        [--check] [--write PAGE.md]

The figures are exo-engine's, without HTTP, of rounds in which the engine measured the machine, too: each is estimated
from what its own round measured, as a machine's memory may be faster in one minute than in the next. The smallest
model sets the constants; larger ones are graded. What its steps take kernel by kernel is known (`KNOWN`). Each other
constant in turn is moved while that brings the estimates nearer to what was measured: the same figures always give
the same constants.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cpu.page import TITLES
from benchmarks.cpu.report import Report
from benchmarks.cpu.run import OFFLINE
from benchmarks.cpu.shapes import PROMPT_TOKENS
from exo_inference.planner import cpu_as_gpu, plan, read_architecture
from exo_inference.planner.speed.inputs import SpeedInputs
from exo_inference.planner.speed.processor import (
    ProcessorConstants,
    products_of,
    prompt_parts,
    step_parts,
)
from exo_inference.preflight import read_settings
from scripts.constants_file import write_or_compare

TARGET = (
    Path(__file__).parents[1] / "exo_inference" / "planner" / "catalog" / "processor-speeds.json"
)
SETS_CONSTANTS = "s"
"""The model whose figures they are set on; the others are graded."""
WANTED = 0.2
"""How far an estimate may be off."""
KNOWN = {
    "read_share": 0.9,
    "cache_share": 0.69,
    "exposed": 0.3,
    "layer": 2e-6,
    "input": 3.75e-10,
}
"""What docs/benchmarks/cpu-profile.md has of the smallest model kernel by kernel, so that the figures of whole steps
need not tell it apart:

* of the bandwidth that the engine measured at best, what that model in bf16, larger than the processor's caches, reads
  in a step of one token less what lies beside its products: 0.92 by the profile, 0.88 by these constants;
* attention of 8 and of 32 sequences, beside its least;
* what 32 rows take beyond multiplying by the rate of a prompt, of what reading the weights takes;
* norms, gates and heads of one token;
* what products of INT8 and INT4 with 1, 8 and 32 rows take beside reading and multiplying, per number of their
  inputs, by least squares.
"""
START = ProcessorConstants(
    prompt_share=0.8,
    number=3e-9,
    step=5e-4,
    sequence=5e-5,
    prompt=1e-3,
    band=2.0,
    **KNOWN,
)
"""Where the search begins; what plans use, with a wide band, as long as there are no figures."""
_SET = ("prompt_share", "number", "step", "sequence", "prompt")
_FACTORS = (1.6, 1.25, 1.1, 1.04, 1.015)
_REACH = 4.0
"""A constant stays within so many times of where it began."""
_MEMORY_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class Speed:
    """One speed that a round measured, and what the planner is told of it.

    Attributes:
        case: `prefill 512`, `decode 8`.
        rate: tokens per second.
        held: how the run differs, `held to AVX2` or `on Zen 4`; empty on the first machine with what it has.
    """

    model: str
    contestant: str
    case: str
    rate: float
    inputs: SpeedInputs
    held: str = ""

    def predict(self, constants: ProcessorConstants) -> float:
        """Return the planner's tokens per second."""
        kind, _, size = self.case.partition(" ")
        rate = products_of(self.inputs)[1]
        if kind == "prefill":
            parts = prompt_parts(self.inputs, constants, int(size), rate)
        else:
            context = PROMPT_TOKENS + 64  # in the middle of 128 more tokens
            parts = step_parts(self.inputs, constants, int(size), context, rate)
        return int(size) / sum(parts.values())

    def off(self, constants: ProcessorConstants) -> float:
        """Return the logarithm of estimate over measurement."""
        return math.log(self.predict(constants) / self.rate)


def read_speeds(reports: Sequence[Report], held: str = "") -> list[Speed]:
    """Return the speeds of exo-engine in runs that know what the engine reaches on the machine."""
    found = []
    for report in reports:
        for model, config in report.shapes.items():
            for name in report.names:
                if name.startswith("exo-"):
                    inputs = _inputs_by_round(report, model, name, config)
                    found += [
                        Speed(model, name, case, rate, inputs[number], held)
                        for case in OFFLINE
                        for number, rate in report.by_round(
                            model, name, case, "tokens_per_second"
                        ).items()
                        if number in inputs
                    ]
    return found


def _inputs_by_round(
    report: Report, model: str, name: str, config: dict[str, Any]
) -> dict[int, SpeedInputs]:
    """Return what the planner is told in each round in which the engine measured the machine."""
    rates = {
        kind: report.by_round(model, "machine", "limits", f"engine_{kind}")
        for kind in ("read_bytes", "plain", "int8", "int4")
    }
    whole = set.intersection(*map(set, rates.values()))
    found = {
        number: _inputs_of({kind: rates[kind][number] for kind in rates}, model, name, config)
        for number in sorted(whole)
    }
    return {number: inputs for number, inputs in found.items() if inputs is not None}


def _inputs_of(
    known: dict[str, float], model: str, name: str, config: dict[str, Any]
) -> SpeedInputs | None:
    form = name.removeprefix("exo-engine-")
    flags = ["--max-model-len=1024", *([] if form == "bf16" else [f"--quantization={form}"])]
    gpu = cpu_as_gpu(
        _MEMORY_BYTES,
        is_fast_in_bfloat16=True,
        bandwidth=known.pop("read_bytes"),
        operations=known,
    )
    settings = read_settings(tuple(flags), "exo")
    sized = plan(read_architecture(config, name=model), gpu, 1, settings)
    return sized.basis.speed if sized.basis is not None else None


def derive(speeds: Sequence[Speed], graded: Sequence[Speed] = ()) -> ProcessorConstants:
    """Return the constants set on these speeds; assumed ones where there are none.

    The band holds nine in ten of these and of those that are graded: what constants are set on is nearer to them.
    """
    if not speeds:
        return START

    def distance(constants: ProcessorConstants) -> float:
        return statistics.fmean(each.off(constants) ** 2 for each in speeds)

    best, least = replace(START, band=1.0), distance(START)
    for factor in _FACTORS:
        for _ in range(20):
            before = least
            for name in _SET:
                for move in (factor, 1 / factor):
                    tried = _moved(best, name, move)
                    if (found := distance(tried)) < least - 1e-12:
                        best, least = tried, found
            if before - least < 1e-9:
                break
    rounded: dict[str, Any] = {name: float(f"{getattr(best, name):.3g}") for name in _SET}
    best = replace(best, **rounded)
    offs = sorted(abs(each.off(best)) for each in (*speeds, *graded))
    far = offs[math.ceil(0.9 * len(offs)) - 1]
    return replace(best, band=round(max(1 + WANTED, math.exp(far)), 2))


def _moved(constants: ProcessorConstants, name: str, factor: float) -> ProcessorConstants:
    start = getattr(START, name)
    value = min(start * _REACH, max(start / _REACH, getattr(constants, name) * factor))
    changed: dict[str, Any] = {name: value}
    return replace(constants, **changed)


def render(speeds: Sequence[Speed], constants: ProcessorConstants) -> str:
    """Return the page: each model's estimates over what was measured."""
    lines = [
        "# The planner's speeds on a processor",
        "",
        "exo-engine's speeds as they were measured ([here](cpu.md), [held to AVX2](cpu-avx2.md), and [on another machine](cpu-zen4.md)), and as the",
        "planner estimates them from the engine's own measurement of the same machine in the same round",
        "(`exo ai deployment plan --gpu-type cpu --measure`). Constants are set on "
        f"{TITLES[SETS_CONSTANTS].partition(',')[0]} of the first machine alone, by these figures and",
        "by [its profile](cpu-profile.md); the others are graded. What the estimate is made of was chosen with all of these figures in sight, but",
        "those of AVX2 and of the other machine, which were measured later. The band that a plan shows has nine in ten of the figures of all",
        "rounds. Below are medians of the rounds, of the ratio too; a round in which the machine was not measured undisturbed has no part in them.",
        "",
        "Where a figure is off by more than 20 %, with AVX2 and on the other machine, it is one of few rows. The engine measures how fast it reads",
        "weights in bf16 alone; products of few rows in INT8 and INT4 read at other rates, with AVX2 most of all, as it",
        "[widens each code](cpu-avx2.md) for few rows. A rate for each format would mend it; it was not tried, as it needs all machines to be",
        "measured anew.",
        "",
        "    make planner-calibrate",
        "",
    ]
    if not speeds:
        lines += [
            "No run in which the engine measured the machine has been kept yet: the constants are assumed, and bands are wide.",
            "",
        ]
    for model, held in dict.fromkeys((each.model, each.held) for each in speeds):
        of_model: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for each in speeds:
            if (each.model, each.held) == (model, held):
                both = each.predict(constants), each.rate
                of_model.setdefault((each.contestant, each.case), []).append(both)
        ratios = [_medians(pairs)[2] for pairs in of_model.values()]
        near = sum(1 / (1 + WANTED) <= ratio <= 1 + WANTED for ratio in ratios)
        part = "sets constants" if model == SETS_CONSTANTS and not held else "graded"
        lines += [
            f"## {TITLES[model]}{f', {held}' if held else ''}: {part}",
            "",
            f"{near} of {len(ratios)} within {WANTED:.0%}.",
            "",
            "| tokens/s: estimated / measured (ratio) | " + " | ".join(OFFLINE) + " |",
            "| --- | " + " | ".join("---:" for _ in OFFLINE) + " |",
        ]
        for name in dict.fromkeys(name for name, _ in of_model):
            cells = {
                case: "{:,.0f} / {:,.0f} ({:.2f})".format(*_medians(pairs))
                for (contestant, case), pairs in of_model.items()
                if contestant == name
            }
            lines.append(
                f"| {name} | " + " | ".join(cells.get(case, "–") for case in OFFLINE) + " |"
            )
        lines.append("")
    return "\n".join(lines)


def _medians(pairs: Sequence[tuple[float, float]]) -> tuple[float, float, float]:
    """Return the medians of estimates, of measurements and of their ratios."""
    estimates, measured = zip(*pairs, strict=True)
    ratios = [estimate / rate for estimate, rate in pairs]
    return statistics.median(estimates), statistics.median(measured), statistics.median(ratios)


def _reports(path: Path) -> list[Report]:
    return [Report(**each) for each in json.loads(path.read_text(encoding="utf-8"))]


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the constants and the page, or with --check compare the constants with the file."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.calibrate_processor",
        description="Set the constants of the planner's speeds on a processor on one model's figures.",
    )
    parser.add_argument("--figures", type=Path, required=True, help="docs/benchmarks/cpu.json")
    parser.add_argument("--held", type=Path, help="the same of runs held to AVX2, which are graded")
    parser.add_argument("--zen4", type=Path, help="the same of another machine, which are graded")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; 1 where it would differ"
    )
    parser.add_argument("--write", type=Path, help="page to replace")
    options = parser.parse_args(arguments)
    speeds = read_speeds(_reports(options.figures))
    held = [
        each
        for path, told in ((options.held, "held to AVX2"), (options.zen4, "on Zen 4"))
        if path is not None
        for each in read_speeds(_reports(path), told)
    ]
    setting = [each for each in speeds if each.model == SETS_CONSTANTS]
    graded = [each for each in speeds if each.model != SETS_CONSTANTS] + held
    constants = derive(setting, graded)
    text = json.dumps(asdict(constants), indent=0) + "\n"
    code = write_or_compare(TARGET, text, options.figures, check=options.check)
    if options.write is not None and not options.check:
        options.write.write_text(render([*speeds, *held], constants), encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
