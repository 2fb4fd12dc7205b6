"""Decides which tokens of which sequences the next step computes, and what a step's result means.

There are no phases: every sequence has tokens that are not computed yet (a whole prompt, a chunk of
one, or the one token chosen last), and each step spends one token budget on them. `EngineCore` calls
`schedule`, runs the step, and calls `update`. No torch, no clock.

Invariants that make every request end:

* `_running` is kept in rank order, and only its last member is ever preempted, so the first one
  always moves on.
* A request is refused when it arrives unless it fits into the whole cache on its own.
* Preempted and waiting sequences hold no blocks.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

from exo_engine.config import SchedulingPolicy
from exo_engine.core.block_manager import BlockCopy, BlockManager
from exo_engine.core.request import EngineRequest, EngineStats, FinishReason, RequestOutput
from exo_engine.core.sequence import SampledToken, Sequence
from exo_engine.errors import DuplicateRequest, InternalError, PromptTooLong, RequestError


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """The settings that bound a step and a request."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    policy: SchedulingPolicy = "fcfs"
    enable_chunked_prefill: bool = True
    seed: int = 0
    eos_token_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ScheduledSequence:
    """Tokens [start, end) of one sequence, to be computed in this step."""

    sequence: Sequence
    start: int
    end: int
    block_table: tuple[int, ...]
    copies: tuple[BlockCopy, ...] = ()
    first_seen: int = 0
    """The model sees the sequence from this token on, as if it began there; the block table begins
    there, too. Only simulations see less than all."""

    @property
    def num_tokens(self) -> int:
        """How much of the step's budget this takes."""
        return self.end - self.start

    @property
    def samples(self) -> bool:
        """Whether the step reaches the last token, so that the next one is chosen."""
        return self.end == len(self.sequence.token_ids)


@dataclass(slots=True)
class ScheduledStep:
    """Everything that one step computes."""

    items: dict[str, ScheduledSequence] = field(default_factory=dict)
    """By sequence id."""
    num_tokens: int = 0
    """Tokens in the step."""
    preempted_ids: list[str] = field(default_factory=list)

    def add(self, item: ScheduledSequence) -> None:
        """Take one sequence in."""
        self.items[item.sequence.sequence_id] = item
        self.num_tokens += item.num_tokens

    def drop(self, sequence_id: str) -> None:
        """Take a sequence out again, if it is in."""
        item = self.items.pop(sequence_id, None)
        if item is not None:
            self.num_tokens -= item.num_tokens

    @property
    def copies(self) -> list[BlockCopy]:
        """Block copies to execute before the step writes."""
        return [copy for item in self.items.values() for copy in item.copies]


