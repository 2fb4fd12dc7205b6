"""Writes the planner's grades as a Markdown page, `docs/benchmarks/planner.md`.

Grading itself is pure, in `exo_inference/planner/accuracy/grading.py`; users grade with `exo ai plan accuracy`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from exo_inference.planner.accuracy.cases import parse_cases
from exo_inference.planner.accuracy.grading import (
    FIT_LIMIT,
    LIMITS,
    SMALL_CACHE,
    Graded,
    Grades,
    Summary,
    grade,
    miss_limit,
    summarise,
)
from scripts.left_out.constants import band_left_out, graphs_left_out, leave_one_out
from scripts.left_out.page import LeftOutPart
from scripts.planner_halves import split
from scripts.published_speeds import ran_starts

_HEAD = """# The planner, graded

What `plan` predicts against what engines printed when they really started. Errors are relative to the printed
figure. The starts are in [`planner-starts.json`](planner-starts.json), with what is known of each. A fixed rule over
model and GPU (`scripts/planner_halves.py`) splits them: constants are set on the *calibration half* alone, by
`make planner-calibrate`, and every start of the *graded half* has a model or a GPU that no constant has seen.
`make lint` fails where the constants are not what the calibration half gives. Written by one command:

    python -m scripts.grade_planner --cases docs/benchmarks/planner-starts.json \\
        --explanations docs/benchmarks/planner-explanations.json \\
        --unseen docs/benchmarks/planner-unseen.json --ran docs/benchmarks/planner-published-speeds.json \\
        --write docs/benchmarks/planner.md

For other starts, such as your own: [see how right the planner was](../how-to/grade-the-planner.md).
"""

_GRADED = """## The graded half

{count} starts; no constant was set on them.
"""

_CALIBRATION = """## The calibration half

{count} starts. The measured constants were set on these, so this table says less than the one above.
"""

_UNSEEN = """## Starts found later

{count} starts of [`planner-unseen.json`](planner-unseen.json), found after the constants were set.
"""

_RULES = Path(__file__).with_name("planner_page_rules.md")
"""How starts are graded, as the page says it at its end."""

_PEER = "https://github.com/llm-d-incubation/llm-d-planner/"
_PEER_HEAD = """### On llm-d-planner's own H100 runs

Its page of measured runs (`docs/empirical-vllm-memory-results.md` @e50305af, vLLM 0.11.0, 2026-04-01), whose activations
it takes into its estimates. It publishes mean errors of 0.89 % for weights and 0.34 % for KV memory. No constant here was
set on them. Of gpt-oss-120b the table's own figures add up to another share of the GPU than it states.

| run | weights, printed | predicted | KV memory, printed | predicted |
| --- | ---: | ---: | ---: | ---: |
"""

_RAN = """### Starts whose speed was published

They print no memory, but they ran: those of [published speeds](planner-published-speeds.md) whose source states release
and flags, one for each start.
"""


def render(
    graded: Grades,
    explanations: Mapping[str, str],
    *,
    calibration: Grades | None = None,
    unseen: Grades | None = None,
    left_out: LeftOutPart | None = None,
    peer: Sequence[Mapping[str, Any]] = (),
    ran: Grades | None = None,
    by_half: tuple[Grades, Grades] | None = None,
) -> str:
    """Return the page.

    Args:
        graded: grades of the graded half.
        explanations: by case, what explains a miss.
        calibration: grades of the half that constants were set on.
        unseen: grades of starts that were found after the constants were set.
        left_out: how starts fare without their own part in each constant.
        peer: starts among which those that another planner published are shown beside its figures.
        ran: grades of starts whose speed was published.
        by_half: `unseen` apart by the half that its model and GPU fall on.
    """
    lines = [_HEAD, *section(_GRADED, graded, explanations)]
    if unseen is not None:
        lines += section(_UNSEEN, unseen, explanations)
        lines += _half_lines(by_half) if by_half is not None else []
        lines += _pooled(graded, unseen)
    if ran is not None and unseen is not None:
        lines += [_RAN, *_fit_lines(ran, explanations), _tight_line(graded, unseen, ran)]
    if peer:
        lines += _beside_peer(peer)
    if calibration is not None:
        lines += section(_CALIBRATION, calibration, explanations)
    if left_out is not None:
        lines += left_out.lines()
    groups = [each for each in (graded, unseen, calibration) if each is not None]
    for quantity in LIMITS:
        missed = [each for group in groups for each in group.of(quantity)]
        lines += miss_lines(quantity, quantity, missed, explanations)
    return "\n".join([*lines, *not_graded_lines(groups), "", _RULES.read_text(encoding="utf-8")])


def not_graded_lines(groups: Sequence[Grades]) -> list[str]:
    """Return the table of what was not graded, with the reasons."""
    lines = ["## Not graded\n", "| case | what | why |", "| --- | --- | --- |"]
    lines += [
        f"| {case} | {what} | {why} |" for each in groups for case, what, why in each.not_graded
    ]
    return lines


def section(head: str, grades: Grades, explanations: Mapping[str, str]) -> list[str]:
    """Return the part of a page for one group of starts: its table, its band, and whether they started."""
    return [
        head.format(count=grades.num_cases), *_table(grades), *_band_lines(grades.graded),
        *_fit_lines(grades, explanations),
    ]  # fmt: skip


def _beside_peer(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of another planner's runs, with the means of both."""
    runs = [case for case in cases if str(case.get("source")).startswith(_PEER)]
    grades = grade(runs)
    columns = ("weights", "available KV memory")
    found = {
        (each.case, name): each
        for each in grades.graded
        for name in columns
        if each.quantity.startswith(name)
    }
    rows = []
    for case in runs:
        cells = [found.get((case["id"], name)) for name in columns]
        texts = [
            f"{each.observed:.2f} GiB | {each.predicted:.2f} GiB ({100 * each.error:+.2f} %)"
            if each
            else "- | -"
            for each in cells
        ]
        rows.append(f"| {case['id'].removeprefix('llmd-')} | {' | '.join(texts)} |")
    means = []
    for name in columns:
        errors = [
            abs(each.error)
            for (_, column), each in found.items()
            if column == name and each.observed > 0
        ]
        means.append(
            f"{name} {statistics.fmean(errors):.2%} mean, {statistics.median(errors):.2%} median ({len(errors)})"
        )
    verdicts = f"whether they start right in {sum(each.is_right for each in grades.decided)} of {len(grades.decided)}"
    return [
        _PEER_HEAD + "\n".join(rows),
        "",
        f"Here: {'; '.join(means)}; {verdicts} that are not tight.\n",
    ]


