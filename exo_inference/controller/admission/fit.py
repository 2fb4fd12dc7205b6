"""Whether flags, model and memory go together: what admission asks once the shape is right. Pure.

`judge_fit` turns one judgement of `preflight` into issues, ways out, the plan of the answer and the
event that is recorded. Memory refuses with 412 and can be forced; flags refuse with 400 and cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from exo_inference.controller.admission.architectures import KnownModel
from exo_inference.controller.admission.host_room import ReservationRequest
from exo_inference.controller.admission.problems import Issue
from exo_inference.controller.admission.world import find_family
from exo_inference.controller.stores.base import NewEvent
from exo_inference.engine_names import facts_of
from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.problem import OF_PROCESSOR, Problem
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.platforms.replica_memory import ReplicaNeed
from exo_inference.preflight import (
    Judgement,
    Subject,
    describe_advice,
    judge,
    locate,
    locate_code,
    read_draft_name,
    read_flags,
    to_wire,
    written_flags,
)
from exo_inference.resources import DeploymentSpec
from exo_inference.wire import MEMORY_CODES, DeploymentPlan, PlanAdvice, PlanProblem, PlanVerdict

MAX_GPUS = 1024
"""GPUs of one replica that are planned; more is a typing error."""

_MAX_WAYS_OUT = 6
_NOT_OF_FLAGS = frozenset({"engine", "quantization", "unknown-model"})
"""Codes of the planner's problems that no flag of the user mends; the others refuse as flags do."""

_SIZES = frozenset({"tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"})
"""Flags of vLLM that share the model out over GPUs."""

_GIB = 2**30
_UNKNOWN = KnownModel()


@dataclass(frozen=True, slots=True)
class Fit:
    """What was found.

    Attributes:
        issues: what refuses it.
        ways_out: lines that say what would fit; only where memory refuses it.
        plan: for the answer; with advice only where memory refuses it.
        event: what is recorded if it is admitted.
        need: what one replica takes of the machine that all share; None on a cluster.
        is_guess: nothing was planned, so the need is one by the size of the model's files.
        says_step: the issue about memory itself says what to set instead.
    """

    issues: tuple[Issue, ...]
    ways_out: tuple[str, ...]
    plan: DeploymentPlan
    event: NewEvent
    need: ReplicaNeed | None = None
    is_guess: bool = False
    says_step: bool = False


def judge_fit(
    spec: DeploymentSpec,
    families: Sequence[InstanceTypeInfo],
    known: Mapping[str, KnownModel],
    *,
    force: bool,
    is_update: bool = False,
    reservation: ReservationRequest | None = None,
) -> Fit:
    """Judge the flags and the memory of a deployment.

    Args:
        spec: what is to be recorded; its engine is chosen.
        families: what the platform has.
        known: models that were looked up, by name.
        force: admit it although memory refuses it.
        is_update: only flags can still be changed.
        reservation: what it asks of the machine that all replicas share; None on a cluster.
    """
    if spec.gpu_count > MAX_GPUS:  # is left to others to refuse, and flags are judged without it
        spec = spec.model_copy(update={"gpu_type": "", "gpu_count": 1})
    families = families if reservation is None else reservation.families()
    subject = make_subject(spec, families, known)
    judgement = judge(subject, with_advice=False)
    lacks_memory = _lacks_memory(judgement)
    need = None if reservation is None else reservation.need(judgement.plan, spec.gpu_type)
    cache = reservation.cache_bytes(need) if reservation is not None and need is not None else 0
    if cache and not lacks_memory and judgement.plan is not None:
        given = {**subject.given, "kv-cache-memory-bytes": cache}
        judgement = judge(replace(subject, given=given), with_advice=False)
        judgement = replace(judgement, subject=subject)
    if lacks_memory and not force:
        judgement = judge(subject, other_gpus=other_gpus(spec.gpu_type, families))
    plan = complete_plan(judgement, spec.gpu_type, known.get(spec.model, _UNKNOWN))
    if cache:
        plan = plan.model_copy(update={"parameters": list(spec.engine_parameters)})
    reading = judgement.reading
    issues = [_flag_issue(problem, reading) for problem in judgement.flag_problems]
    issues += [
        _plan_issue(problem, spec, reading)
        for problem in judgement.plan_problems
        if problem.refuses and not (force and problem.code in MEMORY_CODES)
    ]
    advice = [each for each in plan.advice if not (is_update and each.options)]
    ways_out = _describe_all(advice) if lacks_memory and not force else ()
    event = _event(plan, is_forced=force and lacks_memory)
    is_guess = reservation is not None and reservation.is_guess(judgement.plan, spec.gpu_type)
    says_step = any(problem.says_step for problem in judgement.plan_problems)
    return Fit(tuple(issues), ways_out, plan, event, need, is_guess, says_step)


def draft_name_of(spec: DeploymentSpec) -> str | None:
    """Return the draft model that the flags name, if they can be read."""
    return read_draft_name(spec.engine_parameters, spec.engine.name or "", spec.engine.version)


