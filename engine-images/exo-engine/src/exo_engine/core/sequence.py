"""The scheduler's own record of one request while it is being served.

Only the scheduler and its slots change it; a runner knows what frames told it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from exo_engine.core.request import EngineRequest, FinishReason, RequestOutput, TokenLogprobs
from exo_engine.core.step import SequenceResult


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens so far, and how many of them have keys and values in the cache.

    What steps that are on their way will do counts as done: their tokens are computed, and those that
    they will yield are pending.
    """

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
    """Prompt, then output, as far as results have come."""
    num_computed: int = 0
    """Leading tokens whose keys and values are in the cache."""
    num_done: int = 0
    """Of those, the ones that no step on its way computes."""
    num_pending: int = 0
    """Tokens that steps on their way may yield, at most."""
    proposed: tuple[int, ...] = ()
    """Guesses of the next tokens, to be computed along with the next one."""
    last_step: int = 0
    """Number of the latest step that the sequence was in."""
    slot: int = -1
    """Where runners keep what they know of it; -1 while it waits."""
    epoch: int = -1
    """Counts those that were ever given a slot; tells results of this one from others."""
    is_new_to_slot: bool = False
    """Whether the next frame must introduce it."""
    num_sent_blocks: int = 0
    """How much of the block tables runners know."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache had when the request was first admitted."""
    was_admitted: bool = False
    scheduled_at: float | None = None
    """When the first step with it began, in seconds of the monotonic clock."""
    num_preemptions: int = 0
    prefix_root: bytes = b""
    """What the hashes of its blocks begin with."""
    leader: Sequence | None = None
    """Another one with the same prompt, which computes it for both; see `Siblings`."""
    block_hashes: list[bytes] = field(default_factory=list)
    """Memo of `BlockManager.find_prefix`."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Collected over the chunks of the prompt; None once reported or never asked for."""

    @property
    def sequence_id(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def table_key(self) -> str:
        """What the block manager knows the sequence by.

        Another request may have this one's id while its blocks are still in use.
        """
        return str(self.arrival)

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def num_tokens(self) -> int:
        """All tokens, the pending ones included."""
        return len(self.token_ids) + self.num_pending

    @property
    def num_uncomputed(self) -> int:
        """Tokens still to be run through the model before the next one can be chosen."""
        return len(self.token_ids) + self.num_pending - self.num_computed

    @property
    def is_undecided(self) -> bool:
        """Whether nothing can be computed for it before results have come.

        Steps on their way may yield its last token, or nobody knows how many tokens.
        """
        is_full = self.num_tokens >= self.max_total_tokens
        return self.num_pending > 1 or (self.num_pending > 0 and is_full)

    def append(
        self, result: SequenceResult, eos_token_ids: frozenset[int]
    ) -> tuple[FinishReason | None, int | None]:
        """Append tokens up to the one that ends the request; return why it did, as `why_finished`."""
        reason, stop_token_id = None, None
        for token_id in result.token_ids:
            self.token_ids.append(token_id)
            reason, stop_token_id = self.why_finished(eos_token_ids)
            if reason == "stop" or (reason is not None and not result.is_ended):
                return reason, stop_token_id
        return ("stop", None) if result.is_ended else (reason, stop_token_id)

    def closing(self, fault: str | None) -> RequestOutput:
        """Return the end of an answer that gets no further token, as its grammar is fulfilled or not."""
        prompt_logprobs = self.prompt_logprobs
        return RequestOutput(
            self.sequence_id,
            finish_reason="stop" if fault is None else "error",
            num_cached_tokens=self.num_cached_tokens,
            scheduled_at=self.scheduled_at,
            num_preemptions=self.num_preemptions,
            prompt_logprobs=None if prompt_logprobs is None else tuple(prompt_logprobs),
            fault=fault,
        )

    def why_finished(self, eos_token_ids: frozenset[int]) -> tuple[FinishReason | None, int | None]:
        """Return whether the last token ends the request, and the stop token if it is one."""
        params, token_id = self.request.params, self.token_ids[-1]
        if self.num_output_tokens >= params.min_tokens:
            is_eos = token_id in eos_token_ids and not params.ignore_eos
            if is_eos or token_id in params.stop_token_ids:
                return "stop", token_id
        if len(self.token_ids) >= self.max_total_tokens:
            return "length", None
        return None, None
