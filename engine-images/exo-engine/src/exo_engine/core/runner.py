"""Computes steps: frames in, tensors through the model, tokens out.

An executor owns one; it is the only part of the core that touches tensors. What it knows of requests
is what frames have told it (`Batch`).

Legend: T tokens in step, S sequences in step, N rows that need logits, E hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from exo_engine.attention import create_backend
from exo_engine.attention.base import AttentionBackend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layout import StepArrays, make_inputs
from exo_engine.attention.rehearsal import lengths_up_to, step_of_nobody
from exo_engine.attention.states import States
from exo_engine.core.batch import Batch, BatchInputs, Indices
from exo_engine.core.block_manager import BlockCopy
from exo_engine.core.choices import Answer, TokenChoice, Verified
from exo_engine.core.executor import Pending
from exo_engine.core.graphs.decode_graphs import Decoded, DecodeGraphs
from exo_engine.core.graphs.device import DeviceOps, device_ops
from exo_engine.core.request import TokenLogprobs
from exo_engine.core.step import AddedSequence, Ints, SequenceResult, StepFrame, StepResult
from exo_engine.errors import OutOfMemory
from exo_engine.kernels.uploads import to_device
from exo_engine.models.decoder import Decoder
from exo_engine.sampling.draws import Ways
from exo_engine.sampling.draws import choose as choose_rows
from exo_engine.sampling.logprobs import gather_logprobs
from exo_engine.sampling.sampler import Samples, sample, unpack
from exo_engine.sampling.state import SamplingState, StepPlan
from exo_engine.structured_output.states import GrammarStates

# Rows of float32 logits held at once for prompt log-probabilities.
_MAX_LOGIT_ROWS = 256


class ModelRunner:
    """A model, its KV cache and its attention backend on one device.

    Args:
        decoder: the model.
        cache: keys and values, of all sequences.
        attention_backend: a name of `attention.BACKENDS`.
        eos_token_ids: tokens that may not come before a request's `min_tokens`.
        num_slots: most sequences at once.
        ops: of the device; None: those that it has.
        is_fixed: whether attention's bits for a token may not depend on the tokens beside it.
        agree: returns the first rank's numbers in place of this one's; None: there is one rank.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        attention_backend: str,
        eos_token_ids: tuple[int, ...],
        num_slots: int,
        ops: DeviceOps | None = None,
        is_fixed: bool = False,
        agree: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._decoder = decoder
        self._agree = agree
        self._ops = device_ops(decoder.device) if ops is None else ops
        decoder.note_layer = self._ops.note_layer
        self._graphs: DecodeGraphs | None = None
        self.graph_bytes = 0
        """Of the device's memory, with what they read and write."""
        self._num_slots = num_slots
        self._cache = cache
        self._device = decoder.device
        self._attention = create_backend(
            attention_backend, decoder.spec.attention_layers, cache, is_fixed=is_fixed
        )
        self._attention.states = States(cache)
        self._batch = Batch(num_slots, num_groups=cache.num_groups, block_size=cache.block_size)
        vocab_size = decoder.spec.vocab_size
        self._sampling = SamplingState(num_slots, vocab_size, self._device)
        self.grammars = GrammarStates(num_slots, vocab_size, self._device)
        # The last token that was chosen in each slot, for the step that follows at once.
        # The place behind them is nobody's: captured steps have it for what fills them up.
        self._chosen = torch.zeros(num_slots + 1, dtype=torch.int32, device=self._device)
        # Some configurations name a token that the vocabulary does not have.
        self._eos_token_ids = tuple(i for i in eos_token_ids if 0 <= i < vocab_size)

    def take_scratch(self) -> None:
        """Take and give back as much memory as attention may need, so that a peak includes it."""
        torch.empty(self._attention.scratch_bytes(), dtype=torch.uint8, device=self._device)

    @property
    def attention(self) -> AttentionBackend:
        """What computes attention."""
        return self._attention

    @torch.inference_mode()
    def compile_ahead(self, max_tokens: int, max_context: int) -> None:
        """Launch each kind of kernel that a step may need, for nobody, while no request waits for its compilation.

        Args:
            max_tokens: of a step.
            max_context: most tokens of a sequence.
        """
        self._attention.compile_ahead(self._num_slots, max_context)
        if not self._attention.can_be_captured or self._cache.has_states:
            return  # no kernels that are compiled; or a step has to know its sequences
        for num_tokens in lengths_up_to(max_tokens):
            zeros = torch.zeros(num_tokens, dtype=torch.int32, device=self._device)
            layout = step_of_nobody(
                num_tokens, 1, num_groups=self._cache.num_groups, device=self._device
            )
            self._attention.begin(layout)
            hidden = self._decoder.forward(zeros, zeros, self._attention)
            self._decoder.logits(hidden[: self._num_slots])

    @property
    def can_capture_graphs(self) -> bool:
        """Whether model and device can repeat steps of single tokens."""
        return DecodeGraphs.can_serve(self._decoder, self._attention, self._cache, self._ops)

    def capture_graphs(self, max_context: int, tokens_each: Sequence[int] = (1,)) -> None:
        """Have steps of few tokens per sequence repeated from graphs.

        Args:
            max_context: most tokens of a sequence.
            tokens_each: tokens of each sequence in a step; k + 1 where k guesses are verified.
        """
        before = self._ops.used_bytes()
        self._graphs = self._make_graphs(max_context, tokens_each)
        self._graphs.capture()
        self.graph_bytes = max(0, self._ops.used_bytes() - before)

    def rehearse_graphs(self, max_context: int, tokens_each: Sequence[int] = (1,)) -> int:
        """Return how many bytes `capture_graphs` of the same will take, as far as few graphs tell, which are let go."""
        before = self._ops.used_bytes()
        graphs = self._make_graphs(max_context, tokens_each)
        buffers = max(0, self._ops.used_bytes() - before)
        return buffers + graphs.rehearse()

    def _make_graphs(self, max_context: int, tokens_each: Sequence[int]) -> DecodeGraphs:
        return DecodeGraphs(
            self._decoder,
            self._attention,
            self._cache,
            self._ops,
            self._chosen,
            max_num_seqs=self._num_slots,
            max_context=max_context,
            tokens_each=tokens_each,
        )

    def dispatch(self, frame: StepFrame) -> Pending:
        """See `StepRunner.dispatch`."""
        try:
            return self._dispatch(frame)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"computing a step of {frame.total_tokens} tokens ran out of memory on the "
                f"{self._device.type} device",
                hint="Lower --gpu-memory-utilization or --max-num-batched-tokens.",
            ) from exc

    @torch.inference_mode()
    def _dispatch(self, frame: StepFrame) -> Pending:
        self._apply(frame)
        copies = frame.copies[0].reshape(-1, 2).tolist()
        self._cache.copy_blocks([BlockCopy(*pair) for pair in copies])
        inputs = self._batch.inputs(frame)
        scored: dict[int, list[TokenLogprobs]] = {}
        num_samples = frame.num_samples[inputs.order].astype(np.int32)
        decoded = self._decode(inputs)
        choices: list[TokenChoice | Verified]
        if decoded is None:
            hidden = self._forward(inputs)
            scored = self._score_prompts(frame, inputs, hidden)
            logits_of = partial(self._logits_of, hidden)
            choices = list(self._choose(num_samples, inputs, inputs.query_starts[1:], logits_of))
        else:
            choices = list(self._choose_decoded(num_samples, inputs, decoded))
        epochs = self._batch.epochs[inputs.slots]

        @torch.inference_mode()
        def wait() -> StepResult:
            found = self._collect(inputs, epochs, choices, scored)
            return StepResult(tuple(found[row] for row in np.argsort(inputs.order)))

        return wait

    def _apply(self, frame: StepFrame) -> None:
        """Take in what has changed."""
        self._batch.apply(frame)
        for slot in {*frame.removed.tolist(), *(added.slot for added in frame.added)}:
            self._sampling.remove(slot)
            self.grammars.remove(slot)
        for added in frame.added:
            self._add(added)

    def _add(self, added: AddedSequence) -> None:
        self._sampling.add(
            added.slot,
            added.params,
            key=added.sampling_key,
            prompt_ids=added.token_ids[: added.num_prompt_tokens].tolist(),
            output_ids=added.token_ids[added.num_prompt_tokens :].tolist(),
            stop_token_ids=(*self._eos_token_ids, *added.params.stop_token_ids),
        )
        if added.params.structured_outputs is not None:
            output_ids = added.token_ids[added.num_prompt_tokens :].tolist()
            self.grammars.add(added.slot, added.params.structured_outputs, output_ids)

    def _forward(self, batch: BatchInputs) -> Tensor:
        """Run the step's tokens through the model: (T, E)."""
        arrays = StepArrays(batch.query_starts, batch.context_lens, batch.block_tables)
        clears = self._attention.needs_cleared_blocks
        inputs = make_inputs(
            batch.token_ids, arrays, block_size=self._cache.block_size, device=self._device, finds_fresh=clears
        )  # fmt: skip
        if batch.unknown_rows.size:
            chosen = self._chosen[self._to_device(batch.unknown_slots)]
            inputs.token_ids[self._to_device(batch.unknown_rows)] = chosen
        if clears:
            self._cache.clear(inputs.layout.fresh_blocks)
        self._attention.begin(inputs.layout)
        self._attention.states.begin(inputs.layout)
        return self._decoder.forward(inputs.token_ids, inputs.positions, self._attention)

    def _decode(self, inputs: BatchInputs) -> Decoded | None:
        """Compute a step of few tokens per sequence by a graph; None where that cannot be."""
        if self._graphs is None or self._batch.is_prompt_scored[inputs.slots].any():
            return None
        place = self._graphs.find(inputs)
        return None if place is None else self._graphs.run(place, inputs)

    def _logits_of(self, hidden: Tensor, rows: Tensor) -> Tensor:
        return self._decoder.logits(hidden.index_select(0, rows))

    def _choose_decoded(
        self, num_samples: Ints, inputs: BatchInputs, decoded: Decoded
    ) -> Iterator[TokenChoice | Verified]:
        """Choose tokens for the sequences of a step that a graph has computed."""
        slots, each = inputs.slots, decoded.tokens_each
        plan = self._sampling.plan(slots)
        is_at_once = bool(num_samples.all())
        if each > 1:  # what was chosen before changes no logits, and there are no reports of them
            is_at_once &= plan.reported is None and not plan.adjusts
            is_at_once &= not self.grammars.has_any(slots)
        if not is_at_once:
            ends = each * np.arange(1, len(slots) + 1, dtype=np.int32)
            yield from self._choose(num_samples, inputs, ends, decoded.logits.__getitem__)
        elif each > 1:
            yield self._verify(num_samples, inputs, decoded, plan)
        else:
            masks = self.grammars.masks(slots)
            if plan.is_greedy and masks is None:
                samples = Samples(decoded.tokens, decoded.is_valid, decoded.is_valid)
            else:
                samples = sample(
                    decoded.logits, self._sampling, slots, masks, self._choose_by_graph
                )
                self._chosen.index_copy_(0, decoded.owners, samples.tokens.int())
            yield self._note(np.arange(len(slots)), slots, samples)

    def _choose_by_graph(
        self, plan: StepPlan, ahead: Indices | None = None
    ) -> tuple[Tensor, Tensor] | None:
        """Choose from the logits of a graph as they are now; None where no graph does.

        `ahead`: see `SamplingState.table`.
        """
        assert self._graphs is not None, "one of them has run"
        ways = Ways(0) if plan.draws is None else plan.draws.ways
        if not self._graphs.choices.can_choose(ways):
            return None
        table = self._sampling.table(plan, ahead)
        num_rows = len(plan.slots) * (1 if ahead is None else ahead.shape[1])
        return self._graphs.choices.choose(num_rows, table, ways)

    def _verify(
        self, num_samples: Ints, inputs: BatchInputs, decoded: Decoded, plan: StepPlan
    ) -> Verified:
        """Choose at all places of all sequences at once; which guesses hold is seen when the tokens are here."""
        each = decoded.tokens_each
        tokens, is_finite = decoded.tokens, decoded.is_valid
        # How many draws come before those of each row: its places are the last ones.
        ahead = (np.arange(each) - each + num_samples[:, None]).astype(np.int64).clip(0)
        table = self._sampling.table(plan, ahead)
        if plan.draws is not None and table is not None:
            found = self._choose_by_graph(plan, ahead)
            if found is None:
                found = choose_rows(decoded.logits, self._to_device(table), plan.draws.ways)
            tokens, is_finite = found
        # Of a sequence with guesses it may be another one, which is known before its next step.
        last = tokens.view(-1, each)[:, -1]
        self._chosen.index_copy_(0, decoded.owners, last.int())
        samples = Samples(tokens, is_finite, is_finite)
        first = self._note(np.arange(len(plan.slots)), plan.slots, samples, last)
        return Verified(first, num_samples, inputs.token_ids, inputs.query_starts[1:], each)

    def _note(
        self, members: Indices, slots: Indices, samples: Samples, last: Tensor | None = None
    ) -> TokenChoice:
        """Take in what was chosen, and begin to bring it to the host.

        `last`: the token of each slot (N,), where the samples have several.
        """
        self._sampling.append(slots, samples.tokens if last is None else last)
        self._batch.expect(slots)
        grammars = self.grammars.note(slots, samples)
        places = self._batch.num_tokens[slots] - 1
        return TokenChoice(members, places, samples, self._ops.fetch(samples.packed), grammars)

    def _choose(
        self,
        num_samples: Ints,
        inputs: BatchInputs,
        ends: Ints,
        logits_of: Callable[[Tensor], Tensor],
    ) -> Iterator[TokenChoice]:
        """Choose tokens: one for each sequence, and on from guesses as long as these were right.

        Args:
            num_samples: how many each sequence may yield.
            inputs: the step.
            ends: behind which row of the step's logits those of each sequence end.
            logits_of: gives rows of them.
        """
        members = np.flatnonzero(num_samples)
        depth = 0
        while members.size:
            rows = ends[members] - num_samples[members] + depth
            slots = inputs.slots[members]
            logits = logits_of(self._to_device(rows))
            samples = sample(logits, self._sampling, slots, self.grammars.masks(slots))
            if self._agree is not None:
                samples = replace(samples, tokens=self._agree(samples.tokens))
            self._chosen[self._to_device(slots)] = samples.tokens.int()
            yield self._note(members, slots, samples)
            depth += 1
            is_guessed = num_samples[members] > depth
            members = members[is_guessed]
            if members.size:
                tokens = samples.tokens.cpu().numpy()[is_guessed]
                guesses = inputs.query_starts[1:][members] - num_samples[members] + depth
                members = members[inputs.token_ids[guesses] == tokens]

    def _collect(
        self,
        inputs: BatchInputs,
        epochs: Indices,
        choices: list[TokenChoice | Verified],
        scored: dict[int, list[TokenLogprobs]],
    ) -> list[SequenceResult]:
        """Bring what was chosen to the host; return the result of each row.

        The only loop over sequences of a step: answers and their reports are objects of each one's own.
        """
        answers = [Answer() for _ in inputs.slots]
        for choice in self._followed(choices, inputs.slots, epochs):
            if choice.grammars is not None and not choice.grammars.is_settled:
                self.grammars.settle()
            rows, packed = choice.members, np.array(choice.fetched(), dtype=np.int64)
            token_ids, are_valid, are_finite = unpack(packed[: len(rows)])
            reports = choice.samples.reports(packed[len(rows) :])
            self._batch.fill(inputs.slots[rows], epochs[rows], choice.places, token_ids)
            found = zip(are_valid.tolist(), are_finite.tolist(), strict=True)
            chosen = zip(rows.tolist(), token_ids.tolist(), found, strict=True)
            for index, (row, token_id, is_good) in enumerate(chosen):
                answer = answers[row]
                if answer.is_going_on and not answer.stops(choice.grammars, index, *is_good):
                    answer.token_ids.append(token_id)
                    if index in reports:
                        answer.logprobs.append(reports[index])
        return [
            answer.result(slot, epoch, tuple(scored.get(slot, ())))
            for answer, slot, epoch in zip(
                answers, inputs.slots.tolist(), epochs.tolist(), strict=True
            )
        ]

    def _followed(
        self, choices: list[TokenChoice | Verified], slots: Indices, epochs: Indices
    ) -> Iterator[TokenChoice]:
        """Yield choices of one token each; count those behind guesses that were right."""
        for choice in choices:
            if isinstance(choice, TokenChoice):
                yield choice
                continue
            for depth, each in enumerate(choice.follow()):
                if depth:
                    own = slots[each.members]
                    own = own[self._batch.epochs[own] == epochs[each.members]]
                    self._batch.expect(own)
                    self._sampling.num_outputs[own] += 1
                yield each

    def _to_device(self, values: NDArray[Any]) -> Tensor:
        return to_device(values, self._device)

    def _score_prompts(
        self, frame: StepFrame, inputs: BatchInputs, hidden: Tensor
    ) -> dict[int, list[TokenLogprobs]]:
        """Report on the prompt tokens that follow the ones just computed, where that is wanted."""
        is_wanted = self._batch.is_prompt_scored[inputs.slots]
        reports: dict[int, list[TokenLogprobs]] = {}
        for member in np.flatnonzero(is_wanted).tolist():
            slot = int(inputs.slots[member])
            rows = slice(inputs.query_starts[member], inputs.query_starts[member + 1])
            reports[slot] = self._score(slot, int(frame.starts[inputs.order[member]]), hidden[rows])
        return reports

    def _score(self, slot: int, start: int, hidden: Tensor) -> list[TokenLogprobs]:
        """Report on the prompt tokens from `start` + 1, by the hidden states (T, E) before them."""
        params = self._batch.params[slot]
        assert params is not None, "a sequence is in the slot"
        num_top = params.prompt_logprobs or 0
        prompt = self._batch.token_ids(slot)[: self._batch.num_prompt_tokens[slot]].tolist()
        followers = prompt[start + 1 : start + 1 + len(hidden)]
        reports: list[TokenLogprobs] = []
        for first in range(0, len(followers), _MAX_LOGIT_ROWS):
            part = followers[first : first + _MAX_LOGIT_ROWS]
            logits = self._decoder.logits(hidden[first : first + len(part)])
            reports += gather_logprobs(logits, part, [num_top] * len(part))
        return reports
