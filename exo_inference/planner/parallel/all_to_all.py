"""The buffers by which tokens reach their experts on other ranks, by `--all2all-backend`.

vLLM takes them where experts are spread over data-parallel ranks (distributed/device_communicators/all2all.py; read in
0.12.0 and 0.32.0). The default, `allgather_reducescatter`, has none of its own: what it gathers is counted with the step.
"""

from __future__ import annotations

from exo_inference.planner.engine_rules import EngineRules
from exo_inference.planner.gpu_catalog import MIB, Gpu
from exo_inference.planner.memory import Ranks
from exo_inference.planner.model.architecture import Architecture

GATHERING = frozenset({None, "allgather_reducescatter", "naive"})
"""Each rank gets all ranks' tokens."""
BATCHED = frozenset({"deepep_low_latency", "nixl_ep"})
"""Each expert has room for the tokens of all ranks, so that steps are small by default."""
BATCHED_TOKENS = 256
"""Tokens of a step with those (config/scheduler.py, `DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP`, 0.20.0; before as
many at a time, envs.py `VLLM_MOE_DP_CHUNK_SIZE`)."""

_DEEPEP_BUFFER = 1024 * MIB
"""envs.py, `VLLM_DEEPEP_BUFFER_SIZE_MB`, which both of DeepEP's modes ask for over NVLink."""
_DEEPEP_WORKSPACE = 32 * MIB
"""DeepEP, csrc/kernels/configs.cuh: `NUM_WORKSPACE_BYTES`."""
_LOW_LATENCY_WIDTHS = (2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192)
"""Hidden sizes that DeepEP's low-latency kernels have; others are rounded up (prepare_finalize/deepep_ll.py, 0.12.0 and
0.32.0)."""


def spreads_experts(model: Architecture, ranks: Ranks) -> bool:
    """Whether whole experts are spread over data-parallel ranks."""
    return model.moe is not None and ranks.data > 1 and ranks.has_expert_parallel


def all_to_all_bytes(
    model: Architecture,
    ranks: Ranks,
    rules: EngineRules,
    gpu: Gpu,
    backend: str | None,
    num_tokens: int,
    dtype_bytes: int,
) -> int | None:
    """Return the buffers of one GPU; None where those of the way asked for were not read.

    Args:
        model: what is served.
        ranks: of the replica.
        rules: of the release.
        gpu: the kind of GPU; ranks beyond one machine talk over its network cards too.
        backend: value of `--all2all-backend`.
        num_tokens: max-num-batched-tokens.
        dtype_bytes: bytes per number of an activation.
    """
    if not spreads_experts(model, ranks) or backend in _without_buffers(rules):
        return 0
    assert model.moe is not None
    if backend == "deepep_high_throughput":
        machines = 2 if ranks.expert > gpu.max_count else 1  # a second buffer for RDMA
        return machines * _DEEPEP_BUFFER + _DEEPEP_WORKSPACE
    if backend == "deepep_low_latency":
        tokens = num_tokens if rules.version >= (0, 20, 0) else BATCHED_TOKENS
        messages = low_latency_bytes(model.moe.hidden_size, model.moe.num_experts, tokens)
        return _DEEPEP_BUFFER + messages + _DEEPEP_WORKSPACE
    if backend == "flashinfer_nvlink_one_sided":
        return _one_sided_bytes(model, ranks, num_tokens, dtype_bytes)
    return None


def _without_buffers(rules: EngineRules) -> frozenset[str | None]:
    """Return the ways that have none; from 0.17 on pplx became the default one (config/parallel.py)."""
    return GATHERING | {"pplx"} if rules.version >= (0, 17, 0) else GATHERING


def low_latency_bytes(hidden_size: int, num_experts: int, num_tokens: int) -> int:
    """Return what DeepEP's low-latency kernels register for RDMA.

    Two sets of buffers, each with a message of every token for every expert to send and one to receive (DeepEP,
    csrc/config.hpp, `LowLatencyLayout` and `get_low_latency_rdma_size_hint`); its counters are left out.
    """
    width = next((size for size in _LOW_LATENCY_WIDTHS if size >= hidden_size), hidden_size)
    scales = width // 128
    dispatched = 16 + max(2 * width, width + 4 * scales)
    combined = 4 * scales + 2 * width
    sent = num_tokens * max(dispatched, num_experts * combined)
    received = num_experts * num_tokens * max(dispatched, combined)
    return 2 * (sent + received)


def _one_sided_bytes(model: Architecture, ranks: Ranks, num_tokens: int, dtype_bytes: int) -> int:
    """Return FlashInfer's symmetric workspace: each rank's tokens, to and from their experts.

    Source: `moe_a2a_get_workspace_size_per_rank` (FlashInfer, comm/trtllm_moe_alltoall.py) with the payloads of
    `FlashInferNVLinkOneSidedManager.initialize` (0.32.0): values, their scales, ids and weights of experts; back in 16 bit.
    """
    assert model.moe is not None
    hidden, top = model.moe.hidden_size, model.moe.experts_per_token
    bits = 8 * dtype_bytes if model.quantization is None else model.quantization.default.bits
    values = {8: hidden + hidden // 32, 4: hidden // 2 + hidden // 16}.get(int(bits), 2 * hidden)
    return ranks.expert * num_tokens * (values + 8 * top + 2 * hidden)
