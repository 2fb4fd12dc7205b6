"""The nouns that cross the border between the server and the engine core.

The server builds `EngineRequest`, the core answers with `RequestOutput` once per step and request,
and `EngineStats` feeds the metrics. Plain frozen data without torch, so that both processes can
import it and a frame on the socket can carry it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from exo_engine.sampling_params import SamplingParams

PREEMPTION_CAUSES = ("cache", "priority", "failed_step")
"""Why a request starts over: blocks ran out, a more urgent one wants its place, or its step has failed."""

PreemptionCause = Literal["cache", "priority", "failed_step"]
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to generate."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    priority: int = 0
    """Lower runs earlier under the `priority` policy; ignored under `fcfs`."""
    cache_salt: str | None = None
    """Only requests with the same salt share blocks in the prefix cache."""
    sibling_of: str | None = None
    """Id of an earlier request with the same prompt and salt, which computes the prompt for both."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely one token was, under the model's own distribution (before temperature)."""

    token_id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens with their log-probabilities, best first."""


NOTHING_LEFT = (
    "the request's parameters (allowed_token_ids, bad_words, min_tokens, which holds back the tokens that end an "
    "answer) together leave no token to choose"
)
"""A `RequestOutput.fault` without a grammar."""


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """What one step added to one request."""

    request_id: str
    token_ids: tuple[int, ...] = ()
    """Tokens new in this step; a final stop token is included."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    """One entry per new token, when the request asked for log-probabilities."""
    finish_reason: FinishReason | None = None
    num_cached_tokens: int = 0
    """Prompt tokens whose keys and values came from the prefix cache."""
    stop_token_id: int | None = None
    """The end-of-sequence or stop token that ended the request, if one did."""
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    """With the first output only, one entry per prompt token; the first has none."""
    pooled: bytes | None = None
    """Of a model that embeds or scores: the text's vector, float32, little-endian."""
    fault: str | None = None
    """With finish_reason "error": what of the request itself cannot be followed."""
    scheduled_at: float | None = None
    """With the first tokens: when the first step with it began, in seconds of the monotonic clock."""
    num_preemptions: int = 0
    """How often it had to start over so far."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot of the core. `*_total` only grow."""

    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    block_size: int = 16
    preemptions_total: Sequence[int] = (0,) * len(PREEMPTION_CAUSES)
    """By `PREEMPTION_CAUSES`."""
    prefix_cache_queries_total: int = 0
    """Prompt tokens looked up in the prefix cache."""
    prefix_cache_hits_total: int = 0
    """Prompt tokens found there."""
    prompt_tokens_total: int = 0
    """Prompt tokens computed or found in the cache."""
    generation_tokens_total: int = 0
    num_steps_total: int = 0
    computed_tokens_total: int = 0
    """Tokens that steps have computed, of prompts and of answers."""
    late_compilations_total: int = 0
    """GPU kernels that were compiled while requests were served; of several ranks by the first one."""

    @property
    def num_preemptions_total(self) -> int:
        """How often requests had to start over, whatever the cause."""
        return sum(self.preemptions_total)

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the KV blocks held by requests, 0 to 1."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0
