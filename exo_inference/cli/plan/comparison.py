"""`deployment plan --compare`: one model on many GPUs, the cheapest that fits first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from rich.text import Text

from exo_inference.cli.plan import fields, words
from exo_inference.cli.plan.options import ALL_FAMILIES, PlanOptions
from exo_inference.cli.plan.planners import CPU, Planner
from exo_inference.cli.plan.report import align, wrapped
from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import UsageError
from exo_inference.planner import Gpu, families, find_gpu
from exo_inference.wire import MEMORY_CODES, DeploymentPlan, PlanProblem, PlanVerdict

COUNTS = (1, 2, 4, 8)
_MAX_FITTING = 2
"""Of the counts that fit, the smallest ones that are shown: the next one is faster, more is waste."""

_ORDER = (PlanVerdict.FITS, PlanVerdict.TIGHT, PlanVerdict.REFUSED, PlanVerdict.UNKNOWN)
_RUNS = (PlanVerdict.FITS, PlanVerdict.TIGHT)
_HEADS = (
    "GPUs", "verdict", "longest", "at once", "TTFT", "ITL", "tokens/s", "USD/h", "USD/M", "why",
)  # fmt: skip
_OF_STEPS = frozenset({"ITL", "tokens/s", "USD/M"})
_OF_SPEED = _OF_STEPS | {"TTFT"}
_LENGTHS = "longest: the longest context that fits for sure; at once: requests of full length"
_SPEED_NOTES = (
    f"{_LENGTHS}; TTFT of 1,024",
    "tokens; ITL of one request; tokens/s and USD per million tokens under full load",
)


def compare(
    planner: Planner, options: PlanOptions, extra: Mapping[str, Gpu], *, every_count: bool = False
) -> list[DeploymentPlan]:
    """Plan on every GPU asked for, each in the counts that make sense, and sort the plans.

    Args:
        planner: who plans.
        options: what was asked.
        extra: the user's own GPUs.
        every_count: all counts that run make sense, as only more GPUs may be fast enough.

    Raises:
        UsageError: a GPU is not known.
    """
    plans: list[DeploymentPlan] = []
    for name, most in _gpus(options, extra):
        counts = [c for c in COUNTS if c <= most] or [1]
        counts = counts if options.wanted.gpu_count is None else [options.wanted.gpu_count]
        most = len(counts) if every_count else _MAX_FITTING
        plans += _sensible([planner.plan(name, c, with_advice=False) for c in counts], most)
    return sorted(plans, key=_rank)


def _gpus(options: PlanOptions, extra: Mapping[str, Gpu]) -> Iterator[tuple[str, int]]:
    """Yield the GPUs with how many of them a machine has at most."""
    asked = options.compare or ALL_FAMILIES
    if asked == ALL_FAMILIES:
        for gpu in families():
            yield gpu.family or gpu.key, gpu.max_count
        return
    names = [name.strip() for name in asked.split(",") if name.strip()]
    if not names:
        raise UsageError(
            f"--compare is {asked!r}, expected GPUs with commas between them",
            hint="For example --compare=gpua5000,H100; without a value all families.",
        )
    seen: list[Gpu | str] = []
    for name in names:
        named = CPU if name == CPU else find_gpu(name, extra=extra)
        if named not in seen:  # a GPU by two of its names has its rows once
            seen.append(named)
            yield name, named.max_count if isinstance(named, Gpu) else 1


def _sensible(plans: Sequence[DeploymentPlan], most: int) -> list[DeploymentPlan]:
    """Return the plans of one GPU that are worth a row: the first that run, or the largest."""
    running = [plan for plan in plans if plan.verdict in _RUNS]
    first_fit = next((n for n, p in enumerate(running) if p.verdict == PlanVerdict.FITS), 0)
    return running[: first_fit + most] if running else list(plans[-1:])


def _rank(plan: DeploymentPlan) -> tuple[int, float, int]:
    order = _ORDER.index(plan.verdict) if plan.verdict in _ORDER else len(_ORDER)
    price = float("inf") if plan.usd_per_hour is None else plan.usd_per_hour
    return order, price, plan.gpu_count


def table(plans: Sequence[DeploymentPlan], replicas: int, width: int) -> list[Text]:
    """Return the comparison as lines; what is wrong everywhere is told once, above it."""
    first = plans[0]
    engines = " or ".join(engine for engine, _ in groupby(sorted(map(words.engine, plans))))
    title = f"{first.model or 'the model'} with {engines}"
    if first.max_model_len:
        title += f", requests of {max(plan.max_model_len for plan in plans):,} tokens"
    everywhere, others = _problems(plans)
    lines = [Text(harmless(title), "bold")]
    lines += [row for detail in everywhere for row in wrapped(f"- {detail}", width, 2)]
    rows = [_row(plan) for plan in plans]
    running = [plan for plan in plans if plan.verdict in _RUNS]
    has_steps = not running or any(fields.tokens_per_second(plan) for plan in running)
    has_speeds = has_steps or any(plan.speed is not None for plan in running)
    left_out = frozenset() if has_steps else _OF_STEPS if has_speeds else _OF_SPEED
    kept = [place for place, head in enumerate(_HEADS) if head not in left_out]
    kept = kept if any(row[-1] for row in rows) else kept[:-1]
    heads, *cells = [[row[place] for place in kept] for row in (_HEADS, *rows)]
    lines += align(heads, cells, left=2)
    if others:
        lines += [Text(), Text("  Refused", "bold")]
    lines += [row for text in others for row in wrapped(f"- {text}", width, 2)]
    notes = list(_SPEED_NOTES if has_steps else (_LENGTHS, _note_without_steps(running, engines)))
    if len({plan.max_model_len for plan in running}) > 1:
        notes.append(
            "where longest is less, at once is of that length; longer requests end in an error"
        )
    lines += [Text(), *(Text(f"  {note}", "dim") for note in notes)]
    if replicas > 1:
        lines.append(Text(f"  of one replica; {replicas} take {replicas} times as much", "dim"))
    return lines


def _note_without_steps(running: Sequence[DeploymentPlan], engines: str) -> str:
    """Say what TTFT is of a model that embeds or scores, or that nothing is estimated."""
    lengths = [fields.first_prompt(plan) for plan in running]
    known = [each.num_tokens for each in lengths if each is not None]
    if not known:
        return f"speed is not estimated for {engines}"
    return f"TTFT: the vector or score of a text of {max(known):,} tokens; the model writes nothing"


def _problems(plans: Sequence[DeploymentPlan]) -> tuple[list[str], list[str]]:
    """Return what refuses all plans, and what refuses some of them with their GPUs before it.

    Missing memory is left out: the column `why` says it, and the figures differ in every row.
    """
    reasons: dict[str, list[str]] = {}
    for plan in plans:
        for problem in plan.problems:
            if problem.refuses and problem.code not in MEMORY_CODES:
                gpus = reasons.setdefault(problem.detail, [])
                gpus.append(f"{plan.gpu_count} × {plan.gpu_type}")
    everywhere = [detail for detail, gpus in reasons.items() if len(gpus) == len(plans)]
    others = [
        f"{', '.join(gpus)}: {detail}"
        for detail, gpus in reasons.items()
        if detail not in everywhere
    ]
    return everywhere, others


_OF_GPU = "gpu-type"


def _row(plan: DeploymentPlan) -> tuple[str, ...]:
    most = fields.tokens_per_second(plan)
    return (
        f"{plan.gpu_count} × {plan.gpu_type}",
        str(plan.verdict),
        f"{plan.safe_max_model_len:,}" if plan.safe_max_model_len else "-",
        words.concurrency(plan.max_concurrency) if plan.max_concurrency else "-",
        _or_dash(fields.first_token_seconds(plan)),
        _or_dash(fields.inter_token_seconds(plan)),
        f"{most:,.0f}" if most else "-",
        words.usd(plan.usd_per_hour),
        words.usd(fields.usd_per_million_tokens(plan)),
        " ".join(_reasons(plan)),
    )


def _reasons(plan: DeploymentPlan) -> list[str]:
    """Return what refuses it in a word each; on a GPU that the engine does not run on at all, that alone."""
    found = dict.fromkeys(map(_reason, filter(lambda each: each.refuses, plan.problems)))
    return [_OF_GPU] if _OF_GPU in found else list(found)


def _reason(problem: PlanProblem) -> str:
    return "memory" if problem.code in MEMORY_CODES else problem.flag or problem.code


def _or_dash(seconds: float | None) -> str:
    return "-" if seconds is None else words.seconds(seconds)
