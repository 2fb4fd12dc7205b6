"""Runs `deployment plan`: ask, print in the form wanted, and tell the verdict by the exit code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.text import Text

from exo_inference.cli.errors.output import print_refusal
from exo_inference.cli.plan import words
from exo_inference.cli.plan.command_line import CommandLine, name_for
from exo_inference.cli.plan.comparison import compare, table
from exo_inference.cli.plan.demand import Answer, Demand, answers, is_too_long, parse_demand
from exo_inference.cli.plan.demand import as_json as demand_json
from exo_inference.cli.plan.demand import line as demand_line
from exo_inference.cli.plan.demand import table as demand_table
from exo_inference.cli.plan.fields import PLAN, as_json
from exo_inference.cli.plan.options import PlanOptions
from exo_inference.cli.plan.planners import (
    CPU,
    LocalPlanner,
    Planner,
    RemotePlanner,
    find_planner,
    measure_processor,
    read_gpu_file,
)
from exo_inference.cli.plan.report import page_width, print_page, report
from exo_inference.cli.plan.times import LEAST_LENGTH
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.engine_names import GPU_ENGINE, facts_of
from exo_inference.engines.registry import can_name
from exo_inference.errors import UsageError
from exo_inference.planner import Step
from exo_inference.preflight import is_written
from exo_inference.wire import DeploymentPlan, ModelRef, PlanVerdict

if TYPE_CHECKING:
    from exo_inference.cli.rendering.output import Output
    from exo_inference.cli.session import Session

REFUSED = 1
"""Exit code when it does not fit or nobody can say; why has been printed."""

_RUNS = (PlanVerdict.FITS, PlanVerdict.TIGHT)


def run(session: Session, options: PlanOptions) -> int:
    """Plan, print the plan or the comparison, and return the exit code."""
    output = session.output(PLAN.field_names, configured=False)
    if options.demand is not None:
        return _run_demand(session, output, options, parse_demand(options.demand))
    planner, wanted = _measured_planner(session, options), options.wanted
    if options.compare is not None:
        extra = read_gpu_file(options.gpu_file) if options.gpu_file is not None else {}
        plans = compare(planner, options, extra)
        _print_comparison(output, plans, wanted.replicas or 1)
        return 0 if any(plan.verdict in _RUNS for plan in plans) else _refuse(output, plans)
    assert wanted.gpu_type is not None, "the command checks it"
    count = wanted.gpu_count or 1
    plan = planner.plan(wanted.gpu_type, count, with_advice=True)
    steps = planner.steps(wanted.gpu_type, count) if options.explain else None
    if _lacks_type(options, plan) and "gguf" in plan.model.lower():  # of others the verdict says it
        plan = plan.model_copy(update={"notes": [*plan.notes, words.gguf_note(plan)]})
    line = command_line(session, options, plan)
    print_plan(output, plan, line, wanted.replicas or 1, steps)
    if plan.verdict == PlanVerdict.TIGHT:
        session.remark(f"warning: {words.tight_warning(plan)}")
    return 0 if plan.verdict in _RUNS else _refuse(output, [plan])


def _measured_planner(session: Session, options: PlanOptions) -> Planner:
    planner = find_planner(session, options)
    if options.measure:
        measure_processor(session, planner)
    return planner


def _refuse(output: Output, plans: Sequence[DeploymentPlan]) -> int:
    """Return the exit code of what holds on no GPU; that nothing could be planned is an error for programs.

    What does not fit, or is too slow, is an answer: it stands on stdout with the ways out.
    """
    if not any(plan.verdict in _RUNS or words.only_lacks_memory(plan) for plan in plans):
        causes = (words.refusals(plan) or words.reasons(plan) for plan in plans)
        every = dict.fromkeys(cause for several in causes for cause in several)
        print_refusal(output, "; ".join(every) or words.headline(plans[0]))
    return REFUSED


def _run_demand(session: Session, output: Output, options: PlanOptions, demand: Demand) -> int:
    """Plan on all GPUs for requests of the demand's length, and print what holds it."""
    facts = facts_of(options.wanted.engine or GPU_ENGINE)
    if not facts.takes_vllm_flags:
        raise UsageError(
            f"{facts.title}'s speed is not estimated, so that nobody can say what holds that many requests",
            hint="Leave --for out to see whether it fits; with vllm, --for answers.",
        )
    planner = _planner_of_length(session, options, demand.length, LEAST_LENGTH)
    extra = read_gpu_file(options.gpu_file) if options.gpu_file is not None else {}
    plans = compare(planner, options, extra, every_count=True)
    if is_too_long(plans):
        again = replace(options, measure=False)
        planner = _planner_of_length(session, again, demand.num_tokens)
        plans = compare(planner, options, extra, every_count=True)
    found = answers(plans, demand, planner.times)
    if output.is_structured:
        output.print_value([demand_json(each) for each in found])
    else:
        lines = demand_table(found, plans, demand)
        pasted = [_line_of(session, options, planner, each) for each in found[:1]]
        print_page([*lines, *(row for line in pasted for row in demand_line(line, page_width()))])
    return 0 if found else _refuse(output, plans)


