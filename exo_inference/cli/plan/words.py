"""The words and figures of a plan: verdict, sizes, times, prices. Pure text, no layout.

Used by the report, the comparison, and the one line that `create`, `update` and `apply` print.
"""

from __future__ import annotations

from exo_inference.engine_names import facts_of
from exo_inference.wire import MEMORY_CODES, DeploymentPlan, PlanProblem, PlanVerdict

GIB = 2**30


def refusals(plan: DeploymentPlan) -> list[str]:
    """Return why the engine would not start."""
    return [problem.detail for problem in plan.problems if problem.refuses]


def reasons(plan: DeploymentPlan) -> list[str]:
    """Return why nobody can say whether it fits."""
    return [problem.detail for problem in plan.problems] or plan.notes


def only_lacks_memory(plan: DeploymentPlan) -> bool:
    """Whether the engine would not start for want of memory, and nothing else is wrong."""
    codes = {problem.code for problem in plan.problems if problem.refuses}
    return plan.verdict == PlanVerdict.REFUSED and bool(codes) and codes <= MEMORY_CODES


def verdict_words(plan: DeploymentPlan) -> str:
    """Say the verdict in a word or two."""
    if plan.verdict == PlanVerdict.REFUSED:
        return "Does not fit" if only_lacks_memory(plan) else "Refused"
    words = {PlanVerdict.FITS: "Fits", PlanVerdict.TIGHT: "Tight", PlanVerdict.UNKNOWN: "Unknown"}
    return words.get(plan.verdict, str(plan.verdict))


def headline(plan: DeploymentPlan) -> str:
    """Say what was judged and how, as `Fits: Qwen/Qwen3-8B on 1 x NVIDIA L40S, vLLM 0.28.0`."""
    return f"{verdict_words(plan)}: {plan.model or 'the model'} on {gpus(plan)}, {engine(plan)}"


def summary(plan: DeploymentPlan) -> str:
    """Say a plan in one line, for commands that are about something else."""
    words = verdict_words(plan)
    if plan.verdict in (PlanVerdict.REFUSED, PlanVerdict.UNKNOWN):
        causes = refusals(plan) or reasons(plan)
        return f"{words}: {'; '.join(causes)}" if causes else words
    parts = ["no KV cache", f"texts of up to {plan.max_model_len:,} tokens"]
    if not has_no_cache(plan):
        parts = [
            f"{size(plan.available_kv_bytes_per_gpu, 1)}{per_gpu(plan)} for the KV cache",
            f"{plan.kv_capacity_tokens:,} tokens",
            f"{concurrency(plan.max_concurrency)} requests of {plan.max_model_len:,} tokens at once",
        ]
    if plan.usd_per_hour is not None:
        parts.append(f"{usd(plan.usd_per_hour)} USD per hour and replica")
    text = f"{words}: {', '.join(parts)}"
    return f"{text}. {tight_warning(plan)}" if plan.verdict == PlanVerdict.TIGHT else text


def with_replicas(plan: DeploymentPlan, replicas: int) -> DeploymentPlan:
    """Return a plan that says what its speed is, beside other replicas on the same processor."""
    if replicas == 1 or plan.gpu_type != "cpu" or plan.speed is None:
        return plan
    note = (
        f"the speed is that of one replica with all cores of a machine; {replicas} replicas on one machine share its cores "
        "and its memory's bandwidth, and are together about as fast as one"
    )
    return plan.model_copy(update={"notes": [*plan.notes, note]})


def has_no_cache(plan: DeploymentPlan) -> bool:
    """Whether the model embeds or scores texts, of which nothing is kept."""
    is_short = plan.verdict in (PlanVerdict.REFUSED, PlanVerdict.UNKNOWN)
    return not (is_short or plan.available_kv_bytes_per_gpu or plan.kv_bytes_per_token)


_MAY_NOT_START = ("max-num-seqs", "cuda-graphs", "memory")
"""Codes of what may keep an engine from starting though one request has room."""
_MAY_NOT = "It may not start"
_SLOW = "gpu-layers"
"""The code of a start with layers in main memory."""


