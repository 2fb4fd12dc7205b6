"""What a plan is asked for, as frozen options. Imports nothing heavy: commands build it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exo_inference.resources.wanted import WantedDeployment

ALL_FAMILIES = "all"
"""What `--compare` without a value stands for."""


@dataclass(frozen=True)
class PlanOptions:
    """What `deployment plan` was asked to do.

    Attributes:
        wanted: the deployment; without its GPUs only with `compare`, without its model with `model_path`.
        model_path: directory of the model, or its config.json.
        compare: comma-separated GPUs, `ALL_FAMILIES`, or None.
        measure: have the engine measure this machine's processor first.
        demand: what the deployment must hold, as `demand.py` reads it, or None.
    """

    wanted: WantedDeployment
    model_path: Path | None = None
    gpu_file: Path | None = None
    compare: str | None = None
    explain: bool = False
    offline: bool = False
    demand: str | None = None
    measure: bool = False