def make_subject(
    spec: DeploymentSpec, families: Sequence[InstanceTypeInfo], known: Mapping[str, KnownModel]
) -> Subject:
    """Return what is judged, with what is known about model, draft model and GPU."""
    model = known.get(spec.model, _UNKNOWN)
    draft_name = draft_name_of(spec)
    draft = known.get(draft_name, _UNKNOWN) if draft_name is not None else _UNKNOWN
    family = find_family(spec.gpu_type, families)
    return Subject(
        model=model.architecture,
        gpu=None if family is None else offered_gpu(family),
        gpu_count=spec.gpu_count,
        flags=spec.engine_parameters,
        given=_sizes_over_nodes(spec, family),
        engine=spec.engine.name or "",
        engine_version=spec.engine.version,
        draft=draft.architecture,
        revision_pinned=model.revision_pinned,
    )


def _sizes_over_nodes(spec: DeploymentSpec, family: InstanceTypeInfo | None) -> dict[str, int]:
    """Return how the engine is started where a replica spans nodes, unless the user's flags say it."""
    if not facts_of(spec.engine.name).stages_nodes or family is None or not family.spans_nodes:
        return {}
    on_one, count = family.gpus_of_one_node, spec.gpu_count
    asked = read_flags(spec.engine_parameters, spec.engine.name, spec.engine.version).values
    if count <= on_one or count % on_one or not _SIZES.isdisjoint(asked):
        return {}
    return {"tensor-parallel-size": on_one, "pipeline-parallel-size": count // on_one}


def offered_gpu(family: InstanceTypeInfo) -> Gpu | None:
    """Return the GPU of a family as advice may offer it: by the family's name, up to what a replica can have."""
    if family.gpu is None:
        return None
    count = max(1, min(family.gpu.max_count, family.gpus_of_one_node))
    if family.spans_nodes:
        count = max(1, family.total_gpus)
    return replace(family.gpu, family=family.family, max_count=count)


def other_gpus(gpu_type: str, families: Sequence[InstanceTypeInfo]) -> tuple[Gpu, ...]:
    """Return the GPUs of the platform's other families, which advice may take instead."""
    offered = (offered_gpu(family) for family in families if family.family != gpu_type)
    return tuple(gpu for gpu in offered if gpu is not None and gpu.vendor != "cpu")


def complete_plan(judgement: Judgement, gpu_type: str, model: KnownModel) -> DeploymentPlan:
    """Return the plan in the API's form, with the user's GPU type and why something is not known."""
    plan = to_wire(judgement)
    problems = list(plan.problems)
    if model.reason:
        problems.append(
            PlanProblem(
                code="unknown-model", detail=model.reason, refuses=False, location="$['model']"
            )
        )
    return plan.model_copy(update={"gpu_type": gpu_type, "problems": problems})


def describe_plan(plan: DeploymentPlan) -> str:
    """Return the verdict and the main figures in one line."""
    if plan.verdict == PlanVerdict.UNKNOWN or not plan.total_bytes_per_gpu:
        reasons = [*(problem.detail for problem in plan.problems), *plan.notes]
        return f"memory was not judged: {'; '.join(reasons) or 'nothing is known'}"
    per_gpu = "" if plan.gpu_type == "cpu" else " per GPU"
    return (
        f"{_size(plan.weights_bytes_per_gpu)} of weights and "
        f"{_size(max(0, plan.available_kv_bytes_per_gpu))} of KV cache{per_gpu}: "
        f"{plan.kv_capacity_tokens} tokens, {plan.max_concurrency:.1f} requests of "
        f"{plan.max_model_len} tokens at once"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{num_bytes / 2**20:.0f} MiB"


def _lacks_memory(judgement: Judgement) -> bool:
    return any(each.refuses and each.code in MEMORY_CODES for each in judgement.plan_problems)


def _flag_issue(problem: ParameterProblem, reading: Reading) -> Issue:
    location = locate(problem, reading)
    detail = problem.detail
    if "inference-engine-parameters" not in location:  # the field's name stands before it already
        detail = detail.removeprefix(f"{problem.flag}: ")
    return Issue(detail, location, detail)


def _plan_issue(problem: Problem, spec: DeploymentSpec, reading: Reading) -> Issue:
    if problem.code in MEMORY_CODES:
        text = f"{spec.model} does not fit {spec.gpu_count} x {spec.gpu_type}: {problem.detail}"
        return Issue(text, status=412)
    if problem.code in _NOT_OF_FLAGS:
        return Issue(problem.detail, "$['model']", problem.detail, 412)
    status = 412 if problem.code == OF_PROCESSOR else 400
    location = locate_code(problem.code, written_flags(reading))
    return Issue(problem.detail, location, problem.detail, status)


def _describe_all(advice: Sequence[PlanAdvice]) -> tuple[str, ...]:
    return tuple(describe_advice(each) for each in advice[:_MAX_WAYS_OUT])


def _event(plan: DeploymentPlan, *, is_forced: bool) -> NewEvent:
    figures = describe_plan(plan)
    if is_forced:
        shortage = next(
            (each.detail for each in plan.problems if each.code in MEMORY_CODES), figures
        )
        return NewEvent("Warning", "Planned", f"refused, and admitted by force: {shortage}")
    if plan.verdict == PlanVerdict.FITS:
        return NewEvent("Normal", "Planned", f"fits: {figures}")
    if plan.verdict == PlanVerdict.TIGHT:
        return NewEvent("Warning", "Planned", f"tight, it may not fit: {figures}")
    return NewEvent("Warning", "Planned", f"{plan.verdict.value}: {figures}")
