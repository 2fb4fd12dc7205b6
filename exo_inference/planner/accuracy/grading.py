"""Grades plans against what engines printed when they really started.

`grade` takes cases in the form of the project's collected starts (one JSON object each: model, GPU, flags,
what was observed) and returns graded quantities; `scripts/grade_planner.py` writes them as a Markdown page. What a case
leaves unstated is not guessed: a quantity that needs it is "not graded", with the reason. As a program::

    python -m scripts.grade_planner --cases docs/benchmarks/planner-starts.json
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from exo_inference.errors import UsageError
from exo_inference.planner.accuracy.cases import (
    has_unlike_gpus,
    is_inferred,
    is_kv_type_unstated,
    is_of_other_maker,
    lifted_check,
    model_name,
    printed_tokens,
    stated_gpu,
    stated_parameters,
    stated_stage,
    stated_version,
    unstated_flags,
    used_by_others,
)
from exo_inference.planner.catalog_models import find_model
from exo_inference.planner.engine_rules import PLANNED, EngineRules, rules_for
from exo_inference.planner.gpu_catalog import GIB, Gpu, find_gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import LATEST_VLLM, EngineParameters
from exo_inference.planner.planning import plan
from exo_inference.planner.verdict import Plan, Verdict

LIMITS: Mapping[str, tuple[float | None, float | None]] = {
    "weights, known checkpoint": (0.01, 0.05),
    "weights, derived checkpoint": (None, None),
    "weights, another maker's GPU": (None, None),
    "available KV memory": (0.06, None),
    "KV capacity in tokens": (0.06, None),
    "KV tokens from the printed KV memory": (0.01, None),
    "blocks for states": (0.05, None),
    "available KV memory, before 0.12": (None, None),
    "KV capacity in tokens, before 0.12": (None, None),
    "available KV memory, AMD": (None, None),
    "KV capacity in tokens, AMD": (None, None),
}
"""Per quantity: the mean error allowed, and the error allowed in 95 % of cases."""

FIT_LIMIT = 0.97
"""The share of starts of which it must be said rightly whether they fit."""

SMALL_CACHE = 1.0
"""GiB of KV memory on a GPU, as a start prints it."""

_MISS = 0.05


def miss_limit(quantity: str) -> float:
    """Return the error beyond which a single case counts as missed."""
    mean, most = LIMITS[quantity]
    return most or mean or _MISS


@dataclass(frozen=True, slots=True)
class Graded:
    """One quantity of one case."""

    case: str
    quantity: str
    predicted: float
    observed: float
    low: float | None = None
    high: float | None = None
    """The band that the plan states; None where it states none."""
    is_small: bool = False
    """The log prints a cache of less than `SMALL_CACHE`, of which a share of an error says little."""
    gib: float = 1.0
    """What one of what is counted takes, where `is_small`."""
    gpu_gib: float = 1.0
    """Memory of the GPU, where `is_small`."""

    @property
    def is_in_band(self) -> bool | None:
        """Whether the printed figure lies in the band, to its own last digit; None where there is none."""
        if self.low is None or self.high is None:
            return None
        rounding = _rounding(self.observed)
        return self.low - rounding <= self.observed <= self.high + rounding

    @property
    def error(self) -> float:
        """Relative error, signed: above 0 where too much was predicted."""
        return (self.predicted - self.observed) / max(abs(self.observed), 1e-9)


def _rounding(figure: float) -> float:
    """Return half of the last digit that logs print: sizes in GiB have two decimals, counts none."""
    return 0.5 if float(figure).is_integer() and figure > 1000 else 0.005


@dataclass(frozen=True, slots=True)
class FitGraded:
    """Whether one case started."""

    case: str
    predicted: str
    observed: str
    note: str = ""

    @property
    def is_tight(self) -> bool:
        """Whether the band holds both, which is neither right nor wrong."""
        return self.note == "tight"

    @property
    def is_right(self) -> bool:
        """Whether prediction and start agree; a tight one by its middle."""
        return (self.predicted == "refused") == (self.observed != "fits")


@dataclass(slots=True)
class Grades:
    """Everything that was graded, and what was not."""

    graded: list[Graded] = field(default_factory=list)
    fits: list[FitGraded] = field(default_factory=list)
    not_graded: list[tuple[str, str, str]] = field(default_factory=list)
    """Case, quantity, reason."""
    num_cases: int = 0
    includes_unstated: bool = False

    @property
    def decided(self) -> list[FitGraded]:
        """Verdicts that are not tight."""
        return [each for each in self.fits if not each.is_tight]

    def of(self, quantity: str) -> list[Graded]:
        """Return what was graded of one quantity."""
        return [each for each in self.graded if each.quantity == quantity]


@dataclass(frozen=True, slots=True)
class Summary:
    """One row of the table; errors as shares (0.05 = 5 %)."""

    quantity: str
    count: int
    mean: float
    median: float
    p95: float
    worst: float
    bias: float


def summarise(quantity: str, graded: Sequence[Graded]) -> Summary | None:
    """Return the row of a quantity, or None where nothing was graded."""
    if not graded:
        return None
    sizes = sorted(abs(each.error) for each in graded)
    rank = max(0, -(-95 * len(sizes) // 100) - 1)
    return Summary(
        quantity, len(sizes), statistics.fmean(sizes), statistics.median(sizes), sizes[rank], sizes[-1],
        statistics.fmean(each.error for each in graded),
    )  # fmt: skip


def grade(cases: Iterable[Mapping[str, Any]], *, includes_unstated: bool = False) -> Grades:
    """Grade every case. Pure.

    Args:
        cases: objects with `id`, `engine`, `engine_version`, `model`, `gpu`, `gpu_vram_gib`, `gpu_count`,
            `tp`, `pp`, `flags`, `defaults_in_effect` and `observed`; sizes in GiB.
        includes_unstated: also grade cases that say themselves that a flag or type is missing from
            their source, and engines older than the rules, as if defaults and the oldest rules held.
    """
    grades = Grades(includes_unstated=includes_unstated)
    for case in cases:
        grades.num_cases += 1
        _grade_case(case, grades)
    return grades


def _grade_case(case: Mapping[str, Any], grades: Grades) -> None:
    name, observed = str(case.get("id")), case.get("observed") or {}
    if case.get("engine") not in PLANNED:
        grades.not_graded.append((name, "everything", f"the engine is {case.get('engine')}"))
        return
    try:
        model = find_model(model_name(str(case.get("model") or "")))
    except UsageError as exc:
        grades.not_graded.append((name, "everything", exc.message))
        return
    if model.cannot_size is not None:
        grades.not_graded.append(
            (name, "everything", f"cannot size it, because {model.cannot_size}")
        )
        return
    # From here on until the plan: what a case has to state so that nothing of a start can be compared by chance.
    if case.get("approximate") and not grades.includes_unstated:
        grades.not_graded.append((name, "everything", "its source rounds the figures"))
        return
    version = stated_version(case)
    gpu = stated_gpu(case)
    rules = rules_for(case["engine"], version or LATEST_VLLM)
    if rules.cpu_dtype is not None and gpu is None:  # whose number format depends on it
        grades.not_graded.append((name, "everything", "its GPU is not stated"))
        return
    try:
        parameters = stated_parameters(case, version or LATEST_VLLM)
    except UsageError as exc:
        grades.not_graded.append((name, "everything", exc.message))
        return
    # Weights and blocks depend neither on the GPU's memory nor, for uniform models, on the version.
    result = plan(model, gpu or find_gpu("h200"), int(case.get("gpu_count") or 1), parameters)
    if result.basis is None:
        grades.not_graded.append((name, "everything", result.problems[0].detail))
        return
    stage = stated_stage(case)
    # Without its draft model the plan lacks weights and cache that the start had.
    if any(problem.code == "draft-model" for problem in result.problems):
        grades.not_graded.append((name, "everything", "its draft model is not known"))
        return
    is_foreign = rules.static_share is not None and is_of_other_maker(case)
    # These two follow from the model and the flags, so they are graded of old releases and unknown GPUs, too.
    _grade_weights(name, model, result, observed, stage, grades, is_foreign=is_foreign)
    _grade_printed_memory(name, model, case, parameters, version, grades)
    is_old = version is not None and rules.version < rules.oldest
    if is_old and not grades.includes_unstated:
        oldest = ".".join(map(str, rules.oldest))
        reason = f"the rules of {rules.title} {version} were not read; those here begin at {oldest}"
        grades.not_graded.append((name, "available KV memory, fit", reason))
        return
    # The cache is what is left of a GPU's memory: one thing that is not stated changes all of it.
    missing = [what for what, here in (("GPU", gpu), ("engine version", version)) if here is None]
    missing += [] if grades.includes_unstated else unstated_flags(case)
    missing += ["model"] if is_inferred(case, "model") and not grades.includes_unstated else []
    missing += ["GPU"] if is_inferred(case, "GPU") else []
    if missing:
        reason = f"its {' and '.join(dict.fromkeys(missing))} is not stated"
        grades.not_graded.append((name, "available KV memory, fit", reason))
        return
    if gpu is not None and (used := used_by_others(observed, result.weights_bytes_per_gpu, gpu)):
        grades.not_graded.append((name, "available KV memory, fit", used))
        return
    # The start found this much free, which another process may have lessened; the plan is to start from there.
    free = observed.get("free_at_start_gib")
    if free is not None and gpu is not None:
        count = int(case.get("gpu_count") or 1)
        result = plan(model, gpu, count, parameters, free_bytes=int(free * GIB))
    unstated = is_kv_type_unstated(case) and not grades.includes_unstated
    # With the check switched off an engine starts although it does not fit.
    lifted = lifted_check(case)
    if lifted is not None:
        grades.not_graded.append((name, "fit", f"it was started with {lifted}"))
    if has_unlike_gpus(case):
        reason = "its GPUs differ: the memory is one's, the blocks are the fewest of all"
        grades.not_graded.append((name, "KV capacity in tokens", reason))
    _grade_start(
        name,
        result,
        observed,
        stage,
        grades,
        grades_tokens=not (unstated or has_unlike_gpus(case)),
        grades_fit=lifted is None,
        apart=_apart(rules, gpu),
    )


def _apart(rules: EngineRules, gpu: Gpu | None) -> str:
    """Return how the row of KV memory is named further: old releases and AMD have rows of their own."""
    if gpu is not None and gpu.vendor == "amd":
        return ", AMD"
    is_vllm = rules.spans_gpus and rules.static_share is None
    return ", before 0.12" if is_vllm and rules.version < (0, 12, 0) else ""


def _grade_weights(
    name: str,
    model: Architecture,
    result: Plan,
    observed: Mapping[str, Any],
    stage: int | None,
    grades: Grades,
    *,
    is_foreign: bool,
) -> None:
    printed = observed.get("weights_gib_per_gpu")
    if printed is None:
        return
    draft = result.component("draft_model")
    size = result.weights_bytes_per_gpu if stage is None else result.stages[stage].weights_bytes
    predicted = (size + (draft.num_bytes if draft else 0)) / GIB
    is_derived = any(note.startswith("derived from") for note in model.notes)
    quantity = "weights, derived checkpoint" if is_derived else "weights, known checkpoint"
    if is_foreign:  # on which nobody is told a figure: what is graded is NVIDIA's
        quantity = "weights, another maker's GPU"
        grades.graded.append(Graded(name, quantity, predicted, float(printed)))
        return
    whole = result.component("weights")
    low, high = predicted, predicted
    if whole is not None and whole.num_bytes:
        low, high = (
            predicted * whole.low / whole.num_bytes,
            predicted * whole.high / whole.num_bytes,
        )
    grades.graded.append(Graded(name, quantity, predicted, float(printed), low, high))


def _grade_printed_memory(
    name: str,
    model: Architecture,
    case: Mapping[str, Any],
    parameters: EngineParameters,
    version: str | None,
    grades: Grades,
) -> None:
    """Grade the blocks alone: tokens from the KV memory that was printed."""
    observed = case.get("observed") or {}
    memory, tokens = observed.get("available_kv_gib"), printed_tokens(observed)
    if memory is None or tokens is None or memory <= 0:
        return
    if parameters.rules.prints_exactly:  # one says no more than the other
        return
    if is_kv_type_unstated(case) and not grades.includes_unstated:
        reason = "the checkpoint's KV cache type is not stated"
        grades.not_graded.append((name, "KV tokens from the printed KV memory", reason))
        return
    if parameters.pipeline_parallel_size not in (None, 1):
        reason = "the memory is one stage's, the blocks are the fewest of all stages"
        grades.not_graded.append((name, "KV tokens from the printed KV memory", reason))
        return
    if has_unlike_gpus(case):
        return
    is_mixed = len({layer.kv.kind for layer in model.layers if layer.kv is not None}) > 1
    if version is None and is_mixed:
        reason = "its engine version is not stated, and the printed count depends on it"
        grades.not_graded.append((name, "KV tokens from the printed KV memory", reason))
        return
    given = replace(parameters, kv_cache_memory_bytes=int(memory * GIB))
    gpu = replace(find_gpu("h200"), reported_bytes=4096 * GIB)
    result = plan(model, gpu, int(case.get("gpu_count") or 1), _with_defaults(given, case))
    if result.kv_capacity_tokens:
        quantity = "KV tokens from the printed KV memory"
        grades.graded.append(Graded(name, quantity, result.kv_capacity_tokens, tokens))


def _with_defaults(parameters: EngineParameters, case: Mapping[str, Any]) -> EngineParameters:
    """Set the step's size as the real GPU's class would have, since the stand-in is larger."""
    if parameters.max_num_batched_tokens is not None:
        return parameters
    real = stated_gpu(case)
    total = real.reported_bytes if real is not None else 24 * GIB
    is_large = (
        total >= 70 * GIB
        and "a100" not in str(case.get("gpu") or "").lower()
        and (real is None or real.key != "gb10")
    )
    tokens = 8192 if is_large else 2048
    model = find_model(model_name(str(case.get("model") or "")))
    model_least = 0 if parameters.language_model_only else model.min_batched_tokens
    seqs = parameters.max_num_seqs or (1024 if is_large else 256)
    return replace(
        parameters, max_num_batched_tokens=max(tokens, model_least, seqs), max_num_seqs=seqs
    )


def _grade_start(
    name: str,
    result: Plan,
    observed: Mapping[str, Any],
    stage: int | None,
    grades: Grades,
    *,
    grades_tokens: bool,
    grades_fit: bool,
    apart: str,
) -> None:
    memory, tokens = observed.get("available_kv_gib"), printed_tokens(observed)
    is_small = memory is not None and memory < SMALL_CACHE
    if memory is not None:
        size = result.available_kv_bytes_per_gpu
        predicted = (size if stage is None else result.stages[stage].available_kv_bytes) / GIB
        low, high = _band(result, predicted, size / GIB)
        grades.graded.append(
            Graded(
                name,
                f"available KV memory{apart}",
                predicted,
                float(memory),
                low,
                high,
                is_small,
                gpu_gib=result.total_bytes_per_gpu / GIB,
            )
        )
    # Blocks are the same for all stages of a run: they are graded where they are decided.
    blocks = [each.num_kv_blocks for each in result.stages]
    is_deciding = stage is None or blocks[stage] == min(blocks)
    if tokens is not None and grades_tokens and is_deciding:
        each = _tokens(name, f"KV capacity in tokens{apart}", result, float(tokens))
        grades.graded.append(replace(each, is_small=is_small))
    if observed.get("state_blocks") is not None:
        grades.graded.append(_states(name, result, float(observed["state_blocks"])))
    outcome = str(observed.get("outcome") or "")
    if grades_fit and outcome in ("fits", "refused", "oom", "failed_to_start"):
        verdict = result.verdict
        if verdict is Verdict.TIGHT:
            verdict = Verdict.FITS if result.fits_nominally else Verdict.REFUSED
        note = "tight" if result.verdict is Verdict.TIGHT else ""
        grades.fits.append(FitGraded(name, str(verdict), outcome, note))


def _states(name: str, result: Plan, printed: float) -> Graded:
    """Grade the blocks for states; their band is the memory's."""
    assert result.basis is not None
    layout, blocks = result.basis.stage.layout, float(result.num_kv_blocks)
    each = 0.0 if layout is None else layout.bytes_per_block / GIB
    share = blocks / max(1, result.available_kv_bytes_per_gpu)
    low, high = share * result.available_kv_bytes_low, share * result.available_kv_bytes_high
    is_small = printed * each < SMALL_CACHE
    total = result.total_bytes_per_gpu / GIB
    return Graded(name, "blocks for states", blocks, printed, low, high, is_small, each, total)


def _band(result: Plan, predicted: float, middle: float) -> tuple[float, float]:
    """Return the band of the KV memory in GiB, moved to the stage that is graded."""
    return (
        predicted - middle + result.available_kv_bytes_low / GIB,
        predicted - middle + result.available_kv_bytes_high / GIB,
    )


def _tokens(name: str, quantity: str, result: Plan, printed: float) -> Graded:
    """Grade the capacity; its band is the memory's."""
    tokens = float(result.kv_capacity_tokens)
    share = tokens / max(1, result.available_kv_bytes_per_gpu)
    low, high = share * result.available_kv_bytes_low, share * result.available_kv_bytes_high
    return Graded(name, quantity, tokens, printed, max(0.0, low), high)
