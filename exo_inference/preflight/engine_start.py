"""What is to start in an engine that takes no flags of vLLM: its noun, for the modules that judge it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.engines.cluster_engine import ClusterEngine
from exo_inference.engines.flags.reader import Reading
from exo_inference.planner.gpu_catalog import Gpu
from exo_inference.planner.model.architecture import Architecture
from exo_inference.planner.parameters import EngineParameters
from exo_inference.preflight.flags import written_flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What is to start: of what is judged, a model and a GPU that are known, with the flags as they were read.

    Attributes:
        version: the release whose rules apply; the flags are read by those of the engine's own.
        free_bytes: memory free on each GPU before, where that is known.
    """

    engine: ClusterEngine
    version: str
    reading: Reading
    model: Architecture
    gpu: Gpu
    gpu_count: int
    free_bytes: int | None = None

    @property
    def written(self) -> EngineParameters:
        """The flags as they were given, which no planner reads."""
        others = written_flags(self.reading)
        return EngineParameters(engine=self.engine.name, engine_version=self.version, others=others)

    def own_parameters(self, settings: Mapping[str, Any]) -> EngineParameters:
        """Return what the planner reads of an engine that it has rules of."""
        return EngineParameters.of(settings, engine=self.engine.name, engine_version=self.version)
