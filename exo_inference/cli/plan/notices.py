"""What `create`, `update` and `apply` say about the plan of what they change.

The control plane plans and sends the plan with its answer; for one that does not, such as
Exoscale's cloud, this process plans what the bundled catalogue knows, and only warns. One line on
stderr; a dry run shows the whole plan, and a refusal where the memory goes and what to paste.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from exo_inference.cli.plan import words
from exo_inference.cli.rendering.results import Answer, conclude
from exo_inference.errors import ApiError, UsageError
from exo_inference.wire import DeploymentPlan, PlanProblem, PlanVerdict

if TYPE_CHECKING:
    from exo_inference.cli.plan.command_line import CommandLine
    from exo_inference.cli.rendering.output import Output
    from exo_inference.cli.rendering.views import View
    from exo_inference.cli.session import Session
    from exo_inference.resources.wanted import WantedDeployment


_OF_THE_MACHINE = ("room", "cores")
"""Codes of what is wrong with the number of replicas, not with one of them."""


def tell(session: Session, plan: DeploymentPlan, subject: str = "") -> None:
    """Say a plan in one line on stderr; what does not fit is a warning.

    Args:
        session: the flags.
        plan: what to say.
        subject: what it is about, where several are told.
    """
    if plan.verdict != PlanVerdict.UNKNOWN:
        warning = "" if plan.verdict == PlanVerdict.FITS else "warning: "
        before = f"{subject}: " if subject else ""
        session.remark(f"{warning}{before}{words.summary(plan)}")
    warn(session, of_the_machine(plan), subject)


def of_the_machine(plan: DeploymentPlan) -> list[PlanProblem]:
    """Return what is to be said of the number of replicas, not of one of them."""
    return [problem for problem in plan.problems if problem.code in _OF_THE_MACHINE]


def warn(session: Session, warnings: Sequence[PlanProblem], subject: str = "") -> None:
    """Say on stderr what the machine lacks for all replicas, one line each.

    Args:
        session: the flags.
        warnings: of a plan, or of the operation of a scale.
        subject: what they are about, where several are told.
    """
    before = f"{subject}: " if subject else ""
    for problem in warnings:
        session.remark(f"warning: {before}{problem.detail}")


def output_of(session: Session, view: View[Any], *, dry_run: bool) -> Output:
    """Return how to print what a change results in; a template is checked against that.

    Args:
        session: the flags.
        view: the object that results.
        dry_run: the plan results instead.
    """
    from exo_inference.cli.plan.fields import PLAN

    return session.output((PLAN if dry_run else view).field_names)


def conclude_dry_run(
    session: Session,
    outcome: Answer,
    plan: DeploymentPlan | None,
    line_of: Callable[[DeploymentPlan], CommandLine],
    replicas: int,
) -> None:
    """Say what would have happened, and print the whole plan in the form wanted.

    Args:
        session: the flags.
        outcome: what would have happened; programs get it where there is no plan.
        plan: None where nobody could plan.
        line_of: the command that asks for a plan's deployment.
        replicas: how many of them.
    """
    from exo_inference.cli.plan.command import print_plan
    from exo_inference.cli.plan.fields import PLAN

    sentence = f"Deployment {outcome.state} (dry run)."
    if plan is None:
        session.success(sentence)
        conclude(session.output(PLAN.field_names), outcome)
        return

    print_plan(session.output(PLAN.field_names), plan, line_of(plan), replicas)
    if plan.verdict != PlanVerdict.FITS:
        tell(session, plan)
    session.remark(sentence)  # stdout is the plan's


@contextmanager
def explaining(
    session: Session, line_of: Callable[[DeploymentPlan], CommandLine], *, dry_run: bool
) -> Iterator[None]:
    """Add to a refusal where the memory goes and what to paste instead.

    A dry run whose output is for programs prints the plan, as one that fits does.

    Args:
        session: the flags.
        line_of: the command that asks for a plan's deployment.
        dry_run: the plan was what was asked for.
    """
    try:
        yield
    except ApiError as error:
        if error.plan is not None:
            from exo_inference.cli.plan.command import print_plan
            from exo_inference.cli.plan.fields import PLAN

            line, output = line_of(error.plan), session.output(PLAN.field_names)
            if dry_run and (output.format != "table" or output.template is not None):
                print_plan(output, error.plan, line, replicas=1)
            elif output.format != "json":  # there the error has the plan itself
                _explain(error, error.plan, line)
        raise


def _explain(error: ApiError, plan: DeploymentPlan, line: CommandLine) -> None:
    from exo_inference.cli.plan.report import page_width, refusal_text

    text = refusal_text(plan, line, page_width())
    if not text:
        return
    # The server lists its ways out, as those problems that no field has; ours can be pasted.
    error.problems = tuple(problem for problem in error.problems if problem[0])
    error.hint = "\n".join(part for part in (error.hint, "", text) if part is not None)


def plan_here(wanted: WantedDeployment) -> DeploymentPlan | None:
    """Plan what the control plane did not; None where model, GPU or release are not known here."""
    from exo_inference.cli.plan.planners import LocalPlanner
    from exo_inference.planner import find_model
    from exo_inference.planner.gpu_catalog import find_family

    name, gpu_type = wanted.model and wanted.model.name, wanted.gpu_type
    if name is None or gpu_type is None or find_family(gpu_type) is None:
        return None
    try:
        found = LocalPlanner(find_model(name), wanted, plans_unlisted=False)
        return found.plan(gpu_type, wanted.gpu_count or 1, with_advice=False)
    except UsageError:
        return None
