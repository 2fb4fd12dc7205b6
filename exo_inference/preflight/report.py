"""A judgement in the form that users read: `wire.DeploymentPlan`. Pure.

The names of its fields are public and documented in docs/reference/plan.md.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from exo_inference.engines.flags.problems import ParameterProblem
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner import Advice, Gpu, Improvement, Plan, Problem, Speed
from exo_inference.planner.problem import OF_PROCESSOR
from exo_inference.planner.written_flags import WrittenFlag
from exo_inference.preflight.flags import written_flags
from exo_inference.wire import (
    MEMORY_CODES,
    BatchSpeed,
    DeploymentPlan,
    PlanAdvice,
    PlanComponent,
    PlanImprovement,
    PlanProblem,
    PlanSpeed,
    PlanStage,
    PlanVerdict,
    PromptSpeed,
)

if TYPE_CHECKING:
    from exo_inference.preflight.judgement import Judgement, Subject

FLAGS_FIELD = "inference-engine-parameters"
_GPU_TYPE = "--gpu-type="
_FLAGS = {
    "tensor-parallel": ("tensor-parallel-size",),
    "pipeline-parallel": ("pipeline-parallel-size",),
    "parallel-size": ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"),
    "max-model-len": ("max-model-len", "context-length"),
    "draft-model": ("speculative-config", "spec-model"),
}
"""Names of flags that problems of the planner are about, where they are not called after one flag."""

_PARAMS = "--inference-engine-params"


def to_wire(judgement: Judgement) -> DeploymentPlan:
    """Return the judgement with its plan, problems and advice."""
    subject = judgement.subject
    reading = judgement.reading
    problems = [_flag_problem(each, reading) for each in judgement.flag_problems]
    flags = written_flags(reading)
    problems += [_plan_problem(each, flags) for each in judgement.plan_problems]
    head: dict[str, object] = {
        "verdict": PlanVerdict(judgement.verdict.value),
        "problems": problems,
        "advice": [_advice(each, subject) for each in judgement.advice],
        "improvements": [_improvement(each) for each in judgement.improvements],
    }
    taken = [subject.gpu.note] if subject.gpu is not None and subject.gpu.note else []
    if judgement.plan is None:
        bare = _bare(subject)
        return bare.model_copy(update={**head, "notes": [*taken, *judgement.notes]})
    if judgement.flag_problems:
        head["safe_max_model_len"] = 0  # of no length can it be said that it starts
    found = _plan(judgement.plan, _gpu_type(subject.gpu))
    return found.model_copy(update={**head, "notes": [*taken, *found.notes]})


def locate(problem: ParameterProblem, reading: Reading) -> str:
    """Return the JSON path of what a problem is about: a flag, or the GPUs where no flag says it."""
    written = ((use.index, use.spelling) for use in reading.uses)
    if problem.reason != "model" or (problem.index, problem.flag) in written:
        return f"$['{FLAGS_FIELD}'][{problem.index}]"
    return "$['gpu-count']" if "parallel" in problem.flag else "$['gpu-type']"


def locate_code(code: str, flags: Sequence[WrittenFlag]) -> str | None:
    """Return the JSON path of what a problem of the planner is about; None for missing memory."""
    if code in MEMORY_CODES:
        return None
    if code == OF_PROCESSOR:
        return "$['gpu-type']"
    names = [flag.name for flag in flags]
    for name in _FLAGS.get(code, (code,)):
        if name in names:
            index = sum(len(flag.items) for flag in flags[: names.index(name)])
            return f"$['{FLAGS_FIELD}'][{index}]"
    return "$['gpu-count']" if "parallel" in code or "gpu" in code else "$['model']"


def describe_advice(advice: PlanAdvice) -> str:
    """Return a way out on one line: what to paste after `deployment create`, and what it costs.

    The engine's flags are all those of the deployment, because the option replaces them.
    """
    pasted = list(advice.options)
    if advice.flags:
        flags = advice.plan.parameters if advice.plan is not None else advice.flags
        text = shlex.join(flags)
        # One flag alone needs no quotes, and reads better with them.
        pasted.append(f"{_PARAMS}=" + (shlex.quote(text) if "'" in text else f"'{text}'"))
    return f"{' '.join(pasted)}: {advice.effect}"


def _bare(subject: Subject) -> DeploymentPlan:
    return DeploymentPlan(
        verdict=PlanVerdict.UNKNOWN,
        model=subject.model.name if subject.model is not None else "",
        gpu=subject.gpu.name if subject.gpu is not None else "",
        gpu_type=_gpu_type(subject.gpu),
        gpu_count=subject.gpu_count,
        engine=subject.engine,
        engine_version=subject.version,
        parameters=list(subject.flags),
    )


def _plan(plan: Plan, gpu_type: str) -> DeploymentPlan:
    same = (
        "total_bytes_per_gpu", "budget_bytes_per_gpu", "weights_bytes_per_gpu",
        "available_kv_bytes_per_gpu", "available_kv_bytes_low", "available_kv_bytes_high",
        "needed_kv_bytes_per_gpu", "kv_bytes_per_token", "kv_block_size", "num_kv_blocks",
        "kv_capacity_tokens", "max_concurrency", "max_model_len", "largest_max_model_len", "safe_max_model_len",
        "max_num_seqs", "max_num_batched_tokens", "usd_per_hour",
    )  # fmt: skip
    flags = plan.parameters.flags
    return DeploymentPlan(
        verdict=PlanVerdict(plan.verdict.value),
        model=plan.model,
        gpu=plan.gpu,
        gpu_type=gpu_type,
        gpu_count=plan.gpu_count,
        engine=plan.parameters.engine,
        engine_version=plan.parameters.engine_version,
        parameters=plan.parameters.format(),
        problems=[_plan_problem(each, flags) for each in plan.problems],
        tensor_parallel_size=plan.ranks.tensor,
        pipeline_parallel_size=plan.ranks.pipeline,
        data_parallel_size=plan.ranks.data,
        components=[
            PlanComponent(
                name=each.name, num_bytes=each.num_bytes, low=each.low, high=each.high,
                in_budget=each.is_in_budget, source=each.source,
            )
            for each in plan.components
        ],
        stages=[PlanStage(**asdict(each)) for each in plan.stages],
        speed=_speed(plan.speed),
        notes=list(plan.notes),
        **{name: getattr(plan, name) for name in same},
    )  # fmt: skip


def _speed(speed: Speed | None) -> PlanSpeed | None:
    if speed is None:
        return None
    return PlanSpeed(
        prompts=[PromptSpeed(**asdict(each)) for each in speed.prompts],
        batches=[BatchSpeed(**asdict(each)) for each in speed.batches],
        number_type=speed.number_type,
        source=speed.source,
    )


def _advice(advice: Advice, subject: Subject) -> PlanAdvice:
    other = next((option for option in advice.options if option.startswith(_GPU_TYPE)), None)
    gpu_type = other.removeprefix(_GPU_TYPE) if other else _gpu_type(subject.gpu)
    return PlanAdvice(
        kinds=list(advice.kinds),
        flags=list(advice.flags),
        options=list(advice.options),
        effect=advice.effect,
        quality=advice.quality,
        usd_per_hour_change=advice.usd_per_hour_change,
        max_concurrency_change=advice.max_concurrency_change,
        inter_token_seconds_change=advice.inter_token_seconds_change,
        plan=_plan(advice.plan, gpu_type),
    )


def _improvement(improvement: Improvement) -> PlanImprovement:
    return PlanImprovement(
        kind=improvement.kind,
        text=improvement.text,
        flags=list(improvement.flags),
        options=list(improvement.options),
        parameters=improvement.plan.parameters.format() if improvement.plan is not None else [],
    )


def _flag_problem(problem: ParameterProblem, reading: Reading) -> PlanProblem:
    return PlanProblem(
        code=problem.reason or "flag",
        detail=problem.detail,
        flag=problem.flag or None,
        location=locate(problem, reading),
    )


def _plan_problem(problem: Problem, flags: Sequence[WrittenFlag]) -> PlanProblem:
    return PlanProblem(
        code=problem.code,
        detail=problem.detail,
        refuses=problem.refuses,
        location=locate_code(problem.code, flags),
    )


def _gpu_type(gpu: Gpu | None) -> str:
    return "" if gpu is None else gpu.family or gpu.key