def tight_warning(plan: DeploymentPlan) -> str:
    """Say why a tight plan may fail, or is slow."""
    slow = [each.detail for each in plan.problems if each.code == _SLOW]
    if slow:
        return f"It is slow: {'; '.join(slow)}"
    causes = [each.detail for each in plan.problems if each.code in _MAY_NOT_START]
    return f"{_MAY_NOT}: {'; '.join(causes)}"


def told(plan: DeploymentPlan, problem: PlanProblem) -> str:
    """Return a problem as it stands below the verdict."""
    is_likely = plan.verdict == PlanVerdict.TIGHT and problem.code in MEMORY_CODES
    return f"{_MAY_NOT}: {problem.detail}" if is_likely else problem.detail


def per_gpu(plan: DeploymentPlan) -> str:
    """Return ` per GPU` for behind a size; nothing on the CPU, which has none."""
    return "" if plan.gpu_type == "cpu" else " per GPU"


def gpus(plan: DeploymentPlan) -> str:
    """Name the GPUs, with the family where that is another name."""
    name = plan.gpu or plan.gpu_type
    family = f" ({plan.gpu_type})" if plan.gpu_type and plan.gpu_type not in name.lower() else ""
    return f"{plan.gpu_count} × {name}{family}"


def engine(plan: DeploymentPlan) -> str:
    """Name the engine; the version is vLLM's, whose flags exo-engine takes too."""
    facts = facts_of(plan.engine)
    return facts.title if facts.is_ours else f"{facts.title} {plan.engine_version}"


def size(num_bytes: float, digits: int = 2) -> str:
    """Format bytes of text as `10.19 GiB`, few of them as `12.0 MiB` or `12.0 KiB`, and none as `0 GiB`."""
    if num_bytes <= 0:
        return "0 GiB"
    if num_bytes >= GIB / 10:
        return gib(num_bytes, digits)
    mib = num_bytes / 2**20
    return f"{mib:,.1f} MiB" if mib >= 0.1 else kib(num_bytes)


def gib(num_bytes: float, digits: int = 2) -> str:
    """Format bytes as `10.19 GiB`."""
    return f"{num_bytes / GIB:,.{digits}f} GiB"


def kib(num_bytes: float) -> str:
    """Format the few bytes of one token."""
    return f"{num_bytes / 1024:,.1f} KiB"


def concurrency(number: float) -> str:
    """Format how many requests run at once."""
    return f"{number:,.0f}" if number >= 100 else f"{number:,.1f}"


def longest_context(plan: DeploymentPlan) -> str:
    """Say which context fits for sure, and which one at the middle of the estimate where that is another."""
    sure, likely = plan.safe_max_model_len, plan.largest_max_model_len
    if sure >= likely:
        return f"{sure:,} tokens"
    middle = f"{likely:,} tokens at the middle of the estimate"
    return f"{sure:,} tokens for sure, {middle}" if sure else middle


def seconds(number: float) -> str:
    """Format a latency with two or three digits."""
    if number < 0.01:
        return f"{number * 1000:.1f} ms"
    if number < 1:
        return f"{number * 1000:.0f} ms"
    return f"{number:.1f} s" if number < 100 else f"{number:,.0f} s"


def usd(number: float | None) -> str:
    """Format a price; a dash where none is known."""
    if number is None:
        return "-"
    return f"{number:.3f}" if 0 < number < 0.1 else f"{number:,.2f}"


def gguf_note(plan: DeploymentPlan) -> str:
    """Return what has to be named for a deployment, where a model's name does not say which GGUF file is meant."""
    name = plan.model or ""
    repository = name if name.lower().endswith("gguf") else "ORG/NAME-GGUF"
    return (
        f"{engine(plan)} loads one GGUF file, which `exo ai model create` fetches by its type: {repository}:TYPE, with a TYPE "
        "such as Q4_K_M; plan such a name to have lines that create a deployment"
    )
