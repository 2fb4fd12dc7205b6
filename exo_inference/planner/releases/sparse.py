"""Which GPUs a release of vLLM has kernels for that read latents over an index (DeepSeek-V3.2, GLM-5): a table.

`engine_rules.py` puts it into the engine's row, `checks.py` calls `check_sparse`. Another kind of GPU has none: of compute
capability 8 and 11 as of 0.33.0 (https://github.com/vllm-project/vllm/issues/38006, which asks for 8.0, is open).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.planner.problem import Problem
from exo_inference.planner.releases.gpus import GpuKind, Served

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.engine_rules import EngineRules
    from exo_inference.planner.gpu_catalog import Gpu
    from exo_inference.planner.model.architecture import Architecture
    from exo_inference.planner.parameters import EngineParameters

SPARSE: Mapping[GpuKind, Served] = {
    9: Served((0, 11, 0), "https://github.com/vllm-project/vllm/pull/25896"),
    10: Served((0, 11, 0), "https://github.com/vllm-project/vllm/pull/25896"),
    12: Served((0, 24, 0), "https://pypi.org/project/vllm/#history"),
    "gfx942": Served((0, 12, 0), "https://pypi.org/project/vllm/#history"),
    "gfx950": Served((0, 12, 0), "https://pypi.org/project/vllm/#history"),
}
"""By the whole part of a compute capability, or AMD's name: `supports_compute_capability` of each sparse backend in
v1/attention/backends/mla (flashmla_sparse.py, flashinfer_mla_sparse.py, flashattn_mla_sparse.py, rocm_aiter_mla_sparse.py) and the
selection in platforms/cuda.py and platforms/rocm.py, in all releases from 0.11.0 to 0.33.0. Others fail: "FLASHMLA_SPARSE: [compute
capability not supported]" (https://github.com/vllm-project/vllm/issues/31936, RTX PRO 6000, 0.12)."""

PACKED = frozenset({12})
"""Where the only backend keeps latents packed in FP8, whatever --kv-cache-dtype says (mla_attention.py,
`_canonicalize_sparse_mla_kv_cache_dtype`, since 0.24.0)."""


def is_sparse(model: Architecture) -> bool:
    """Whether the model reads latents over an index."""
    return any(layer.kv is not None and layer.kv.is_sparse for layer, _ in model.layer_counts)


def _kind(gpu: Gpu) -> GpuKind:
    return gpu.gfx if gpu.capability is None else int(gpu.capability)


def is_packed(model: Architecture, gpu: Gpu, rules: EngineRules) -> bool:
    """Whether such latents are in FP8 on a GPU without a flag that says so."""
    return bool(rules.sparse_gpus) and _kind(gpu) in PACKED and is_sparse(model)


CHOOSES_BLOCKS = (0, 18, 0)
"""The first release that takes blocks of one token on AMD's GPUs by itself; before, "Sparse MLA backend on ROCm only supports block
size 1" (platforms/rocm.py, 0.12.0 to 0.17.1)."""


def check_sparse(model: Architecture, gpu: Gpu, parameters: EngineParameters) -> list[Problem]:
    """Return why this release does not serve the model on such a GPU."""
    rules, kind = parameters.rules, _kind(gpu)
    if not rules.sparse_gpus or not kind or not is_sparse(model):
        return []
    served = rules.sparse_gpus.get(kind)
    if served is not None and served.has(rules.version):
        needs_flag = gpu.vendor == "amd" and rules.version < CHOOSES_BLOCKS
        if not needs_flag or parameters.block_size == 1:
            return []
        detail = f"{rules.release} has sparse latent attention on {gpu.name} in blocks of one token alone: set --block-size=1"
        return [Problem("block-size", detail, says_step=True, ways=(("block_size", 1),))]
    shown = gpu.gfx or f"compute capability {gpu.capability}"
    step = "use another GPU" if served is None else f"{served.step(rules.version)}, or another GPU"
    detail = f"{rules.release} has no kernels for sparse latent attention on {gpu.name} ({shown})"
    between = ": " if served is None else " "
    return [Problem("gpu-type", f"{detail}{between}{step}", says_step=True)]
