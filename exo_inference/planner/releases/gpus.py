"""Which GPUs a release of vLLM has kernels for: a table, which `engine_rules.py` puts into the engine's row.

A GPU is of the kind that its compute capability says, or of AMD's its `gfx` name. Where several have built images of vLLM, the
earliest release counts that any of them serves; kinds that every release serves are not here. `checks.py` calls `check_gpu`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from exo_inference.planner.problem import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from exo_inference.planner.engine_rules import EngineRules, Version
    from exo_inference.planner.gpu_catalog import Gpu

GpuKind = float | str


@dataclass(frozen=True, slots=True)
class Served:
    """Which releases serve a kind of GPU.

    Attributes:
        since: the first one; None: as old as any here.
        gone: the first one that does not any more.
        gap: between, a release that does not.
        source: where that is from.
    """

    since: Version | None
    source: str
    gone: Version | None = None
    gap: Version | None = None

    def has(self, version: Version) -> bool:
        """Whether a release serves it."""
        is_late = self.gone is not None and version >= self.gone
        return not is_late and version != self.gap and version >= (self.since or version)

    def step(self, version: Version) -> str:
        """Return which release to use instead of one that does not serve it."""
        if self.gone is not None and version >= self.gone:
            return f"any more: use a release before {_written(self.gone)}, or another GPU"
        if version == self.gap:
            later = (*version[:2], version[2] + 1)
            return f"in its images: use {_written(later)} or later"
        assert self.since is not None, "it is early, or it would be served"
        return f"yet: use {_written(self.since)} or later"


_SDISTS = "https://pypi.org/project/vllm/#history"
_IN_CUDA_126 = "https://github.com/vllm-project/vllm/issues/21633"

GPUS: Mapping[GpuKind, Served] = {
    7.0: Served(None, "https://github.com/vllm-project/vllm/pull/39878", gone=(0, 20, 0)),
    10.0: Served((0, 9, 0), _IN_CUDA_126, gap=(0, 10, 0)),
    10.3: Served((0, 14, 0), "https://github.com/triton-lang/triton/issues/8473"),
    11.0: Served((0, 10, 1), "https://www.wangjunjian.com/jetson/qwen3/2025/10/12/Jetson-Thor-LLM-Benchmarking.html"),
    12.0: Served((0, 9, 2), "https://github.com/vllm-project/vllm/pull/19794", gap=(0, 10, 0)),
    12.1: Served((0, 10, 2), "https://github.com/vllm-project/vllm/issues/28129"),
    "gfx950": Served((0, 10, 2), "https://github.com/ROCm/legacy-rocm-build/pull/5626"),
    "gfx1201": Served((0, 8, 3), _SDISTS),
}  # fmt: skip
"""By `torch_cuda_arch_list` of docker/Dockerfile and .buildkite/release-pipeline.yaml, `CUDA_SUPPORTED_ARCHS` and
`HIP_SUPPORTED_ARCHS` of CMakeLists.txt, and `PYTORCH_ROCM_ARCH` of docker/Dockerfile.rocm_base in each source distribution.

Volta was in the lists to 0.19.1; PyTorch 2.11, which 0.20.0 wants, has no kernels for it either. 10.0 is in them since 0.9.0, 12.0 since
0.9.2; the image of 0.10.0 came with a PyTorch for CUDA 12.6, which has neither. 10.3 runs kernels of 10.0, but those that Triton compiles
failed before 3.5.1, which is of PyTorch 2.9.1 and vLLM 0.14.0 (https://github.com/pytorch/pytorch/pull/167008). 11.0 is in vLLM's own lists
since 0.20.0, and was served by NVIDIA's images before; 12.1 runs kernels of 12.0, which the wheels for Arm have since 0.10.2. AMD's image of
0.10.2 is the first with gfx950, vLLM's own has it since 0.11.0."""


def check_gpu(gpu: Gpu, rules: EngineRules) -> list[Problem]:
    """Return why this release runs on no GPU of that kind, where it is known which ones do."""
    kind: GpuKind = gpu.gfx if gpu.capability is None else gpu.capability
    served = rules.gpus.get(kind)
    if served is None or served.has(rules.version):
        return []
    shown = gpu.gfx if gpu.capability is None else f"compute capability {gpu.capability}"
    detail = f"{rules.release} has no kernels for {gpu.name} ({shown}) {served.step(rules.version)}"
    return [Problem("gpu-type", detail, says_step=True)]


def _written(version: Version) -> str:
    return ".".join(map(str, version))
