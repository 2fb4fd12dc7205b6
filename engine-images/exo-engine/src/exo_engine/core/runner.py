"""Turns a scheduled step into tensors, runs the model, and samples.

`EngineCore` owns one; it is the only part of the core that touches tensors. It keeps no request
state: everything it needs is in the step.

Legend: T tokens in step, N rows that need logits, E hidden size, V vocabulary.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from exo_engine.attention import create_backend
from exo_engine.attention.kv_cache import KVCache
from exo_engine.attention.layout import StepArrays, make_inputs, pad_tables
from exo_engine.core.scheduler import ScheduledSequence, ScheduledStep
from exo_engine.core.sequence import SampledToken, Sequence
from exo_engine.models.decoder import Decoder
from exo_engine.sampling.logprobs import gather_logprobs
from exo_engine.sampling.sampler import sample
from exo_engine.sampling.state import SamplingState

# Rows of float32 logits held at once for prompt log-probabilities.
_MAX_LOGIT_ROWS = 256


class ModelRunner:
    """A model, its KV cache and its attention backend on one device."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        *,
        attention_backend: str,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self._decoder = decoder
        self._cache = cache
        self._device = decoder.device
        self._attention = create_backend(attention_backend, decoder.spec.attention_layers, cache)
        # Some configurations name a token that the vocabulary does not have.
        vocab_size = decoder.spec.vocab_size
        self._eos_token_ids = tuple(i for i in eos_token_ids if 0 <= i < vocab_size)

    def take_scratch(self) -> None:
        """Take and give back as much memory as attention may need, so that a peak includes it."""
        torch.empty(self._attention.scratch_bytes(), dtype=torch.uint8, device=self._device)

    @torch.inference_mode()
    def run(self, step: ScheduledStep) -> dict[str, SampledToken]:
        """Compute a step and return the next token of each sequence that reached its end.

        Log-probabilities of prompts are written into the sequences that collect them.
        """
        self._cache.copy_blocks(step.copies)
        items = sorted(step.items.values(), key=lambda item: item.num_tokens > 1)
        hidden = self._forward(items)
        lasts, row = [], 0
        for item in items:
            if item.sequence.prompt_logprobs is not None:
                self._collect_prompt_logprobs(item, hidden[row : row + item.num_tokens])
            row += item.num_tokens
            if item.samples:
                lasts.append(row - 1)
        sampling = [item for item in items if item.samples]
        if not sampling:
            return {}
        logits = self._decoder.logits(hidden[torch.tensor(lasts, device=self._device)])
        tokens = self._sample(logits, [item.sequence for item in sampling])
        for item, token in zip(sampling, tokens, strict=True):
            if not token.is_valid:
                self._cache.clear_broken(item.block_table)
        return {
            item.sequence.sequence_id: token for item, token in zip(sampling, tokens, strict=True)
        }

    def _forward(self, items: list[ScheduledSequence]) -> Tensor:
        """Run the tokens of `items` (single tokens first) through the model: (T, E)."""
        token_ids = [
            id_ for item in items for id_ in item.sequence.token_ids[item.start : item.end]
        ]
        arrays = StepArrays(
            query_starts=np.cumsum([0, *(item.num_tokens for item in items)], dtype=np.int32),
            context_lens=np.array([item.end - item.first_seen for item in items], dtype=np.int32),
            block_tables=(pad_tables([item.block_table for item in items]),),
        )
        inputs = make_inputs(
            np.array(token_ids, dtype=np.int32),
            arrays,
            block_size=self._cache.block_size,
            device=self._device,
        )
        self._attention.begin(inputs.layout)
        return self._decoder.forward(inputs.token_ids, inputs.positions, self._attention)

    def _sample(self, logits: Tensor, sequences: list[Sequence]) -> list[SampledToken]:
        state = SamplingState(len(sequences), logits.shape[1], self._device)
        for slot, sequence in enumerate(sequences):
            params = sequence.request.params
            state.add(
                slot,
                params,
                key=sequence.sampling_key,
                prompt_ids=sequence.request.prompt_token_ids,
                output_ids=sequence.token_ids[sequence.num_prompt_tokens :],
                stop_token_ids=(*self._eos_token_ids, *params.stop_token_ids),
            )
        samples = sample(logits, state, np.arange(len(sequences)))
        reports = samples.reports()
        chosen = zip(samples.tokens.tolist(), samples.is_valid.tolist(), strict=True)
        return [
            SampledToken(token_id, reports.get(row), is_valid)
            for row, (token_id, is_valid) in enumerate(chosen)
        ]

    def _collect_prompt_logprobs(self, item: ScheduledSequence, hidden: Tensor) -> None:
        """Report on the prompt tokens that follow the ones just computed (T, E)."""
        sequence = item.sequence
        collected = sequence.prompt_logprobs
        assert collected is not None, "the caller checks"
        last = min(item.end, sequence.num_prompt_tokens - 1)
        for start in range(item.start, last, _MAX_LOGIT_ROWS):
            stop = min(start + _MAX_LOGIT_ROWS, last)
            logits = self._decoder.logits(hidden[start - item.start : stop - item.start])
            collected[start + 1 : stop + 1] = gather_logprobs(
                logits,
                sequence.token_ids[start + 1 : stop + 1],
                [sequence.request.params.prompt_logprobs or 0] * (stop - start),
            )
