"""Real starts: what was planned for each, and what the engine then measured. All of it is additive.

Answer of `GET /ai/plan/starts`, and the lines of the controller's `plan-starts.jsonl`. Sizes are bytes
of one GPU. None means that it was not predicted, or not measured.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, FiniteFloat, field_validator

from exo_inference.wire.base import WireModel
from exo_inference.wire.plans import PlanVerdict

_MAX_TEXT = 128
_MAX_PHASES = 32

Figure = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of bytes or tokens."""


class StartPrediction(WireModel):
    """The figures of the plan, by their names there; `components` are bytes by name."""

    verdict: PlanVerdict
    weights_bytes_per_gpu: int
    available_kv_bytes_per_gpu: int
    kv_bytes_per_token: float
    kv_block_size: int
    num_kv_blocks: int
    kv_capacity_tokens: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    components: dict[str, int] = Field(default_factory=dict)


class StartMeasurements(WireModel):
    """What the engine measured; the README of exo-engine says what each figure is."""

    simulated: bool = False
    device_name: str | None = None
    dtype: str | None = None
    max_model_len: Figure | None = None
    max_num_seqs: Figure | None = None
    max_num_batched_tokens: Figure | None = None
    weights_bytes: Figure | None = None
    activation_peak_bytes: Figure | None = None
    non_torch_bytes: Figure | None = None
    cuda_graph_bytes: Figure | None = None
    available_kv_bytes: Figure | None = None
    kv_bytes_per_token: Figure | None = None
    kv_block_size: Figure | None = None
    kv_block_bytes: Figure | None = None
    num_kv_blocks: Figure | None = None
    kv_capacity_tokens: Figure | None = None
    device_total_bytes: Figure | None = None
    device_free_bytes: Figure | None = None
    peak_rss_bytes: Figure | None = None
    start_up_seconds: dict[str, FiniteFloat] = Field(default_factory=dict)

    @field_validator("device_name", "dtype")
    @classmethod
    def _cut(cls, text: str | None) -> str | None:
        return None if text is None else text[:_MAX_TEXT]

    @field_validator("start_up_seconds")
    @classmethod
    def _cut_phases(cls, phases: dict[str, float]) -> dict[str, float]:
        return {name[:_MAX_TEXT]: phases[name] for name in list(phases)[:_MAX_PHASES]}


class PlanStart(WireModel):
    """One real start of one replica.

    `engine_version` is the release that ran; `predicted` is null where nothing was known of the
    model or the GPU.
    """

    id: str
    deployment: str
    replica: str
    started_at: str
    engine: str
    engine_version: str
    model: str
    gpu: str
    gpu_type: str
    gpu_count: int
    flags: list[str] = Field(default_factory=list)
    predicted: StartPrediction | None = None
    measured: StartMeasurements


class PlanStartList(WireModel):
    """Answer of `GET /ai/plan/starts`, oldest first."""

    starts: list[PlanStart] = Field(default_factory=list)