_HALVES = """### Of these, by what the rule holds out

No constant was set on a start above. Of some the model and the GPU fall on the calibration half, so that other starts of
either may have set one; of the others the rule holds out the model or the GPU.

| model and GPU | verdict right | tight | in the band | available KV memory, 1 GiB and more: mean | median |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def _half_lines(halves: tuple[Grades, Grades]) -> list[str]:
    """Return the table of later starts by the half of their model and GPU."""
    lines = [_HALVES.rstrip("\n")]
    for name, grades in zip(("on the calibration half", "held out"), halves, strict=True):
        right, decided = sum(each.is_right for each in grades.decided), len(grades.decided)
        banded = [each.is_in_band for each in grades.graded if each.is_in_band is not None]
        found = [each for each in grades.of("available KV memory") if not each.is_small]
        errors = [abs(each.error) for each in found]
        lines.append(
            f"| {name} | {right} of {decided} ({right / max(1, decided):.1%}) | {len(grades.fits) - decided} of {len(grades.fits)} "
            f"| {sum(banded)} of {len(banded)} ({sum(banded) / max(1, len(banded)):.1%}) "
            f"| {statistics.fmean(errors):.2%} ({len(errors)}) | {statistics.median(errors):.2%} |"
        )
    return [*lines, ""]


def _pooled(graded: Grades, unseen: Grades) -> list[str]:
    decided, right, fits = 0, 0, 0
    for each in (graded, unseen):
        decided += len(each.decided)
        right += sum(fit.is_right for fit in each.decided)
        fits += len(each.fits)
    tight = fits - decided
    return [
        "### Both together\n", *_band_lines([*graded.graded, *unseen.graded]),
        f"Fit or not: right in {right} of {decided} that are not tight; {tight} of {fits} are tight "
        f"({tight / max(1, fits):.1%}; asked for: at most 10 %).\n",
    ]  # fmt: skip


def _tight_line(*groups: Grades) -> str:
    fits = sum(len(each.fits) for each in groups)
    tight = fits - sum(len(each.decided) for each in groups)
    return f"With those above: {tight} of {fits} verdicts are tight ({tight / max(1, fits):.1%}).\n"


def _band_lines(graded: Sequence[Graded]) -> list[str]:
    stated = [each.is_in_band for each in graded if each.is_in_band is not None]
    if not stated:
        return []
    inside, count = sum(stated), len(stated)
    low, high = wilson(inside, count)
    return [
        f"In the band: {inside} of {count} printed figures, {inside / count:.1%} "
        f"(Wilson's interval {low:.1%} to {high:.1%}; stated: 90 %).\n"
    ]


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return between which shares the true one lies with 95 % confidence (Wilson 1927, doi:10.2307/2276774)."""
    z, share = 1.96, hits / count
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    whole = 1 + z * z / count
    return (middle - spread) / whole, (middle + spread) / whole


