"""The scheduler's own record of one request while it is being served.

Only the scheduler changes it; the runner reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from exo_engine.core.request import EngineRequest, TokenLogprobs


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens so far, and how many of them have keys and values in the cache."""

    request: EngineRequest
    arrival: int
    """Counts requests; the order among equal priorities."""
    rank: tuple[int, int]
    """Who goes first: (priority, arrival), or (0, arrival) under fcfs."""
    max_total_tokens: int
    """Prompt plus output may not become longer than this."""
    sampling_key: int
    """64-bit key of the random numbers this request draws."""
    token_ids: list[int] = field(default_factory=list)
    """Prompt, then output."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache had when the request was first admitted."""
    was_admitted: bool = False
    block_hashes: list[bytes] = field(default_factory=list)
    """Memo of `BlockManager.find_prefix`."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Collected over the chunks of the prompt; None once reported or never asked for."""

    @property
    def sequence_id(self) -> str:
        """The request's id, under which the block manager knows the sequence."""
        return self.request.request_id

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_uncomputed(self) -> int:
        """Tokens still to be run through the model before the next one can be chosen."""
        return len(self.token_ids) - self.num_computed


@dataclass(frozen=True, slots=True)
class SampledToken:
    """What the runner answers for one sequence that reached its last token."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    is_valid: bool = True
    """False when the model produced no finite logits."""
