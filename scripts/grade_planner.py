"""Writes the planner's grades as a Markdown page, `docs/benchmarks/planner.md`.

Grading itself is pure, in `exo_inference/planner/accuracy/grading.py`; users grade with `exo ai plan accuracy`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from exo_inference.planner.accuracy.cases import parse_cases
from exo_inference.planner.accuracy.grading import (
    FIT_LIMIT,
    LIMITS,
    Graded,
    Grades,
    Summary,
    grade,
    miss_limit,
    summarise,
)

_HEAD = """# The planner, graded

What `plan` predicts against what engines printed when they really started, for every collected start.
Errors are relative to the printed figure. Written by one command:

    python -m scripts.grade_planner --cases CASES.json \\
        --explanations docs/benchmarks/planner-explanations.json \\
        --unseen docs/benchmarks/planner-unseen.json --write docs/benchmarks/planner.md

For other starts, such as your own: [see how right the planner was](../how-to/grade-the-planner.md).
"""

_EVERYTHING = """## With what is left out above

The means above depend on what is graded. Left out there and counted here: starts whose own notes say that a
flag was set but is not in the source (a batch of unknown size, Unsloth's own choices), one whose KV type is the
collector's inference, and vLLM before 0.6.6, whose source was not read. They are planned as if defaults held.
"""

_RULES = """## How it is graded

- A case is graded as it stands in its source: model, GPU, count, flags, engine version, and the effective
  batch size where the log prints it. What a source does not state is not guessed; the quantities that
  need it are listed below as not graded, with the reason.
- *Known checkpoint*: the model is in the catalogue (or has the shape of one that is, with a source). *Derived*:
  the name only says "this model, in AWQ"; what the checkpoint really leaves in 16 bit is not known.
- *KV tokens from the printed KV memory* grades blocks, groups and pages alone: the printed memory goes in.
- `tight` counts as the middle of its band.
- Constants that are measured rather than derived: the sampler's copies, graph memory per layer and size, memory
  outside torch (alone, over NVLink, over PCIe, with memory shared between CPU and GPU). They were set on these
  same cases, so this table alone does not show how well they carry over; the starts below do.
- Constants of one family: the padding of gpt-oss's experts and Gemma 4's largest image item, both as vLLM has them.

## Published figures that the arithmetic contradicts

- Step-3.7-Flash: the count of 197,824,847,872 parameters is of a vocabulary of 128,815; the published
  config has 128,896 rows, 663,552 parameters more.
- gpt-oss in vLLM takes more than its checkpoint: the kernel for MXFP4 pads 2,880 to 3,072 and 2,944, so the
  experts of the 20B model take 9 % more (13.72 GiB printed, 12.82 GiB stored).
- Tables of caches and checkpoints that are wrong, with the arithmetic: [planning](../concepts/planning.md).
"""


def render(
    grades: Grades,
    explanations: Mapping[str, str],
    *,
    everything: Grades | None = None,
    unseen: Grades | None = None,
) -> str:
    """Return the page.

    Args:
        grades: from `grade`.
        explanations: by case, what explains a miss.
        everything: grades of the same cases with `includes_unstated`.
        unseen: grades of starts that were found after the constants were set.
    """
    lines = [_HEAD, f"{grades.num_cases} cases.\n", *_table(grades)]
    lines += _fit_lines(grades, explanations)
    if everything is not None:
        lines += [_EVERYTHING, *_table(everything), *_fit_lines(everything, explanations)]
        above = {(each.case, each.quantity) for each in grades.graded}
        for quantity in LIMITS:
            added = [g for g in everything.of(quantity) if (g.case, quantity) not in above]
            lines += _miss_lines(f"{quantity}, left out above", quantity, added, explanations)
    for quantity in LIMITS:
        lines += _miss_lines(quantity, quantity, grades.of(quantity), explanations)
    if unseen is not None:
        lines += _unseen_lines(unseen)
    lines += ["## Not graded\n", "| case | what | why |", "| --- | --- | --- |"]
    lines += [f"| {case} | {what} | {why} |" for case, what, why in grades.not_graded]
    return "\n".join([*lines, "", _RULES])


def _unseen_lines(grades: Grades) -> list[str]:
    lines = [
        "## Starts that were not in the file\n",
        "Found after the constants were set, with what is known in `planner-unseen.json`. Most state "
        "too little for an end-to-end figure, so they check weights and blocks more than overheads. "
        "new-gemma4-e2b-l4 then led to one rule (no image items, no larger step). *Blocks for states* are those of "
        'starts that vLLM refused with "max_num_seqs (1024) exceeds available Mamba cache blocks"; the rule is '
        "from its source, and no constant was set on them.\n",
        "| case | quantity | predicted | printed | error |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    for each in grades.graded:
        form = ",.0f" if each.observed > 1000 else ".2f"
        figures = f"{each.predicted:{form}} | {each.observed:{form}} | {100 * each.error:+.1f} %"
        lines.append(f"| {each.case} | {each.quantity} | {figures} |")
    right = sum(each.is_right for each in grades.fits)
    return [*lines, "", f"Fit or not: right in {right} of {len(grades.fits)}.\n"]


def _table(grades: Grades) -> list[str]:
    lines = [
        "| quantity | cases | mean | median | 95th percentile | worst | bias | asked for |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for quantity, (mean, most) in LIMITS.items():
        row = summarise(quantity, grades.of(quantity))
        if row is not None:
            lines.append(_row(row, mean, most))
    return [*lines, ""]


def _row(row: Summary, mean: float | None, most: float | None) -> str:
    asked = []
    if mean is not None:
        asked.append(f"mean ≤ {mean:.0%}: {'met' if row.mean <= mean else 'missed'}")
    if most is not None:
        asked.append(f"95 % within {most:.0%}: {'met' if row.p95 <= most else 'missed'}")
    figures = (row.mean, row.median, row.p95, row.worst)
    cells = " | ".join(f"{100 * figure:.2f} %" for figure in figures)
    return (
        f"| {row.quantity} | {row.count} | {cells} | {100 * row.bias:+.2f} % | {'; '.join(asked)} |"
    )


def _fit_lines(grades: Grades, explanations: Mapping[str, str]) -> list[str]:
    right = sum(each.is_right for each in grades.fits)
    count = len(grades.fits)
    share = right / count if count else 0.0
    lines = [
        f"Fit or not: right in {right} of {count} ({share:.1%}; asked for: {100 * FIT_LIMIT:.0f} %).\n"
    ]
    lines += [
        f"- {each.case}: predicted {each.predicted}{f' ({each.note})' if each.note else ''}, was "
        f"{each.observed}. {explanations.get(each.case, _UNEXPLAINED)}"
        for each in grades.fits
        if not each.is_right
    ]
    return [*lines, ""] if len(lines) > 1 else lines


_UNEXPLAINED = "not explained"


def _miss_lines(
    title: str, quantity: str, graded: Sequence[Graded], explanations: Mapping[str, str]
) -> list[str]:
    missed = [each for each in graded if abs(each.error) > miss_limit(quantity)]
    if not missed:
        return []
    lines = [
        f"## Beyond {miss_limit(quantity):.0%}: {title}\n",
        "| case | predicted | printed | error | explanation |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for each in sorted(missed, key=lambda item: -abs(item.error)):
        why = (
            explanations.get(f"{each.case}/{quantity}")
            or explanations.get(each.case)
            or _UNEXPLAINED
        )
        form = ",.0f" if each.observed > 1000 else ".2f"
        lines.append(
            f"| {each.case} | {each.predicted:{form}} | {each.observed:{form}} | {100 * each.error:+.1f} % | {why} |"
        )
    return [*lines, ""]


def _grade_file(path: Path, *, includes_unstated: bool = False) -> Grades:
    cases = parse_cases(path.read_text(encoding="utf-8"), str(path))
    return grade(cases, includes_unstated=includes_unstated)


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade a file of cases; print the page or write it."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.grade_planner",
        description="Grade the planner against real starts.",
    )
    parser.add_argument("--cases", type=Path, required=True, help="JSON file of starts")
    parser.add_argument("--explanations", type=Path, help="JSON object: case to explanation")
    parser.add_argument("--unseen", type=Path, help="JSON file of further starts, listed apart")
    parser.add_argument(
        "--write", type=Path, help="page to replace; without it the page is printed"
    )
    options = parser.parse_args(arguments)
    explanations = {}
    if options.explanations is not None:
        explanations = json.loads(options.explanations.read_text(encoding="utf-8"))
    unseen = None if options.unseen is None else _grade_file(options.unseen)
    everything = _grade_file(options.cases, includes_unstated=True)
    page = render(_grade_file(options.cases), explanations, everything=everything, unseen=unseen)
    if options.write is None:
        print(page)
    else:
        options.write.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
