"""The result of planning: the numbers and what they mean.

`planning.py` builds a `Plan`; advice and `preflight` read it. The form that users read is
`wire.DeploymentPlan`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from exo_inference.planner.memory import Component, Ranks
from exo_inference.planner.parameters import EngineParameters
from exo_inference.planner.problem import Problem
from exo_inference.planner.speed.figures import Speed
from exo_inference.planner.speed.inputs import SpeedInputs

if TYPE_CHECKING:
    from exo_inference.planner.llama_cpp.basis import LlamaBasis
    from exo_inference.planner.resolved_setting import Setting, Stage


class Verdict(StrEnum):
    """Whether it fits."""

    FITS = "fits"
    """Even the pessimistic bound fits."""
    TIGHT = "tight"
    """The optimistic bound fits, the pessimistic one does not."""
    REFUSED = "refused"
    """Not even the optimistic bound fits, or the engine refuses for another reason."""
    UNKNOWN = "unknown"
    """The model cannot be sized."""


_ONE_RANK = Ranks()


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One pipeline stage on one of its GPUs; `available_kv_bytes` is negative where nothing is left."""

    num_layers: int
    weights_bytes: int
    available_kv_bytes: int
    num_kv_blocks: int


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan was worked out from, so that `explain` can show the way to its figures."""

    setting: Setting
    stage: Stage
    speed: SpeedInputs


@dataclass(frozen=True, slots=True)
class Plan:
    """What one deployment would take and give, per GPU.

    Attributes:
        model, gpu, gpu_count: what was planned.
        needed_kv_bytes_per_gpu: for one request of full length.
        available_kv_bytes_per_gpu, _low, _high: with the band around it; negative where weights and
            overheads are already too much.
        kv_capacity_tokens: as the engine prints it.
        max_concurrency: requests of full length at once, of all data-parallel engines together.
        largest_max_model_len: the longest context that fits at the middle of the estimate and that the
            model allows, 0 for none.
        safe_max_model_len: the same at the pessimistic end.
        safe_max_num_seqs: the most requests of a step whose states fit for sure, where the engine checks that
            (`state_blocks.py`); None elsewhere.
        fits_nominally: whether the middle of the band fits.
        stages: all pipeline stages; the other figures are those of the one with least room.
        basis: for `explain`; None where nothing could be sized, and of an engine whose cache has a fixed size.
        fixed_basis: for `explain`, of such an engine.
    """

    model: str
    gpu: str
    gpu_count: int
    parameters: EngineParameters
    verdict: Verdict
    problems: tuple[Problem, ...] = ()
    ranks: Ranks = _ONE_RANK
    components: tuple[Component, ...] = ()
    total_bytes_per_gpu: int = 0
    budget_bytes_per_gpu: int = 0
    weights_bytes_per_gpu: int = 0
    available_kv_bytes_per_gpu: int = 0
    available_kv_bytes_low: int = 0
    available_kv_bytes_high: int = 0
    needed_kv_bytes_per_gpu: int = 0
    kv_bytes_per_token: float = 0.0
    kv_block_size: int = 0
    num_kv_blocks: int = 0
    kv_capacity_tokens: int = 0
    max_concurrency: float = 0.0
    max_model_len: int = 0
    largest_max_model_len: int = 0
    safe_max_model_len: int = 0
    max_num_seqs: int = 0
    max_num_batched_tokens: int = 0
    fits_nominally: bool = False
    safe_max_num_seqs: int | None = None
    stages: tuple[StagePlan, ...] = ()
    speed: Speed | None = None
    usd_per_hour: float | None = None
    notes: tuple[str, ...] = ()
    basis: Basis | None = field(default=None, repr=False, compare=False)
    fixed_basis: LlamaBasis | None = field(default=None, repr=False, compare=False)

    def component(self, name: str) -> Component | None:
        """Return a component by name."""
        return next((each for each in self.components if each.name == name), None)