def _line_of(
    session: Session, options: PlanOptions, planner: Planner, found: Answer
) -> CommandLine:
    """Return the command that asks for the deployment of an answer, with the flags that it was planned with."""
    plan = found.plan
    wanted = replace(
        planner.wanted, gpu_type=plan.gpu_type, gpu_count=plan.gpu_count, replicas=found.replicas
    )
    return command_line(session, replace(options, wanted=wanted), plan)


def _planner_of_length(
    session: Session, options: PlanOptions, length: int, least: int = 0
) -> Planner:
    """Return who plans requests of that length, unless the flags say another.

    Args:
        session: the command's.
        options: what was asked.
        length: tokens of a request.
        least: of a control plane, whose table of speeds is all that is known of its plans.

    Raises:
        UsageError: the model generates nothing.
    """
    planner = _measured_planner(session, _with_length(options, length))
    if isinstance(planner, RemotePlanner):
        wanted = _with_length(options, max(length, least)).wanted
        return RemotePlanner(session, wanted)
    if isinstance(planner, LocalPlanner) and not planner.model.writes:
        raise UsageError(
            f"--for asks what generates texts; {planner.model.name} embeds or scores them",
            hint="Leave --for out to see whether it fits, and how long a text takes.",
        )
    return planner


def _with_length(options: PlanOptions, length: int) -> PlanOptions:
    wanted = options.wanted
    flags = wanted.engine_parameters or ()
    if not is_written("max-model-len", flags, wanted.engine or GPU_ENGINE, wanted.engine_version):
        flags = (*flags, f"--max-model-len={length}")
    return replace(options, wanted=replace(wanted, engine_parameters=flags))


def print_plan(
    output: Output,
    plan: DeploymentPlan,
    line: CommandLine,
    replicas: int,
    steps: Sequence[Step] | None = None,
) -> None:
    """Print a plan on stdout.

    Args:
        output: the form wanted.
        plan: of one replica.
        line: what was asked for.
        replicas: how many of them.
        steps: the arithmetic, where it was asked for.
    """
    plan = words.with_replicas(plan, replicas)
    if output.is_structured:
        output.print_value(as_json(plan, steps))
    elif output.template is not None or output.format == "text":
        output.show(PLAN.record(plan))
    else:
        width = page_width()
        lines = report(plan, line, replicas, width)
        device = "CPU" if plan.gpu_type == CPU else "GPU"
        print_page([*lines, *_arithmetic(steps, device, width)] if steps else lines)


def _print_comparison(output: Output, plans: Sequence[DeploymentPlan], replicas: int) -> None:
    if output.is_structured:
        output.print_value([as_json(plan) for plan in plans])
    elif output.template is not None or output.format == "text":
        output.show_list([PLAN.record(plan) for plan in plans], PLAN.headers)
    else:
        print_page(table(plans, replicas, page_width()))


def command_line(session: Session, options: PlanOptions, plan: DeploymentPlan) -> CommandLine:
    """Return the command that asks for this plan's deployment; a plan again for a model on disk."""
    wanted, model = options.wanted, options.wanted.model or ModelRef()
    chosen = {
        # The whole name, also where the part after the organisation was enough to find it.
        "--model-name": model.name and (plan.model or model.name),
        "--model-id": model.id,
        "--model": str(options.model_path) if options.model_path is not None else None,
        "--gpu-type": wanted.gpu_type,
        "--gpu-count": str(wanted.gpu_count or 1),
        "--replicas": str(wanted.replicas) if (wanted.replicas or 1) != 1 else None,
        "--inference-engine": wanted.engine,
        "--inference-engine-version": wanted.engine_version,
    }
    is_known = options.model_path is None and options.gpu_file is None
    version = wanted.engine_version
    can_create = is_known and (version is None or can_name(wanted.engine, version))
    can_create = can_create and not _lacks_type(options, plan)
    if not is_known:
        chosen["--gpu-file"] = str(options.gpu_file) if options.gpu_file is not None else None
    return CommandLine(
        verb="create" if can_create else "plan",
        name=wanted.name or (name_for(plan.model) if can_create else ""),
        options=tuple((name, value) for name, value in chosen.items() if value is not None),
        flags=wanted.engine_parameters or (),
        version=plan.engine_version,
        engine=plan.engine or GPU_ENGINE,
        globals=session.flags.to_paste,
    )


def _lacks_type(options: PlanOptions, plan: DeploymentPlan) -> bool:
    """Whether a deployment's engine loads a GGUF file, and the model's name does not say which: none can be created of it."""
    name = options.wanted.model.name if options.wanted.model is not None else None
    return facts_of(plan.engine).loads_gguf and name is not None and ":" not in name


def _arithmetic(steps: Sequence[Step], device: str, width: int) -> Iterator[Text]:
    """Yield the steps: what, how, and from where."""
    yield Text()
    yield Text(f"How these figures come about, for one {device}", "bold")
    for step in steps:
        yield Text(harmless(f"  {step.title}: {step.result}"))
        for text, style in ((step.formula, ""), (step.source and f"[{step.source}]", "dim")):
            for row in textwrap.wrap(harmless(text), width - 6, break_long_words=False):
                yield Text(f"      {row}", style)
