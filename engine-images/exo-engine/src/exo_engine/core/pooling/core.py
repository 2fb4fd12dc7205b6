"""The engine core of a model that embeds or scores; the server's core process steps it as it does `EngineCore`.

A text is computed whole, in one step, beside others and without padding. Nothing of it is kept, so there
is no cache, and a request that is dropped takes nothing with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from exo_engine.config import EngineConfig, ResolvedConfig
from exo_engine.core.graphs.device import device_ops
from exo_engine.core.measurements import Measurements
from exo_engine.core.pooling.loading import load_pooling
from exo_engine.core.pooling.queue import PoolingQueue
from exo_engine.core.pooling.requests import PoolingRequest
from exo_engine.core.request import EngineStats, RequestOutput
from exo_engine.core.start_up import StartUp
from exo_engine.errors import OutOfMemory, PromptTooLong, RequestError
from exo_engine.kernels.uploads import to_device
from exo_engine.models.pooling.model import activate
from exo_engine.models.pooling.spec import PoolingSpec
from exo_engine.structured_output.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class PoolingCore:
    """Loads a model on construction; then `add_request` and `step` until nothing is unfinished.

    Args:
        config: what to load and how.
        start_up: told what loading is at, and times it.

    Raises:
        ConfigurationError: a setting is wrong (`ModelUnusable`: the model's files are).
        OutOfMemory: the weights do not fit.
    """

    def __init__(self, config: EngineConfig, *, start_up: StartUp | None = None) -> None:
        loaded = load_pooling(config, start_up or StartUp())
        self.spec: PoolingSpec = loaded.spec
        self.config: ResolvedConfig = loaded.config
        self.measurements: Measurements = loaded.measurements
        self._model = loaded.model
        self._model.have_layers_noted(device_ops(loaded.model.device).note_layer)
        self._queue = PoolingQueue(
            self.config.max_num_batched_tokens,
            self.config.max_num_seqs,
            has_priority=self.config.scheduling_policy == "priority",
        )
        self._num_steps = 0
        self._num_tokens = 0
        logger.info(
            "%s ready on %s in %s, to %s texts of up to %d tokens",
            self.spec.architecture,
            self.config.device,
            self.config.dtype,
            self.spec.task,
            self.config.max_model_len,
        )

    def check_processes(self) -> Sequence[int]:
        """Return nothing: there is one process."""
        return ()

    def close(self) -> None:
        """Let go of nothing: there is one process and no thread."""

    def add_request(self, request: PoolingRequest) -> None:
        """Queue a text; its vector comes out of a later step.

        Raises:
            RequestError: the text is refused.
        """
        length, longest = len(request.token_ids), self.config.max_model_len
        if not length:
            raise RequestError("the text has no tokens; at least one is needed", param="input")
        if length > longest:
            raise PromptTooLong(
                f"the text has {length} tokens, but at most {longest} are possible",
                param="input",
                hint="Shorten the text, or set truncate_prompt_tokens.",
            )
        size = self.spec.vocab_size
        for token_id in request.token_ids:
            if not 0 <= token_id < size:
                raise RequestError(
                    f"the text has token id {token_id}, but the vocabulary has ids from 0 to {size - 1}",
                    param="input",
                )
        self._queue.add(request)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Take nothing: nobody asks such a model for a grammar."""

    def reset_prefix_cache(self) -> None:
        """Forget nothing: no beginning of a text is kept."""

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop texts that wait; unknown ids are ignored."""
        for request_id in request_ids:
            self._queue.drop(request_id)

    def has_unfinished_requests(self) -> bool:
        """Whether another `step` has anything to do."""
        return len(self._queue) > 0

    def step(self) -> list[RequestOutput]:
        """Compute the next texts and return what became of each.

        Raises:
            OutOfMemory: the device ran out of memory; the core cannot go on.
        """
        requests = self._queue.take()
        if not requests:
            return []
        num_tokens = sum(len(each.token_ids) for each in requests)
        begun = time.monotonic()
        try:
            vectors = self._compute(requests)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"computing a step of {num_tokens} tokens ran out of memory",
                hint="Lower --max-model-len or --max-num-batched-tokens.",
            ) from exc
        self._num_steps += 1
        self._num_tokens += num_tokens
        outputs = (self._output(*pair) for pair in zip(requests, vectors, strict=True))
        return [replace(each, scheduled_at=begun) for each in outputs]

    def stats(self) -> EngineStats:
        """Return the counters as they stand."""
        return EngineStats(
            num_waiting=len(self._queue),
            prompt_tokens_total=self._num_tokens,
            computed_tokens_total=self._num_tokens,
            num_steps_total=self._num_steps,
        )

    @torch.inference_mode()
    def _compute(self, requests: list[PoolingRequest]) -> Tensor:
        """Return a vector (S, N) float32 per text, in the host's memory."""
        lengths = np.array([len(each.token_ids) for each in requests])
        ids = np.concatenate([np.array(each.token_ids, dtype=np.int32) for each in requests])
        starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
        positions = np.arange(len(ids)) - starts
        seconds = [each.second_from for each in requests]
        begins = np.array([len(ids) if each is None else each for each in seconds])
        types = positions >= np.repeat(begins, lengths)
        packed = np.stack((ids, positions, types)).astype(np.int32)
        moved = to_device(packed, self._model.device)
        return self._model.forward(moved[0], moved[1], moved[2], lengths.tolist()).cpu()

    def _output(self, request: PoolingRequest, vector: Tensor) -> RequestOutput:
        if not bool(vector.isfinite().all()):
            return RequestOutput(request.request_id, finish_reason="error")
        if request.is_activated:
            vector = activate(self.spec, vector[None], request.num_dimensions)[0]
        else:
            vector = vector[: request.num_dimensions]
        pooled = vector.numpy().astype("<f4").tobytes()
        return RequestOutput(request.request_id, finish_reason="stop", pooled=pooled)
