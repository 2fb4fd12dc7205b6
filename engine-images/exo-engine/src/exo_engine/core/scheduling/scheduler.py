"""Decides which tokens of which sequences the next step computes, and what a step's result means.

There are no phases: every sequence has tokens that are not computed yet (a whole prompt, a chunk of
one, or the one token chosen last), and each step spends one token budget on them. `EngineCore` calls
`schedule`, has the step run, and calls `update`. No torch, no clock. Blocks are the block manager's to give, how many
tokens of a prompt a step takes is said in `scheduling/`, and tensors are made by the runner.

Further steps may be scheduled while one is on its way. Then its tokens are pending: they can be
computed, by runners that know them, but nobody here has seen them. Requests may end meanwhile; their
blocks stay taken until no step on its way has them (`_draining`). Nobody is preempted while steps are
on their way: the scheduler stalls, which makes `schedule` return nothing, until they are done.

Invariants that make every request end:

* `_running` is kept in rank order, and only its last member is ever preempted, so the first one
  always moves on.
* A request is refused when it arrives unless it fits into the whole cache on its own.
* Preempted and waiting sequences hold no blocks.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections.abc import Iterable
from collections.abc import Sequence as Seq

from exo_engine.core.arrivals import make_sequence
from exo_engine.core.beginning import Beginning, find_beginning
from exo_engine.core.block_demand import BlockDemand
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.request import (
    PREEMPTION_CAUSES,
    EngineRequest,
    EngineStats,
    PreemptionCause,
    RequestOutput,
)
from exo_engine.core.scheduled import ScheduledSequence, ScheduledStep
from exo_engine.core.scheduling.step_times import StepTimes
from exo_engine.core.scheduling.token_budget import SchedulerLimits, TokenBudget
from exo_engine.core.sequence import Sequence
from exo_engine.core.siblings import Siblings, may_follow
from exo_engine.core.slots import Slots
from exo_engine.core.step import SequenceResult, StepResult
from exo_engine.errors import DuplicateRequest, InternalError

_MAX_PROPOSED = 64
"""Most tokens that can be guessed at once."""


class Scheduler:
    """Queues of waiting and running sequences over one block manager.

    Args:
        limits: the settings.
        blocks: the cache's blocks.
        times: told how long steps took, where prompts should give way to answers in progress.
    """

    def __init__(
        self, limits: SchedulerLimits, blocks: BlockManager, times: StepTimes | None = None
    ) -> None:
        self.limits = limits
        self.blocks = blocks
        self.times = times
        self.budget = TokenBudget(limits, blocks, times)
        self._demand = BlockDemand(blocks.reaches, blocks.block_size, limits.max_num_batched_tokens)
        self._sequences: dict[str, Sequence] = {}
        self._waiting: list[tuple[tuple[int, int], Sequence]] = []
        self._running: list[Sequence] = []
        self._siblings = Siblings()
        self._slots = Slots(limits.max_num_seqs, blocks)
        # Tables of requests that ended while a step with them, of that number, was on its way.
        self._draining: list[tuple[int, str]] = []
        self._is_stalled = False
        self._num_scheduled_steps = 0
        self._num_arrivals = 0
        self._num_preemptions = dict.fromkeys(PREEMPTION_CAUSES, 0)
        self._num_prefix_queries = 0
        self._num_prefix_hits = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_computed_tokens = 0
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
        longest = min(self.limits.max_model_len, self._demand.longest(self.blocks.num_blocks))
        sequence = make_sequence(
            request,
            arrival=self._num_arrivals + 1,
            longest=longest,
            seed=self.limits.seed,
            has_priority=self.limits.policy == "priority",
        )
        self._num_arrivals += 1
        leader = self._sequences.get(request.sibling_of or "")
        sequence.leader = leader if may_follow(leader, sequence) else None
        self._sequences[request.request_id] = sequence
        if not self._siblings.hold(sequence):
            self._enqueue(sequence)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop requests and their blocks; unknown ids are ignored."""
        for request_id in request_ids:
            sequence = self._sequences.pop(request_id, None)
            if sequence is None:
                continue
            self._release_siblings(sequence)
            if sequence in self._running:
                self._leave(sequence)
            elif not self._siblings.drop(sequence):
                self._waiting = [entry for entry in self._waiting if entry[1] is not sequence]
                heapq.heapify(self._waiting)

    def has_unfinished(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._sequences)

    def stats(self) -> EngineStats:
        """Return the counters as they stand."""
        return EngineStats(
            num_running=len(self._running),
            num_waiting=len(self._waiting) + len(self._siblings),
            num_blocks=self.blocks.num_blocks,
            num_used_blocks=self.blocks.num_blocks - self.blocks.num_free_blocks,
            block_size=self.blocks.block_size,
            preemptions_total=tuple(self._num_preemptions.values()),
            prefix_cache_queries_total=self._num_prefix_queries,
            prefix_cache_hits_total=self._num_prefix_hits,
            prompt_tokens_total=self._num_prompt_tokens,
            generation_tokens_total=self._num_generated_tokens,
            num_steps_total=self._num_steps,
            computed_tokens_total=self._num_computed_tokens,
        )

    # --- one step -----------------------------------------------------------------------------

    @property
    def num_steps_on_their_way(self) -> int:
        """Steps that were scheduled and have no result yet."""
        return self._num_scheduled_steps - self._num_steps

    def propose(self, request_id: str, token_ids: Seq[int]) -> None:
        """Guess a running request's next tokens.

        They are computed along with its next token as far as there is room, and those that the model
        agrees with are kept. Nothing happens if the request is not about to be given its next token,
        or if the model has states, which nothing can be taken back from.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.slot < 0 or sequence.num_pending > 0:
            return
        if self.blocks.has_states:
            return
        if sequence.num_uncomputed == 1:
            room = sequence.max_total_tokens - sequence.num_tokens - 1
            sequence.proposed = tuple(token_ids[: min(room, _MAX_PROPOSED)])

    def schedule(self) -> ScheduledStep:
        """Choose what the next step computes and get the blocks for it.

        A step with items must be run, and its result given to `update`, in order.
        """
        step = ScheduledStep(self._num_scheduled_steps + 1)
        self._is_stalled = self._is_stalled and self.num_steps_on_their_way > 0
        self._make_room_for_priority(step)
        # Sequences that only need their next token go first, so that a long prompt does not make
        # the others stutter; rank still decides who gives up blocks.
        decoding = [sequence for sequence in self._running if sequence.num_uncomputed == 1]
        prefilling = [sequence for sequence in self._running if sequence.num_uncomputed > 1]
        self.budget.begin(len(prefilling) + len(self._waiting))
        for sequence in decoding + prefilling:
            if self._is_stalled:
                break
            if sequence.slot >= 0 and not sequence.is_undecided:  # not preempted meanwhile
                self._schedule_running(sequence, step)
        if not step.preempted_ids and not self._is_stalled:
            self._admit(step)
        if step.items:
            self._num_scheduled_steps += 1
            step.frame = self._slots.frame(step)
        return step

    def update(self, step: ScheduledStep, result: StepResult) -> list[RequestOutput]:
        """Take a step's result in: append tokens, take back what was not confirmed, end requests.

        Args:
            step: what `schedule` returned; steps come in that order.
            result: what the runner gave for its frame.
        """
        self._num_steps += 1
        self._num_computed_tokens += step.num_tokens
        outputs = []
        for item, each in zip(step.items.values(), result.sequences, strict=True):
            sequence = item.sequence
            if sequence.epoch != item.epoch:  # it ended, or was preempted, while the step ran
                continue
            if each.epoch != item.epoch:
                raise InternalError(
                    f"a runner answered for epoch {each.epoch} of slot {sequence.slot}, but epoch "
                    f"{item.epoch} was in the step"
                )
            output = self._advance(item, each)
            if output is not None:
                outputs.append(output)
        self._drain()
        return outputs

    def abandon(self) -> None:
        """Give up all steps that are on their way: who was in them starts over."""
        in_step = [s for s in self._running if s.last_step > self._num_steps]
        self._num_steps = self._num_scheduled_steps
        for sequence in reversed(in_step):
            self._preempt(sequence, ScheduledStep(0), "failed_step")
        self._drain()

    def check_integrity(self) -> None:
        """Raise InternalError when queues and blocks disagree."""
        self.blocks.check_integrity()
        running = {sequence.sequence_id for sequence in self._running}
        waiting_ids = [sequence.sequence_id for _, sequence in self._waiting]
        all_ids = [*running, *waiting_ids, *self._siblings.names()]
        if sorted(all_ids) != sorted(self._sequences):
            raise InternalError("a request is in no queue, or in two")
        if any(self.blocks.holds(sequence.table_key) for _, sequence in self._waiting):
            raise InternalError("a waiting request holds blocks")
        if len({sequence.slot for sequence in self._running} - {-1}) != len(self._running):
            raise InternalError("a running request has no slot, or shares one")
        if sorted(self._running, key=lambda s: s.rank) != self._running:
            raise InternalError("running requests are out of order")

    # --- inside a step ------------------------------------------------------------------------

    def _schedule_running(self, sequence: Sequence, step: ScheduledStep) -> None:
        num_tokens = self.budget.affordable(sequence, step)
        if num_tokens == 0:
            return
        start, end = sequence.num_computed, sequence.num_computed + num_tokens
        key, blocks, done = sequence.table_key, self.blocks, sequence.num_done
        is_ready = blocks.is_ready(key, start, end)
        while (
            not is_ready
            and blocks.num_blocks_to_write(key, start, end, num_done=done) > blocks.num_free_blocks
        ):
            if self.num_steps_on_their_way > 0:
                self._is_stalled = True
                return
            victim = self._running[-1]
            if victim is sequence and len(self._running) == 1:
                raise InternalError(
                    f"request {sequence.sequence_id!r} runs alone and does not fit into "
                    f"{self.blocks.num_blocks} blocks"
                )
            self._preempt(victim, step, "cache")
            if victim is sequence:
                return
        self._take_in(sequence, start, end, step, is_ready)

    def _admit(self, step: ScheduledStep) -> None:
        passed_over = []
        while self._waiting and len(self._running) < self.limits.max_num_seqs:
            if self.budget.must_wait(self._waiting[0][1], self._running):
                passed_over.append(heapq.heappop(self._waiting))
            elif not self._admit_first(step):
                break
        for entry in passed_over:
            heapq.heappush(self._waiting, entry)

    def _admit_first(self, step: ScheduledStep) -> bool:
        sequence = self._waiting[0][1]
        beginning = find_beginning(sequence, self.blocks, self._demand)
        is_alone = not self._running and not self._draining
        if beginning.num_missing > beginning.num_free and not is_alone:
            return False
        num_cached = beginning.num_computed
        sequence.num_computed = sequence.num_done = num_cached
        num_tokens = self.budget.affordable(sequence, step)
        is_partial = num_tokens < sequence.num_uncomputed
        if num_tokens == 0 or (is_partial and not self.budget.may_be_left(self._running)):
            sequence.num_computed = sequence.num_done = 0
            return False
        heapq.heappop(self._waiting)
        beginning.open(sequence, self.blocks)
        self._slots.take(sequence)
        insort(self._running, sequence, key=lambda s: s.rank)
        if not sequence.was_admitted:
            step.admitted.append(sequence)
        self._count_admitted(sequence, beginning)
        self._take_in(sequence, num_cached, num_cached + num_tokens, step)
        return True

    def _count_admitted(self, sequence: Sequence, beginning: Beginning) -> None:
        if sequence.was_admitted:
            return
        sequence.was_admitted = True
        if beginning.source is not None:  # it is one prompt, which counted once
            sequence.num_cached_tokens = beginning.source.num_cached_tokens
            return
        sequence.num_cached_tokens = beginning.num_computed
        self._num_prefix_queries += sequence.num_prompt_tokens
        self._num_prefix_hits += beginning.num_computed

    def _take_in(
        self, sequence: Sequence, start: int, end: int, step: ScheduledStep, is_ready: bool = False
    ) -> None:
        """Put tokens into a step; `is_ready` where they can be written without preparing anything."""
        key, num_done = sequence.table_key, sequence.num_done
        copies = () if is_ready else self.blocks.prepare_write(key, start, end, num_done=num_done)
        num_samples = max(0, end - sequence.num_tokens + 1)
        sequence.num_computed = end
        sequence.num_pending += num_samples
        sequence.last_step = step.number
        step.add(
            ScheduledSequence(sequence, start, end, num_samples, sequence.epoch, tuple(copies))
        )

    def _make_room_for_priority(self, step: ScheduledStep) -> None:
        """Preempt sequences that a strictly more urgent waiting one needs the seat or blocks of."""
        while self._waiting and self._running:
            urgent, last = self._waiting[0][1], self._running[-1]
            if urgent.rank[0] >= last.rank[0]:
                return
            needed = self._demand.most_blocks(len(urgent.token_ids))
            has_seat = len(self._running) < self.limits.max_num_seqs
            if has_seat and needed <= self.blocks.num_free_blocks:
                return
            if self.num_steps_on_their_way > 0:
                self._is_stalled = True
                return
            self._preempt(last, step, "priority")
        step.preempted_ids.clear()  # the room made is for the one that waits: do admit

    def _preempt(self, sequence: Sequence, step: ScheduledStep, cause: PreemptionCause) -> None:
        """Take a sequence's blocks away; it starts over later, from what the prefix cache kept.

        No step with it is on its way.
        """
        self._running.remove(sequence)
        self._slots.give_back(sequence)
        self.blocks.close(sequence.table_key)
        sequence.num_computed = sequence.num_done = sequence.num_pending = 0
        sequence.proposed = ()
        step.drop(sequence.sequence_id)
        step.preempted_ids.append(sequence.sequence_id)
        self._num_preemptions[cause] += 1
        sequence.num_preemptions += 1
        self._enqueue(sequence)

    def _advance(self, item: ScheduledSequence, result: SequenceResult) -> RequestOutput | None:
        """Move a sequence on by what a step gave for it; return what its caller gets."""
        sequence = item.sequence
        self._keep_prompt_logprobs(item, result)
        sequence.num_done = item.end
        if item.num_samples == 0:
            self.blocks.commit(sequence.table_key, sequence.token_ids, item.end)
            return None
        sequence.num_pending -= item.num_samples
        sequence.proposed = ()
        if sequence.num_output_tokens == 0:
            self._num_prompt_tokens += sequence.num_prompt_tokens
        if not result.is_valid:
            self._finish(sequence, is_trusted=False)
            return RequestOutput(sequence.sequence_id, finish_reason="error")
        if result.fault is not None or (result.is_ended and not result.token_ids):
            self._finish(sequence)
            return sequence.closing(result.fault)
        num_tokens = len(result.token_ids)
        if not 1 <= num_tokens <= item.num_samples:
            raise InternalError(
                f"a runner gave {num_tokens} tokens where 1 to {item.num_samples} were asked for"
            )
        # Guesses that the model did not agree with are taken back.
        num_taken_back = item.num_samples - num_tokens
        sequence.num_computed -= num_taken_back
        sequence.num_done -= num_taken_back
        return self._append(sequence, result, item.end - num_taken_back)

    def _keep_prompt_logprobs(self, item: ScheduledSequence, result: SequenceResult) -> None:
        collected = item.sequence.prompt_logprobs
        if collected is not None:
            first = item.start + 1
            collected[first : first + len(result.prompt_logprobs)] = result.prompt_logprobs

    def _append(
        self, sequence: Sequence, result: SequenceResult, num_computed: int
    ) -> RequestOutput:
        """Append tokens up to the one that ends the request."""
        num_before = len(sequence.token_ids)
        is_first = num_before == sequence.num_prompt_tokens
        self._release_siblings(sequence)
        reason, stop_token_id = sequence.append(result, self.limits.eos_token_ids)
        new = tuple(sequence.token_ids[num_before:])
        self._num_generated_tokens += len(new)
        num_known = min(num_computed, len(sequence.token_ids))
        self.blocks.commit(sequence.table_key, sequence.token_ids, num_known)
        prompt_logprobs, sequence.prompt_logprobs = sequence.prompt_logprobs, None
        if reason is not None:
            self._finish(sequence)
        return RequestOutput(
            request_id=sequence.sequence_id,
            token_ids=new,
            logprobs=result.logprobs[: len(new)] if result.logprobs is not None else None,
            finish_reason=reason,
            num_cached_tokens=sequence.num_cached_tokens,
            scheduled_at=sequence.scheduled_at if is_first else None,
            num_preemptions=sequence.num_preemptions,
            stop_token_id=stop_token_id,
            prompt_logprobs=tuple(prompt_logprobs) if prompt_logprobs is not None else None,
        )

    def _finish(self, sequence: Sequence, *, is_trusted: bool = True) -> None:
        del self._sequences[sequence.sequence_id]
        self._release_siblings(sequence)
        if not is_trusted:
            self.blocks.distrust(sequence.table_key)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Take a sequence out of the running ones, and its blocks once no step needs them."""
        self._running.remove(sequence)
        self._slots.give_back(sequence)
        self._draining.append((sequence.last_step, sequence.table_key))
        self._drain()

    def _drain(self) -> None:
        done = [key for number, key in self._draining if number <= self._num_steps]
        if done:
            self._draining = [each for each in self._draining if each[0] > self._num_steps]
        for key in done:
            self.blocks.close(key)

    def _release_siblings(self, leader: Sequence) -> None:
        for sequence in self._siblings.release(leader):
            self._enqueue(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.rank, sequence))
