"""The workspace of vLLM's fused all-reduce (with the norm after it), by release, GPU and tensor-parallel ranks.

On by default from 0.17.0 with tensor parallelism on compute capability 9.0 and 10.0, and 10.3 from 0.19.0, where the
model is compiled (config/vllm.py, `enable_allreduce_rms_fusion` and OPTIMIZATION_LEVEL_02; off in 0.16.0). Read in 0.16.0,
0.17.0, 0.18.0, 0.19.0, 0.20.0, 0.21.0, 0.22.0, 0.23.0, 0.24.0, 0.25.1, 0.27.0, 0.29.0, 0.31.0 and 0.32.0. It is made
while the profile run compiles the model, so it comes out of the budget.
"""

from __future__ import annotations

from typing import NamedTuple

from exo_inference.planner.engine_rules import EngineRules, Version
from exo_inference.planner.gpu_catalog import MIB, Gpu
from exo_inference.planner.memory import Ranks


class Sizes(NamedTuple):
    """Bytes on one GPU, and the least and the most they may be."""

    num_bytes: int
    low: int
    high: int


NOTHING = Sizes(0, 0, 0)

_LARGEST_MIB: dict[float, dict[int, float]] = {
    9.0: {2: 64, 4: 2, 8: 0.5},
    10.0: {2: 64, 4: 32, 8: 1},
    10.3: {2: 64, 4: 64, 8: 4},
}
"""The largest tensor that is reduced this way, by ranks (compilation/passes/fusion/allreduce_rms_fusion.py,
`FI_ALLREDUCE_FUSION_MAX_SIZE_MB` of 0.32.0; of eight on 10.3 it was 2 before 0.29)."""

_SINCE: dict[float, Version] = {9.0: (0, 17, 0), 10.0: (0, 17, 0), 10.3: (0, 19, 0)}
_PAGE = 2 * MIB
_FLAGS = 256 * 4


def fused_all_reduce(
    hidden_size: int,
    ranks: Ranks,
    rules: EngineRules,
    gpu: Gpu,
    num_tokens: int,
    dtype_bytes: int,
) -> Sizes:
    """Return the workspace of one GPU; nothing where the release does not fuse for these ranks.

    FlashInfer has two: for IPC a buffer of all ranks' tokens and three more for its one-shot kernel
    (comm/trtllm_ar.py, `trtllm_create_ipc_workspace_for_all_reduce_fusion`), and where a switch multicasts three of two
    stages (comm/trtllm_mnnvl_ar.py, `MNNVLAllReduceFusionWorkspace`), which vLLM takes from 0.25 on and falls back from.

    Args:
        hidden_size: numbers per token.
        ranks: of the replica.
        rules: of the release.
        gpu: the kind of GPU.
        num_tokens: max-num-batched-tokens.
        dtype_bytes: bytes per number.
    """
    largest = _LARGEST_MIB.get(gpu.capability or 0.0, {}).get(ranks.tensor)
    if largest is None or not rules.compiles or rules.version < _SINCE[gpu.capability or 0.0]:
        return NOTHING
    if not _fuses_beside(ranks, rules.version):
        return NOTHING
    tokens = min(int(largest * MIB) // (hidden_size * dtype_bytes), num_tokens)
    tensor = tokens * hidden_size * dtype_bytes
    shared = sum(
        _up(size, _PAGE)
        for size in (ranks.tensor * tensor, ranks.tensor * _FLAGS, 3 * ranks.tensor * tensor)
    )
    if rules.version < (0, 25, 0) or not gpu.has_multicast:
        return Sizes(shared, shared, shared)
    stages = 2 * -(-tokens // ranks.tensor) * ranks.tensor * hidden_size * dtype_bytes
    multicast = _up(3 * max(stages, min(ranks.tensor * tensor, MIB)), _PAGE)
    return Sizes(multicast, min(multicast, shared), max(multicast, shared))


def _fuses_beside(ranks: Ranks, version: Version) -> bool:
    """Whether it is on with these data-parallel ranks and pipeline stages."""
    if version < (0, 21, 0):
        return ranks.data == 1 and ranks.pipeline == 1
    return ranks.pipeline == 1 if (0, 23, 0) <= version < (0, 24, 0) else True


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
