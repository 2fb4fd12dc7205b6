"""Plans: what a deployment would take and give, said before it exists. All of it is additive.

Request and answer of `POST /ai/plan`, and the `plan` of a create or update. The command line's
`-O json` prints the same fields in snake_case. Sizes are bytes of one GPU.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, StrictBool, StrictStr

from exo_inference.wire.base import Count, OpenEnum, WireModel
from exo_inference.wire.deployments import ModelRef

MEMORY_CODES = frozenset({"memory", "free-memory"})
"""Codes of the problems that are about memory: an estimate, which `force` overrides."""


class PlanVerdict(OpenEnum):
    """Whether it fits."""

    FITS = "fits"
    TIGHT = "tight"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class PlanProblem(WireModel):
    """Something that is wrong, or worth knowing.

    `refuses` says whether the engine would not start because of it; `location` is a JSON path into
    the request, as in `errors` of a refusal.
    """

    code: str
    detail: str
    refuses: bool = True
    flag: str | None = None
    location: str | None = None


class PlanComponent(WireModel):
    """One part of a GPU's memory, with the band around it and where its formula is from."""

    name: str
    num_bytes: int = Field(alias="bytes")
    low: int
    high: int
    in_budget: bool = True
    source: str = ""


class PlanStage(WireModel):
    """One pipeline stage on one of its GPUs."""

    num_layers: int
    weights_bytes: int
    available_kv_bytes: int
    num_kv_blocks: int


class PromptSpeed(WireModel):
    """Time to first token of one prompt on an idle replica."""

    num_tokens: int
    ttft_seconds: float
    bound_by: str
    ttft_seconds_low: float | None = None
    ttft_seconds_high: float | None = None


class BatchSpeed(WireModel):
    """Decoding `batch` sequences of `context` tokens at once."""

    batch: int
    context: int
    inter_token_seconds: float
    tokens_per_second: float
    bound_by: str
    usd_per_million_tokens: float | None = None
    inter_token_seconds_low: float | None = None
    inter_token_seconds_high: float | None = None


class PlanSpeed(WireModel):
    """The estimate of speed."""

    prompts: list[PromptSpeed]
    batches: list[BatchSpeed]
    number_type: str
    source: str


class PlanAdvice(WireModel):
    """One change, or a pair, that makes it fit; `flags` and `options` can be pasted.

    `flags` are the engine's, `options` the deployment's (`--gpu-type`, `--gpu-count`,
    `--model-name`).
    """

    kinds: list[str]
    flags: list[str] = Field(default_factory=list)
    options: list[str] = Field(default_factory=list)
    effect: str
    quality: str = ""
    usd_per_hour_change: float | None = None
    max_concurrency_change: float = 0.0
    inter_token_seconds_change: float | None = None
    plan: DeploymentPlan | None = None


class PlanImprovement(WireModel):
    """Something that a plan that fits could do better; `parameters` are all of the engine's flags with `flags` among them."""

    kind: str
    text: str
    flags: list[str] = Field(default_factory=list)
    options: list[str] = Field(default_factory=list)
    parameters: list[str] = Field(default_factory=list)


class DeploymentPlan(WireModel):
    """What one replica would take and give. Plans inside `advice` have no advice of their own."""

    verdict: PlanVerdict
    model: str
    gpu: str
    gpu_type: str
    gpu_count: int
    engine: str
    engine_version: str
    parameters: list[str] = Field(default_factory=list)
    problems: list[PlanProblem] = Field(default_factory=list)
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    components: list[PlanComponent] = Field(default_factory=list)
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
    stages: list[PlanStage] = Field(default_factory=list)
    speed: PlanSpeed | None = None
    usd_per_hour: float | None = None
    advice: list[PlanAdvice] = Field(default_factory=list)
    improvements: list[PlanImprovement] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)


class PlanRequest(WireModel):
    """Body of `POST /ai/plan`: the fields of a create, and what only a plan takes.

    The model need not exist here: its name is looked up among the models, then in the bundled
    catalogue, then on the Hub; or `model-config` carries a config.json.
    """

    model: ModelRef | None = None
    model_config_json: dict[str, Any] | None = Field(default=None, alias="model-config")
    gpu_type: StrictStr
    gpu_count: Count = 1
    inference_engine_parameters: list[StrictStr] | None = None
    inference_engine_version: StrictStr | None = None
    inference_engine: StrictStr | None = None
    without_advice: StrictBool | None = None


PlanAdvice.model_rebuild()
