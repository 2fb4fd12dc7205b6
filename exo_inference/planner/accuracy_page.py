"""Writes grades as a Markdown page, and is the program behind `python -m exo_inference.planner.accuracy`.

The only module of the planner that reads and writes files: the cases and explanations it is given by
path, and the page. Grading itself is pure, in `accuracy.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from exo_inference.planner.accuracy import LIMITS, Graded, Grades, Summary, grade, summarise

_HEAD = """# The planner, graded

What `plan` predicts against what engines printed when they really started, for every collected start.
Errors are relative to the printed figure. Written by one command:

    python -m exo_inference.planner.accuracy --cases CASES.json \\
        --explanations docs/benchmarks/planner-explanations.json --write docs/benchmarks/planner.md

"""

_RULES = """## How it is graded

- A case is graded as it stands in its source: model, GPU, count, flags, engine version, and the effective
  batch size where the log prints it. What a source does not state is not guessed; the quantities that
  need it are listed below as not graded, with the reason.
- *Known checkpoint*: the model is in the catalogue (or has the shape of one that is, with a source). *Derived*:
  the name only says "this model, in AWQ"; what the checkpoint really leaves in 16 bit is not known.
- *KV tokens from the printed KV memory* grades blocks, groups and pages alone: the printed memory goes in.
- `tight` counts as the middle of its band.
- The constants that are measured rather than derived (sampler copies, graph memory per layer and size, memory
  outside torch) are one value each for all models; none belongs to a model.
"""


def render(grades: Grades, explanations: Mapping[str, str]) -> str:
    """Return the page.

    Args:
        grades: from `grade`.
        explanations: by case, what explains a miss.
    """
    lines = [_HEAD, f"{grades.num_cases} cases.\n", *_table(grades), *_fit_lines(grades)]
    for quantity in LIMITS:
        lines += _miss_lines(quantity, grades.of(quantity), explanations)
    lines += ["## Not graded\n", "| case | what | why |", "| --- | --- | --- |"]
    lines += [f"| {case} | {what} | {why} |" for case, what, why in grades.not_graded]
    return "\n".join([*lines, "", _RULES])


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


def _fit_lines(grades: Grades) -> list[str]:
    right = sum(each.is_right for each in grades.fits)
    count = len(grades.fits)
    share = right / count if count else 0.0
    lines = [f"Fit or not: right in {right} of {count} ({share:.1%}; asked for: 95 %).\n"]
    lines += [
        f"- {each.case}: predicted {each.predicted}{f' ({each.note})' if each.note else ''}, was {each.observed}"
        for each in grades.fits
        if not each.is_right
    ]
    return [*lines, ""] if len(lines) > 1 else lines


def _miss_lines(
    quantity: str, graded: Sequence[Graded], explanations: Mapping[str, str]
) -> list[str]:
    missed = [each for each in graded if abs(each.error) > _limit(quantity)]
    if not missed:
        return []
    lines = [
        f"## Beyond {_limit(quantity):.0%}: {quantity}\n",
        "| case | predicted | printed | error | explanation |",
        "| --- | ---: | ---: | ---: | --- |",
    ]
    for each in sorted(missed, key=lambda item: -abs(item.error)):
        why = (
            explanations.get(f"{each.case}/{quantity}")
            or explanations.get(each.case)
            or "not explained"
        )
        form = ",.0f" if each.observed > 1000 else ".2f"
        lines.append(
            f"| {each.case} | {each.predicted:{form}} | {each.observed:{form}} | {100 * each.error:+.1f} % | {why} |"
        )
    return [*lines, ""]


def _limit(quantity: str) -> float:
    mean, most = LIMITS[quantity]
    return most or mean or 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade a file of cases; print the page or write it."""
    parser = argparse.ArgumentParser(description="Grade the planner against real starts.")
    parser.add_argument("--cases", type=Path, required=True, help="JSON file of starts")
    parser.add_argument("--explanations", type=Path, help="JSON object: case to explanation")
    parser.add_argument(
        "--write", type=Path, help="page to replace; without it the page is printed"
    )
    options = parser.parse_args(arguments)
    data = json.loads(options.cases.read_text(encoding="utf-8"))
    cases = data["cases"] if isinstance(data, dict) else data
    explanations = {}
    if options.explanations is not None:
        explanations = json.loads(options.explanations.read_text(encoding="utf-8"))
    page = render(grade(cases), explanations)
    if options.write is None:
        print(page)
    else:
        options.write.write_text(page, encoding="utf-8")
    return 0
