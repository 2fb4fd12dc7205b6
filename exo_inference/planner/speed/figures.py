"""What an estimate of speed says."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "roofline with what published runs reach of the GPU, and their floors per layer and step"


@dataclass(frozen=True, slots=True)
class PromptSpeed:
    """Time to first token of one prompt on an idle server."""

    num_tokens: int
    ttft_seconds: float
    bound_by: str
    ttft_seconds_low: float
    ttft_seconds_high: float


@dataclass(frozen=True, slots=True)
class BatchSpeed:
    """Decoding `batch` sequences of `context` tokens at once."""

    batch: int
    context: int
    inter_token_seconds: float
    tokens_per_second: float
    bound_by: str
    usd_per_million_tokens: float | None
    inter_token_seconds_low: float
    inter_token_seconds_high: float


@dataclass(frozen=True, slots=True)
class Speed:
    """The estimate."""

    prompts: tuple[PromptSpeed, ...]
    batches: tuple[BatchSpeed, ...]
    number_type: str
    source: str = SOURCE
