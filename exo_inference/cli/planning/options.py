"""What a plan is asked for, as frozen options. Imports nothing heavy: commands build it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ALL_FAMILIES = "all"
"""What `--compare` without a value stands for."""


@dataclass(frozen=True)
class PlanOptions:
    """What `deployment plan` was asked to do.

    Attributes:
        name: of the deployment, for the lines to paste.
        model_name, model_id, model_path: the model; exactly one is given.
        gpu_type: None only with `compare`.
        gpu_count: None where it was not given.
        parameters: the engine's flags, one item each.
        engine: `vllm`, `exo`, or None for what goes with the GPU.
        compare: comma-separated GPUs, `ALL_FAMILIES`, or None.
    """

    name: str = ""
    model_name: str | None = None
    model_id: str | None = None
    model_path: Path | None = None
    gpu_type: str | None = None
    gpu_count: int | None = None
    replicas: int = 1
    parameters: tuple[str, ...] = ()
    engine: str | None = None
    engine_version: str | None = None
    gpu_file: Path | None = None
    compare: str | None = None
    explain: bool = False
    offline: bool = False

    def engine_for(self, gpu_type: str) -> str:
        """Return the engine that is planned for."""
        return self.engine or ("exo" if gpu_type == "cpu" else "vllm")