class Scheduler:
    """Queues of waiting and running sequences over one block manager."""

    def __init__(self, limits: SchedulerLimits, blocks: BlockManager) -> None:
        self.limits = limits
        self.blocks = blocks
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._running: list[Sequence] = []
        self._num_arrivals = 0
        self._num_preemptions = 0
        self._num_prefix_queries = 0
        self._num_prefix_hits = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_steps = 0

    # --- requests -----------------------------------------------------------------------------

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            PromptTooLong: it can never fit, even alone.
            DuplicateRequest: its id is in use.
        """
        if request.request_id in self._sequences:
            raise DuplicateRequest(f"request id {request.request_id!r} is already being served")
        max_total = self._max_total_tokens(request)
        self._num_arrivals += 1
        arrival = self._num_arrivals
        priority = request.priority if self.limits.policy == "priority" else 0
        wants_prompt_logprobs = request.params.prompt_logprobs is not None
        sequence = Sequence(
            request=request,
            arrival=arrival,
            rank=(priority, arrival),
            max_total_tokens=max_total,
            sampling_key=self._sampling_key(request),
            token_ids=list(request.prompt_token_ids),
            prompt_logprobs=[None] * len(request.prompt_token_ids)
            if wants_prompt_logprobs
            else None,
        )
        self._sequences[request.request_id] = sequence
        self._enqueue(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests and their blocks; unknown ids are ignored."""
        for request_id in request_ids:
            sequence = self._sequences.pop(request_id, None)
            if sequence is None:
                continue
            if sequence in self._running:
                self._running.remove(sequence)
                self.blocks.close(request_id)
            else:
                self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
                heapq.heapify(self._waiting)

    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        """Return the counters as they stand."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_blocks=self.blocks.num_blocks,
            num_used_blocks=self.blocks.num_blocks - self.blocks.num_free_blocks,
            block_size=self.blocks.block_size,
            num_preemptions_total=self._num_preemptions,
            prefix_cache_queries_total=self._num_prefix_queries,
            prefix_cache_hits_total=self._num_prefix_hits,
            prompt_tokens_total=self._num_prompt_tokens,
            generation_tokens_total=self._num_generated_tokens,
            num_steps_total=self._num_steps,
        )

    # --- one step -----------------------------------------------------------------------------

    def schedule(self) -> ScheduledStep:
        """Choose what the next step computes and get the blocks for it."""
        step = ScheduledStep()
        self._make_room_for_priority(step)
        # Sequences that only need their next token go first, so that a long prompt does not make
        # the others stutter; rank still decides who gives up blocks.
        decoding = [sequence for sequence in self._running if sequence.num_uncomputed == 1]
        prefilling = [sequence for sequence in self._running if sequence.num_uncomputed > 1]
        for sequence in decoding + prefilling:
            if self.blocks.holds(sequence.sequence_id):  # not preempted meanwhile
                self._schedule_running(sequence, step)
        if not step.preempted_ids:
            self._admit(step)
        return step

    def update(
        self, step: ScheduledStep, sampled: Mapping[str, SampledToken]
    ) -> list[RequestOutput]:
        """Take a step's result in: advance sequences, append tokens, end requests.

        Args:
            step: what `schedule` returned last.
            sampled: the next token of each sequence that reached its end, by sequence id.
        """
        self._num_steps += 1
        outputs = []
        for item in step.items.values():
            sequence = item.sequence
            sequence_id = sequence.sequence_id
            if sequence_id not in self._sequences:  # aborted while the step ran
                continue
            sequence.num_computed = item.end
            self.blocks.commit(sequence_id, sequence.token_ids, item.end)
            if not item.samples:
                continue
            outputs.append(self._append(sequence, sampled[sequence_id]))
        return outputs

    def check_integrity(self) -> None:
        """Raise InternalError when queues and blocks disagree."""
        self.blocks.check_integrity()
        running = {sequence.sequence_id for sequence in self._running}
        waiting = {sequence.sequence_id for _, sequence in self._waiting}
        if running & waiting or running | waiting != set(self._sequences):
            raise InternalError("a request is in no queue, or in two")
        if any(self.blocks.holds(sequence_id) for sequence_id in waiting):
            raise InternalError("a waiting request holds blocks")
        if sorted(self._running, key=lambda s: s.rank) != self._running:
            raise InternalError("running requests are out of order")

    # --- inside a step ------------------------------------------------------------------------

    def _schedule_running(self, sequence: Sequence, step: ScheduledStep) -> None:
        num_tokens = self._affordable(sequence, step)
        if num_tokens == 0:
            return
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        while (
            self.blocks.num_blocks_to_write(sequence.sequence_id, start, end)
            > self.blocks.num_free_blocks
        ):
            victim = self._running[-1]
            if victim is sequence and len(self._running) == 1:
                raise InternalError(
                    f"request {sequence.sequence_id!r} runs alone and does not fit into "
                    f"{self.blocks.num_blocks} blocks"
                )
            self._preempt(victim, step)
            if victim is sequence:
                return
        self._take_in(sequence, start, end, step)

    def _admit(self, step: ScheduledStep) -> None:
        while self._waiting and len(self._running) < self.limits.max_num_seqs:
            sequence = self._waiting[0][1]
            prefix = self._find_prefix(sequence)
            num_cached = min(
                len(prefix) * self.blocks.block_size, len(sequence.token_ids) - 1
            )  # the last token is always computed, it yields the next one
            # Room for all its tokens, not only for this chunk: or it would be preempted half-way.
            # One block more where the last cached block must be copied.
            needed = self.blocks.blocks_for(len(sequence.token_ids)) - len(prefix)
            needed += num_cached < len(prefix) * self.blocks.block_size
            if needed > self.blocks.num_free_after(prefix) and self._running:
                return
            sequence.num_computed = num_cached
            num_tokens = self._affordable(sequence, step)
            if num_tokens == 0:
                sequence.num_computed = 0
                return
            heapq.heappop(self._waiting)
            self.blocks.open(sequence.sequence_id, prefix)
            insort(self._running, sequence, key=lambda s: s.rank)
            if not sequence.was_admitted:
                sequence.was_admitted = True
                sequence.num_cached_tokens = num_cached
                self._num_prefix_queries += sequence.num_prompt_tokens
                self._num_prefix_hits += num_cached
            self._take_in(sequence, num_cached, num_cached + num_tokens, step)

    def _find_prefix(self, sequence: Sequence) -> list[bytes]:
        # Log-probabilities of the prompt need every one of its tokens computed.
        if sequence.prompt_logprobs is not None:
            return []
        return self.blocks.find_prefix(sequence.token_ids, sequence.block_hashes)

    def _affordable(self, sequence: Sequence, step: ScheduledStep) -> int:
        left = self.limits.max_num_batched_tokens - step.num_tokens
        wanted = sequence.num_uncomputed
        if wanted > left and not self.limits.enable_chunked_prefill:
            return 0
        return min(wanted, left)

    def _take_in(self, sequence: Sequence, start: int, end: int, step: ScheduledStep) -> None:
        sequence_id = sequence.sequence_id
        copies = self.blocks.prepare_write(sequence_id, start, end)
        table = tuple(self.blocks.table(sequence_id))
        step.add(ScheduledSequence(sequence, start, end, table, tuple(copies)))

    def _make_room_for_priority(self, step: ScheduledStep) -> None:
        """Preempt sequences that a strictly more urgent waiting one needs the seat or blocks of."""
        while self._waiting and self._running:
            urgent, last = self._waiting[0][1], self._running[-1]
            if urgent.rank[0] >= last.rank[0]:
                return
            needed = self.blocks.blocks_for(len(urgent.token_ids))
            has_seat = len(self._running) < self.limits.max_num_seqs
            if has_seat and needed <= self.blocks.num_free_blocks:
                return
            self._preempt(last, step)
        step.preempted_ids.clear()  # the room made is for the one that waits: do admit

    def _preempt(self, sequence: Sequence, step: ScheduledStep) -> None:
        """Take a sequence's blocks away; it starts over later, from what the prefix cache kept."""
        self._running.remove(sequence)
        self.blocks.close(sequence.sequence_id)
        sequence.num_computed = 0
        step.drop(sequence.sequence_id)
        step.preempted_ids.append(sequence.sequence_id)
        self._num_preemptions += 1
        self._enqueue(sequence)

    def _append(self, sequence: Sequence, token: SampledToken) -> RequestOutput:
        request = sequence.request
        if sequence.num_output_tokens == 0:
            self._num_prompt_tokens += sequence.num_prompt_tokens
        prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        if not token.is_valid:
            self._finish(sequence, is_trusted=False)
            return RequestOutput(request.request_id, finish_reason="error")
        sequence.token_ids.append(token.token_id)
        self._num_generated_tokens += 1
        reason, stop_token_id = self._finish_reason(sequence, token.token_id)
        if reason is not None:
            self._finish(sequence)
        return RequestOutput(
            request_id=request.request_id,
            token_ids=(token.token_id,),
            logprobs=(token.logprobs,) if token.logprobs is not None else None,
            finish_reason=reason,
            num_cached_tokens=sequence.num_cached_tokens,
            stop_token_id=stop_token_id,
            prompt_logprobs=tuple(prompt_logprobs) if prompt_logprobs is not None else None,
        )

    def _finish_reason(
        self, sequence: Sequence, token_id: int
    ) -> tuple[FinishReason | None, int | None]:
        params = sequence.request.params
        if sequence.num_output_tokens >= params.min_tokens:
            is_eos = token_id in self.limits.eos_token_ids and not params.ignore_eos
            if is_eos or token_id in params.stop_token_ids:
                return "stop", token_id
        if len(sequence.token_ids) >= sequence.max_total_tokens:
            return "length", None
        return None, None

    def _finish(self, sequence: Sequence, *, is_trusted: bool = True) -> None:
        del self._sequences[sequence.sequence_id]
        self._running.remove(sequence)
        self.blocks.close(sequence.sequence_id, is_trusted=is_trusted)

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.rank, sequence))

    def _max_total_tokens(self, request: EngineRequest) -> int:
        num_prompt = len(request.prompt_token_ids)
        longest = min(self.limits.max_model_len, self.blocks.num_blocks * self.blocks.block_size)
        if num_prompt == 0:
            raise RequestError("the prompt has no tokens; at least one is needed", param="prompt")
        if num_prompt >= longest:
            raise PromptTooLong(
                f"the prompt has {num_prompt} tokens, but prompt and output together may have at "
                f"most {longest}",
                param="prompt",
                hint="Shorten the prompt, or raise --max-model-len.",
            )
        if request.params.max_tokens is None:
            return longest
        total = num_prompt + request.params.max_tokens
        if total > longest:
            raise PromptTooLong(
                f"the prompt has {num_prompt} tokens and max_tokens is {request.params.max_tokens}, "
                f"together {total}, but at most {longest} are possible",
                param="max_tokens",
                hint=f"Lower max_tokens to {longest - num_prompt} or less, or shorten the prompt.",
            )
        return total

    def _sampling_key(self, request: EngineRequest) -> int:
        if request.params.seed is not None:
            return request.params.seed % 2**64
        material = f"{self.limits.seed}/{request.request_id}".encode()
        return int.from_bytes(blake2b(material, digest_size=8).digest(), "little")
