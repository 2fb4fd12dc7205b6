"""How an engine, in one version, turns a GPU's memory into a KV cache.

`planning.py` asks `rules_for`; `memory.py` and `kv_cache.py` follow the answer. Facts of vLLM are read from
its source release by release (`config/cache.py`, `v1/worker/gpu_worker.py`, `engine/arg_utils.py`,
`v1/core/kv_cache_utils.py`); those of exo-engine from `exo_engine/core/memory.py`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from exo_inference.planner.gpus import GIB, Gpu

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class EngineRules:
    """One engine in one version.

    Attributes:
        is_legacy: vLLM's V0 engine (its own profile run, hybrids cached as if they attended fully).
        default_utilization: of `--gpu-memory-utilization`.
        subtracts_graphs: the CUDA-graph estimate comes out of the budget (since 0.20).
        groups_hybrids: layers of different kinds share a pool in groups.
        group_tolerance: the largest bucket sets the group size while below this times the smallest.
        reports_by_concurrency: the printed capacity is concurrency x max-model-len (since 0.21).
        batches_in_flight: batches that a sliding window must have room for.
        reserves_null_block: one block is kept back.
        sampler_copies: fp32 copies of the logits that the profiled sampler holds at once.
        shrinks_length: without --max-model-len the context becomes what fits instead of a refusal.
        latent_padding: MLA latents are padded to a multiple of this.
        absorbs_latents: MLA keeps the products of its projections beside them (0.7).
        checks_states: it does not start where requests of a step outnumber the blocks for their states (since 0.19).
    """

    engine: str
    version: Version
    is_legacy: bool
    default_utilization: float
    subtracts_graphs: bool
    groups_hybrids: bool
    group_tolerance: float
    reports_by_concurrency: bool
    batches_in_flight: int
    reserves_null_block: bool
    sampler_copies: float
    shrinks_length: bool = False
    latent_padding: int = 1
    absorbs_latents: bool = False
    checks_states: bool = False


_SAMPLER_COPIES_SORTING = 9.63
"""Top-k/top-p by sorting: logits, sorted values, int64 indices, probabilities, cumulative sums, masks.
Measured: 5.58 GiB at 1024 x 151,936 (vLLM 0.10.2, twice), 1.40 at 256 x 151,936 (0.6.6)."""

_SAMPLER_COPIES_SELECTING = 5.5
"""Without the sort (a kernel selects): both complete records at 0.19 leave 5 to 6 copies."""


def parse_version(text: str) -> Version | None:
    """Return major, minor and patch of a version text (`0.26.1rc1.dev156`), or None."""
    match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        return None
    return int(match.group(1)), int(match.group(2)), int(match.group(3) or 0)


@lru_cache(maxsize=128)
def rules_for(engine: str, version_text: str) -> EngineRules:
    """Return the rules of an engine version; an unreadable version counts as the newest."""
    version = parse_version(version_text) or (0, 33, 0)
    is_legacy = version < (0, 8, 0) or (version < (0, 11, 0) and "v0" in version_text.lower())
    if engine == "exo":
        return EngineRules(
            "exo", version, False, 0.9, False, False, 1.0, False, 1, False, 3.0, shrinks_length=True
        )
    return EngineRules(
        engine="vllm",
        version=version,
        is_legacy=is_legacy,
        default_utilization=0.92 if version >= (0, 20, 0) else 0.9,
        subtracts_graphs=version >= (0, 20, 0),
        groups_hybrids=version >= (0, 10, 0) and not is_legacy,
        group_tolerance=1.5 if version >= (0, 14, 0) else 1.25,
        reports_by_concurrency=version >= (0, 21, 0),
        batches_in_flight=2 if version >= (0, 33, 0) else 1,
        reserves_null_block=version >= (0, 33, 0),
        sampler_copies=_SAMPLER_COPIES_SELECTING
        if version >= (0, 17, 0)
        else _SAMPLER_COPIES_SORTING,
        latent_padding=128 if is_legacy else 1,
        absorbs_latents=(0, 7, 0) <= version < (0, 8, 0),
        checks_states=version >= (0, 19, 0),
    )


def default_batch(
    rules: EngineRules, gpu: Gpu, max_model_len: int, *, is_chunked: bool
) -> tuple[int, int]:
    """Return the default max-num-batched-tokens and max-num-seqs of the engine's server.

    Source: `EngineArgs.get_batch_defaults` (vllm-memory.md §3); for exo-engine `exo_engine/config.py`.
    """
    if rules.engine == "exo":
        return (1024, 64) if gpu.vendor == "cpu" else (8192, 256)
    if rules.is_legacy:  # without chunked prefill a whole prompt is one batch
        return (2048 if is_chunked else max(max_model_len, 2048), 256)
    memory = gpu.reported_bytes
    if rules.version >= (0, 33, 0) and memory >= 160 * GIB:
        return 16384, 1024
    is_exempt = "a100" in gpu.name.lower() and rules.version >= (0, 9, 0)
    is_exempt = is_exempt or gpu.key == "gb10"
    if memory >= 70 * GIB and not is_exempt:
        return 8192, 1024
    return 2048, 256
