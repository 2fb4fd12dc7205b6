"""Writes the grades of plans for SGLang as a Markdown page, `docs/benchmarks/planner-sglang.md`.

python -m scripts.static_starts.grade --cases STARTS.json --explanations EXPLANATIONS.json [--write PAGE.md]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from exo_inference.planner.accuracy.grading import LIMITS, Grades, grade
from exo_inference.planner.static.stage import load_constants
from scripts.grade_planner import (
    miss_lines,
    not_graded_lines,
    section,
    write_grades,
)
from scripts.planner_halves import split

_HEAD = """# Plans for SGLang, graded

What `plan` predicts for SGLang against what it printed when it really started. Errors are relative to the printed figure. The
starts are in [`planner-sglang-starts.json`](planner-sglang-starts.json), with what is known of each. They were found on
2026-11-28 by one who had not seen the rules, and written down before the planner was asked. The rule that splits the starts
of vLLM (`scripts/planner_halves.py`) splits these, too: by model and GPU. Written by `make planner-calibrate`; the rules are on
[planning](../concepts/planning.md#sglang).
"""

_GRADED = """## The graded half

{count} starts; no constant was set on them.
"""

_CALIBRATION = """## The calibration half

{count} starts, on which the constants below were set.
"""

_CONSTANTS = """## The constants

What was not free before the weights were loaded, and what loading left beside them and their allocator's segments. Starts on the same kind and number of GPUs
are one machine. A band reaches from the least to the most; where fewer than five machines set a constant, it holds the next one
nine times in ten, by Student's t and the spread that machines have around all of these constants, as shares of them (by its own, in GiB, of what loading left:
no share tells of nothing). Over an NVLink
switch no start of the calibration half sets one: it is what NCCL held for vLLM's ranks.

| constant | machines | value | between |
| --- | ---: | ---: | ---: |
"""

_RULES = """## How it is graded

- As [starts of vLLM](planner.md#how-it-is-graded). *Weights* are what SGLang prints as "mem usage" of loading, which is more
  than the checkpoint by what loading leaves. *Available KV memory* is all pools of the cache, those for states too.
- Starts whose source does not say what else runs on a GPU that shares its memory with the CPU, starts with adapters, speculative
  decoding, attention in data-parallel ranks or experts on the CPU, and forks, are not graded.
- That loading leaves something was seen on starts of both halves: above all the rests of the segments in which PyTorch's
  allocator takes memory, which were derived from its source on 2026-11-29 after a constant of 0.09 GiB alone had missed small models
  of the graded half (weights 1.48 % in the mean). What is beside them, of which no middle is less than nothing, the calibration half
  sets. On four GPUs over PCIe two models take 0.06 and 0.09 GiB less than segments give, why is not known. All other rules were
  read in the source.
- Figures of SGLang on AMD's GPUs and Ascend grade blocks alone, from the printed memory: it is planned for NVIDIA's. What its weights
  take there has a row of its own, without a limit or a band.
"""


def render(setting: Grades, graded: Grades, explanations: Mapping[str, str]) -> str:
    """Return the page of both halves."""
    lines = [_HEAD, *section(_GRADED, graded, explanations)]
    lines += section(_CALIBRATION, setting, explanations)
    rows = [
        f"| {name} | {each.starts} | {each.value:.2f} GiB | {each.low:.2f} to {each.high:.2f} |"
        for name, each in load_constants().items()
    ]
    lines += [_CONSTANTS + "\n".join(rows) + "\n"]
    for quantity in LIMITS:
        both = [each for group in (graded, setting) for each in group.of(quantity)]
        lines += miss_lines(quantity, quantity, both, explanations)
    return "\n".join([*lines, *not_graded_lines([graded, setting]), "", _RULES])


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade a file of starts; print the page or write it."""

    def page(cases: list[dict[str, Any]], explanations: Mapping[str, str]) -> str:
        return render(*map(grade, split(cases)), explanations)

    return write_grades("static_starts.grade", "SGLang", page, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
