"""`plan accuracy`: what was predicted for real starts, held against what they measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.text_files import read_text_file
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ExoError, NotFound, UsageError

if TYPE_CHECKING:
    from exo_inference.planner.accuracy.grading import Grades
    from exo_inference.wire import PlanStart


@command(
    "accuracy",
    examples=[
        Example("Grade the starts of this control plane", "exo ai plan accuracy"),
        Example("Grade starts that others collected", "exo ai plan accuracy --cases cases.json"),
        Example(
            "Find the largest error in a script",
            "exo ai plan accuracy -O json | jq '[.quantities[].worst] | max'",
        ),
        Example("Save the starts for others", "exo ai plan accuracy --export starts.json"),
    ],
)
@click.option(
    "--cases",
    metavar="<file>",
    type=click.Path(path_type=Path),
    help="JSON file of starts to grade instead, without a control plane.",
)
@click.option(
    "--include-unstated",
    is_flag=True,
    help="With --cases: grade what a case leaves unstated as if defaults held.",
)
@click.option(
    "--export",
    metavar="<file>",
    type=click.Path(path_type=Path),
    help="Write the control plane's starts as such a file; one of that name is replaced.",
)
@pass_session
def accuracy(
    session: Session, cases: Path | None, include_unstated: bool, export: Path | None
) -> None:
    """Grade plans by real starts.

    For each quantity: how many starts, the mean, median, 95th percentile and worst error, the bias,
    the limit, and every start beyond it. The control plane records each start of a replica whose
    engine measures it, such as exo-engine; starts on simulated GPUs are not recorded. Sizes are those
    of one GPU. With --cases today's planner predicts anew, for the models of the bundled catalogue.
    """
    if cases is None and include_unstated:
        raise UsageError("--include-unstated is about the cases of --cases")
    if cases is not None and export is not None:
        raise UsageError("--export writes the control plane's starts, and --cases names others")
    from exo_inference.cli.plan.grades import QUANTITY, print_grades
    from exo_inference.preflight.starts import grade_starts

    output = session.output(QUANTITY.field_names, configured=cases is None)
    if cases is not None:
        print_grades(output, _grade_file(cases, include_unstated), "starts in the file")
        return
    starts = _read_starts(session)
    if export is not None:
        _export(session, starts, export)
        return
    if not starts:
        session.remark(
            "No starts are recorded yet: a start is recorded when a replica of exo-engine "
            "becomes ready on a GPU or CPU that is not simulated."
        )
    print_grades(output, grade_starts(starts), "recorded starts")


def _read_starts(session: Session) -> list[PlanStart]:
    try:
        with session.connect() as client:
            return client.plan_starts()
    except NotFound as exc:
        raise ExoError(
            f"{session.settings.endpoint} records no starts",
            hint="Use a control plane of exo-inference, or grade a file with --cases.",
        ) from exc


def _grade_file(path: Path, include_unstated: bool) -> Grades:
    from exo_inference.planner.accuracy.cases import parse_cases
    from exo_inference.planner.accuracy.grading import grade

    text = read_text_file("--cases", path, max_mib=64)
    return grade(parse_cases(text, str(path)), includes_unstated=include_unstated)


def _export(session: Session, starts: list[PlanStart], path: Path) -> None:
    from exo_inference.preflight.starts import to_case
    from exo_inference.state_dir import write_atomically

    document = {"cases": [to_case(start) for start in starts]}
    try:
        write_atomically(path, json.dumps(document, indent=1) + "\n", mode=0o644)
    except OSError as exc:
        raise ExoError(f"cannot write {path}: {exc.strerror or exc}") from exc
    session.success(f"{len(starts)} starts written to {path}")
