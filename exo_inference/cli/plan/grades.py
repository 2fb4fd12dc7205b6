"""Grades for people and for programs: the table, every start beyond a limit, what was not graded.

The names of the JSON form are public; docs/how-to/grade-the-planner.md lists them.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from exo_inference.cli.plan.report import align, page_width, print_page
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.cli.rendering.views import Column, View
from exo_inference.planner.accuracy.grading import (
    FIT_LIMIT,
    LIMITS,
    FitGraded,
    Graded,
    Grades,
    Summary,
    miss_limit,
    summarise,
)

if TYPE_CHECKING:
    from exo_inference.cli.rendering.output import Output


def _share(value: float) -> str:
    return f"{value:.6g}"


QUANTITY: View[Summary] = View(
    (
        Column("quantity", "Quantity", "Quantity", lambda row: row.quantity),
        Column("count", "Count", "Count", lambda row: row.count),
        Column("mean", "Mean", "Mean", lambda row: _share(row.mean)),
        Column("median", "Median", "Median", lambda row: _share(row.median)),
        Column("p95", "P95", "P95", lambda row: _share(row.p95)),
        Column("worst", "Worst", "Worst", lambda row: _share(row.worst)),
        Column("bias", "Bias", "Bias", lambda row: _share(row.bias)),
    )
)
"""Errors as shares (0.05 is 5 %): for `-O text` and `--output-template`."""


def print_grades(output: Output, grades: Grades, what: str) -> None:
    """Print grades on stdout.

    Args:
        output: the form wanted.
        grades: of all starts.
        what: the starts are, for people.
    """
    if output.is_structured:
        output.print_value(as_json(grades))
    elif output.template is not None or output.format == "text":
        output.show_list([QUANTITY.record(row) for row in _summaries(grades)], QUANTITY.headers)
    else:
        print_page(list(_report(grades, what, page_width())))


def as_json(grades: Grades) -> dict[str, Any]:
    """Return everything about the grades; errors and limits as shares, sizes in GiB."""
    return {
        "num_cases": grades.num_cases,
        "quantities": [_quantity(row) for row in _summaries(grades)],
        "fit": {
            "count": len(grades.fits),
            "right": sum(each.is_right for each in grades.fits),
            "limit": FIT_LIMIT,
            "wrong": [
                {"case": each.case, "predicted": each.predicted, "outcome": each.observed}
                for each in _wrong(grades)
            ],
        },
        "beyond": [_graded(each) for each in _beyond(grades)],
        "graded": [_graded(each) for each in grades.graded],
        "not_graded": [
            {"case": case, "quantity": quantity, "reason": reason}
            for case, quantity, reason in grades.not_graded
        ],
    }


def _quantity(row: Summary) -> dict[str, Any]:
    mean, most = LIMITS[row.quantity]
    return {**asdict(row), "limit_mean": mean, "limit_p95": most, "is_met": _is_met(row)}


def _graded(each: Graded) -> dict[str, Any]:
    return {
        "case": each.case,
        "quantity": each.quantity,
        "predicted": each.predicted,
        "measured": each.observed,
        "error": each.error,
    }


def _summaries(grades: Grades) -> list[Summary]:
    rows = (summarise(quantity, grades.of(quantity)) for quantity in LIMITS)
    return [row for row in rows if row is not None]


def _is_met(row: Summary) -> bool | None:
    """Whether a quantity is within its limits; None where it has none."""
    mean, most = LIMITS[row.quantity]
    if mean is None and most is None:
        return None
    return (mean is None or row.mean <= mean) and (most is None or row.p95 <= most)


def _beyond(grades: Grades) -> list[Graded]:
    missed = [each for each in grades.graded if abs(each.error) > miss_limit(each.quantity)]
    order = list(LIMITS)
    return sorted(missed, key=lambda each: (order.index(each.quantity), -abs(each.error)))


def _wrong(grades: Grades) -> list[FitGraded]:
    return [each for each in grades.fits if not each.is_right]


def _report(grades: Grades, what: str, width: int) -> Iterator[Text]:
    yield Text(f"{grades.num_cases:,} {what}", "bold")
    rows = _summaries(grades)
    if rows:
        yield Text()
        yield Text("Errors in %; limits of the mean and of the 95th percentile", "bold")
        heads = ("quantity", "starts", "mean", "median", "95th", "worst", "bias", "limits")
        yield from align(heads, [_cells(row) for row in rows], left=1)
    if grades.fits:
        yield from _fit_lines(grades)
    for quantity in LIMITS:
        missed = [each for each in _beyond(grades) if each.quantity == quantity]
        if missed:
            yield from _beyond_lines(quantity, missed)
    yield from _not_graded_lines(grades, width)


def _cells(row: Summary) -> Sequence[str]:
    limits = " / ".join(
        "-" if each is None else f"{100 * each:.0f}" for each in LIMITS[row.quantity]
    )
    missed = " missed" if _is_met(row) is False else ""
    errors = (f"{100 * error:.2f}" for error in (row.mean, row.median, row.p95, row.worst))
    return (row.quantity, str(row.count), *errors, f"{100 * row.bias:+.2f}", limits + missed)


def _fit_lines(grades: Grades) -> Iterator[Text]:
    wrong, count = _wrong(grades), len(grades.fits)
    share = (count - len(wrong)) / count
    missed = "" if share >= FIT_LIMIT else ": missed"
    right = f"right in {count - len(wrong)} of {count}, {100 * share:.1f} %"
    yield Text()
    yield Text(f"Fit or not: {right}; limit {100 * FIT_LIMIT:.0f} %{missed}")
    for each in wrong:
        note = f" ({each.note})" if each.note else ""
        yield Text(
            harmless(f"  {each.case}: predicted {each.predicted}{note}, was {each.observed}")
        )


def _beyond_lines(quantity: str, missed: Sequence[Graded]) -> Iterator[Text]:
    yield Text()
    yield Text(f"Beyond {100 * miss_limit(quantity):.0f} %: {quantity}", "bold")
    rows = [
        (
            each.case,
            _figure(quantity, each.predicted),
            _figure(quantity, each.observed),
            f"{100 * each.error:+.1f} %",
        )
        for each in missed
    ]
    yield from align(("start", "predicted", "measured", "error"), rows, left=1)


def _figure(quantity: str, value: float) -> str:
    if "tokens" in quantity:
        return f"{value:,.0f}"
    return f"{value:,.2f} GiB" if abs(value) >= 1 else f"{1024 * value:,.2f} MiB"


def _not_graded_lines(grades: Grades, width: int) -> Iterator[Text]:
    """Yield each reason once, with the starts that it is about."""
    reasons: dict[str, list[str]] = {}
    for case, quantity, reason in grades.not_graded:
        reasons.setdefault(f"{quantity}: {reason}", []).append(case)
    if reasons:
        yield Text()
        yield Text("Not graded", "bold")
    for reason, cases in reasons.items():
        for indent, text in (("  ", reason), ("    ", ", ".join(cases))):
            rows = textwrap.wrap(harmless(text), width - len(indent), break_on_hyphens=False)
            yield from (Text(f"{indent}{row}") for row in rows)
