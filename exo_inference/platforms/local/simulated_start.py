"""How a simulated replica starts: phases with durations, log lines with the plan's figures, failures.

Called by `simulation.py`. The sizes are the plan's. The durations are those of a start with nothing
cached, and real ones differ by a factor of several with disk and processor; each says below where
it is from. docs/how-to/simulate-gpus.md lists them for users.
"""

from __future__ import annotations

from typing import Any

from exo_inference.planner import Plan

_GIB = 2**30

PROCESS_SECONDS = 10.0
"""Starting Python, importing the engine, making CUDA contexts. Assumed."""

LOAD_BYTES_PER_SECOND = 0.42 * _GIB
"""Reading the checkpoint, from the disk to the GPUs: the median of seven starts of vLLM whose logs
print size and seconds, 0.03 to 4.9 GiB/s (six of vram-cases.json, one of vllm-project/vllm#44106)."""

COMPILE_SECONDS = 46.0
"""torch.compile with an empty cache: 45.81 s of a start of 91 s (run-ai/runai-model-streamer#67)."""

PROFILE_SECONDS = 8.0
"""Profile run and warm-up: what the same start took beside compiling (45.81 s) and graphs (37 s)."""

ALLOCATE_SECONDS = 1.0
"""Allocating the KV cache. Assumed."""

GRAPHS_SECONDS = 17.0
"""Capturing CUDA graphs: the median of 4, 5, 8, 17, 17, 22 and 37 s (vram-cases.json,
vllm-project/vllm#20264, run-ai/runai-model-streamer#67)."""

EX_CONFIG = 78
"""Exit code of a start that will fail again as it is (sysexits.h)."""

_PROFILING = "profiling memory"
_PLANNING = "reading what is to be simulated"


def start_phases(found: Plan, speedup: int) -> list[dict[str, Any]]:
    """Return the phases of a start, in order, as the simulation file has them."""
    graphs = found.component("cuda_graphs")
    has_graphs = graphs is not None and graphs.num_bytes > 0
    parameters = found.parameters
    is_compiled = parameters.rules.compiles and not parameters.enforce_eager
    phases = [
        ("starting the engine", PROCESS_SECONDS, []),
        ("loading weights", _checkpoint_bytes(found) / LOAD_BYTES_PER_SECOND, _weight_lines(found)),
        ("compiling", COMPILE_SECONDS * is_compiled, []),
        (_PROFILING, PROFILE_SECONDS, []),
        ("allocating the KV cache", ALLOCATE_SECONDS, _cache_lines(found)),
        ("capturing CUDA graphs", GRAPHS_SECONDS * has_graphs, _graph_lines(found)),
    ]
    return [
        {"name": name, "seconds": seconds / speedup, "log": log}
        for name, seconds, log in phases
        if seconds
    ]


def explain_failure(found: Plan) -> str | None:
    """Return why the engine would not start, with the next step; None when it would.

    The nominal plan decides: between its bounds a real start may go either way.
    """
    refusing = [problem for problem in found.problems if problem.refuses]
    others = [problem for problem in refusing if problem.code != "memory"]
    if others:
        return f"{others[0].detail}. Run `exo dedicated-inference deployment plan` with these flags"
    if not found.fits_nominally:
        return f"out of GPU memory: {_describe_lack(found)}. {_suggest(found)}"
    if found.speed is None:
        return f"cannot be simulated: nothing is known of the speed of {found.gpu}"
    return None


def failing_start(error: str, found: Plan | None = None, speedup: int = 1) -> dict[str, Any]:
    """Return the phases and the failure of a start that fails.

    Args:
        error: the engine's last word.
        found: the plan; None where nothing could be planned.
        speedup: divides the durations.
    """
    if found is None or not found.components:
        phases: list[dict[str, Any]] = [{"name": _PLANNING, "seconds": 0.0, "log": []}]
        return {"phases": phases, "fail": _fail(_PLANNING, error, [])}
    phases = start_phases(found, speedup)
    last = "loading weights" if _leaves_nothing(found) else _PROFILING
    kept = phases[: [phase["name"] for phase in phases].index(last) + 1]
    return {"phases": kept, "fail": _fail(last, error, _memory_lines(found))}


def _fail(phase: str, error: str, log: list[str]) -> dict[str, Any]:
    one_line = " ".join(error.split())  # the engine's last word is read as a line
    return {"phase": phase, "error": one_line, "exit_code": EX_CONFIG, "log": log}


def _leaves_nothing(found: Plan) -> bool:
    """Whether not even the weights fit, so that loading them fails."""
    return found.weights_bytes_per_gpu > found.total_bytes_per_gpu


def _describe_lack(found: Plan) -> str:
    used = found.budget_bytes_per_gpu - found.available_kv_bytes_per_gpu
    share = f"{_gib(found.budget_bytes_per_gpu)} of {_gib(found.total_bytes_per_gpu)}"
    if found.available_kv_bytes_per_gpu <= 0:
        return (
            f"weights and overheads take {_gib(used)} per GPU, and the engine may use {share}; "
            "nothing is left for the KV cache"
        )
    return (
        f"one request of {found.max_model_len} tokens needs "
        f"{_gib(found.needed_kv_bytes_per_gpu)} of KV cache per GPU, and "
        f"{_gib(found.available_kv_bytes_per_gpu)} are available"
    )


def _suggest(found: Plan) -> str:
    plan = "`exo dedicated-inference deployment plan` lists all ways out"
    if found.safe_max_model_len > 0:
        return f"Set --max-model-len={found.safe_max_model_len} or less, or use more GPUs; {plan}"
    return f"Use more or larger GPUs, or a quantized checkpoint; {plan}"


def _checkpoint_bytes(found: Plan) -> int:
    return found.weights_bytes_per_gpu * found.ranks.tensor * found.ranks.pipeline


def _weight_lines(found: Plan) -> list[str]:
    return [
        f"weights: {_gib(found.weights_bytes_per_gpu)} per GPU, read at "
        f"{LOAD_BYTES_PER_SECOND / _GIB:.2f} GiB/s"
    ]


def _memory_lines(found: Plan) -> list[str]:
    parts = ", ".join(
        f"{part.name.replace('_', ' ')} {_gib(part.num_bytes)}"
        for part in found.components
        if part.is_in_budget and part.name != "kv_cache" and part.num_bytes
    )
    return [
        f"memory per GPU: {_gib(found.total_bytes_per_gpu)}, of which the engine may use "
        f"{_gib(found.budget_bytes_per_gpu)}: {parts}",
        f"available KV cache memory: {_gib(found.available_kv_bytes_per_gpu)} per GPU",
    ]


def _cache_lines(found: Plan) -> list[str]:
    return [
        *_memory_lines(found),
        f"KV cache size: {found.kv_capacity_tokens:,} tokens in {found.num_kv_blocks:,} blocks of "
        f"{found.kv_block_size}",
        f"maximum concurrency for {found.max_model_len:,} tokens per request: "
        f"{found.max_concurrency:.2f}x",
    ]


def _graph_lines(found: Plan) -> list[str]:
    graphs = found.component("cuda_graphs")
    return [f"CUDA graphs: {_gib(graphs.num_bytes)} per GPU"] if graphs is not None else []


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