def _table(grades: Grades) -> list[str]:
    lines = [
        "| quantity | cases | mean | median | 95th percentile | worst | bias | asked for |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for quantity, (mean, most) in LIMITS.items():
        found = grades.of(quantity)
        rows = [(quantity, found, mean)]
        small = [each for each in found if each.is_small]
        if small and len(small) < len(found):
            larger = [each for each in found if not each.is_small]
            rows = [(f"{quantity}, {SMALL_CACHE:g} GiB and more printed", larger, mean)]
            rows += [(f"{quantity}, all", found, None)]
        for name, group, asked in rows:
            row = summarise(name, group)
            if row is not None:
                lines.append(_row(row, asked, most if asked is not None else None))
        if small and quantity.startswith(_IN_GIB):
            lines.append(_absolute_row(quantity, small))
    return [*lines, ""]


_IN_GIB = ("available KV memory", "blocks for states")
"""Quantities whose error of a small cache is told in GiB."""


def _absolute_row(quantity: str, small: Sequence[Graded]) -> str:
    """Return the row of starts that have next to no cache, of which a share of an error says nothing: in GiB.

    Its last cell has the errors as shares of the GPU's memory, which they are to be seen against.
    """
    errors = sorted((each.predicted - each.observed) * each.gib for each in small)
    sizes = sorted(map(abs, errors))
    figures = (statistics.fmean(sizes), statistics.median(sizes), sizes[-1], sizes[-1])
    cells = " | ".join(f"{figure:.2f} GiB" for figure in figures)
    name = f"{quantity}, less than {SMALL_CACHE:g} GiB printed"
    shares = [abs(each.predicted - each.observed) * each.gib / each.gpu_gib for each in small]
    of_gpu = f"of the GPU's memory: {statistics.fmean(shares):.1%} mean, {max(shares):.1%} at most"
    return f"| {name} | {len(small)} | {cells} | {statistics.fmean(errors):+.2f} GiB | {of_gpu} |"


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
    decided = grades.decided
    right, tight = sum(each.is_right for each in decided), len(grades.fits) - len(decided)
    if not grades.fits:
        return []
    share = right / max(1, len(decided))
    lines = [
        f"Fit or not: right in {right} of {len(decided)} ({share:.1%}; asked for: {100 * FIT_LIMIT:.0f} %); "
        f"{tight} of {len(grades.fits)} are tight.\n"
    ]
    lines += [
        f"- {each.case}: predicted {each.predicted}, was {each.observed}. "
        f"{explanations.get(each.case, _UNEXPLAINED)}"
        for each in decided
        if not each.is_right
    ]
    return [*lines, ""] if len(lines) > 1 else lines


_UNEXPLAINED = "not explained"


def miss_lines(
    title: str, quantity: str, graded: Sequence[Graded], explanations: Mapping[str, str]
) -> list[str]:
    """Return the table of figures that were missed by more than the limit; nothing where there is none."""
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


def _read(path: Path) -> list[dict[str, Any]]:
    return parse_cases(path.read_text(encoding="utf-8"), str(path))


def _figures(path: Path) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["figures"]
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Grade a file of cases; print the page or write it."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.grade_planner",
        description="Grade the planner against real starts.",
    )
    parser.add_argument("--cases", type=Path, required=True, help="JSON file of starts")
    parser.add_argument("--explanations", type=Path, help="JSON object: case to explanation")
    parser.add_argument("--unseen", type=Path, help="JSON file of further starts, listed apart")
    parser.add_argument("--ran", type=Path, help="JSON file of published speeds, whose starts ran")
    parser.add_argument("--write", type=Path, help="page to replace; otherwise it is printed")
    options = parser.parse_args(arguments)
    explanations = read_explanations(options.explanations)
    later = [] if options.unseen is None else _read(options.unseen)
    unseen = grade(later) if later else None
    setting, graded = split(_read(options.cases))
    page = render(
        grade(graded),
        explanations,
        calibration=grade(setting),
        unseen=unseen,
        left_out=LeftOutPart(
            leave_one_out(setting), graphs_left_out(setting), band_left_out(setting)
        ),
        peer=later,
        ran=None if options.ran is None else grade(ran_starts(_figures(options.ran))),
        by_half=None if unseen is None else _grades_of(split(later)),
    )
    print_or_write(page, options.write)
    return 0


def _grades_of(
    halves: tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]],
) -> tuple[Grades, Grades]:
    setting, held = halves
    return grade(setting), grade(held)


def write_grades(
    program: str,
    title: str,
    render: Callable[[list[dict[str, Any]], Mapping[str, str]], str],
    arguments: Sequence[str] | None,
) -> int:
    """Grade a file of starts of one engine; print its page or write it.

    Args:
        program: module below `scripts`.
        title: of the engine.
        render: makes the page of starts and explanations.
        arguments: of the command line.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m scripts.{program}", description=f"Grade plans for {title}."
    )
    parser.add_argument("--cases", type=Path, required=True, help="JSON file of starts")
    parser.add_argument("--explanations", type=Path, help="JSON object: case to explanation")
    parser.add_argument(
        "--write", type=Path, help="page to replace; without it the page is printed"
    )
    options = parser.parse_args(arguments)
    cases = parse_cases(options.cases.read_text(encoding="utf-8"), str(options.cases))
    print_or_write(render(cases, read_explanations(options.explanations)), options.write)
    return 0


def read_explanations(path: Path | None) -> dict[str, str]:
    """Return the explanations of a file, by case; without a file none."""
    return {} if path is None else dict(json.loads(path.read_text(encoding="utf-8")))


def print_or_write(page: str, path: Path | None) -> None:
    """Replace a page, or print it where there is no path."""
    if path is None:
        print(page)
    else:
        path.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
