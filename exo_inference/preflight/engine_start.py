"""What is to start in an engine that takes no flags of vLLM: its noun, for the modules that judge it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import EngineParameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is to start: a model with an engine's flags, read already, on GPUs of a kind.

    Attributes:
        free_bytes: memory free on each GPU before, where that is known.
    """

    engine: ClusterEngine
    flags: Sequence[str]
    reading: Reading
    model: Architecture
    gpu: Gpu
    gpu_count: int
    free_bytes: int | None = None

    @property
    def written(self) -> EngineParameters:
        """The flags as they were given, which no planner reads."""
        name, version = self.engine.name, self.engine.version
        return EngineParameters(engine=name, engine_version=version, others=tuple(self.flags))

    def own_parameters(self, settings: Mapping[str, Any]) -> EngineParameters:
        """Return what the planner reads of an engine that it has rules of."""
        name, version = self.engine.name, self.engine.version
        return EngineParameters.of(settings, engine=name, engine_version=version)
