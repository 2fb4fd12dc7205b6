"""The engine core: owns model, cache and scheduler, and moves all requests one step at a time.

The engine process of the server and `LLM` call it, from one thread. It knows token ids only: text,
HTTP and processes are others' business.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from exo_engine.config import EngineConfig, ResolvedConfig
from exo_engine.core.executor import Executor
from exo_engine.core.executor_process import ProcessExecutor, load_here
from exo_engine.core.loading import LoadedCore, make_scheduler
from exo_engine.core.measurements import Measurements
from exo_engine.core.pipeline import Pipeline
from exo_engine.core.ranks.process import check_ranks
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput
from exo_engine.core.scheduling.step_times import StepTimes
from exo_engine.core.start_up import StartUp
from exo_engine.errors import InvalidSamplingParams, RequestError
from exo_engine.kernels import compilations
from exo_engine.models.spec import DecoderSpec
from exo_engine.sampling_params import SamplingParams
from exo_engine.structured_output.preparation import Preparation
from exo_engine.structured_output.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class EngineCore:
    """Loads a model on construction; then `add_request` and `step` until nothing is unfinished.

    Args:
        config: what to load and how.
        start_up: told what loading is at, and times it.

    Raises:
        ConfigurationError: a setting is wrong (`ModelUnusable`: the model's files are).
        OutOfMemory: weights or cache do not fit.
        CoreFailed: a simulated start was told to fail.
    """

    def __init__(self, config: EngineConfig, *, start_up: StartUp | None = None) -> None:
        loaded = _load(config, start_up or StartUp())
        self.spec: DecoderSpec = loaded.spec
        self.config: ResolvedConfig = loaded.config
        self.measurements: Measurements = loaded.measurements
        self._max_scored_tokens = loaded.max_scored_tokens
        self._scheduler = make_scheduler(
            self.spec, self.config, loaded.num_blocks, loaded.reaches, _step_times(loaded)
        )
        depth = 2 if self.config.async_scheduling else 1
        self._pipeline = Pipeline(self._scheduler, loaded.executor, depth)
        self._preparation = Preparation(loaded.executor, self._scheduler.add)
        logger.info(
            "%s ready on %s in %s: %d KV blocks of %d tokens, sequences of up to %d tokens",
            self.spec.architecture,
            self.config.device,
            self.config.dtype,
            loaded.num_blocks,
            self.config.block_size,
            self.config.max_model_len,
        )

    @property
    def executor(self) -> Executor:
        """What computes the steps."""
        return self._pipeline.executor

    def check_processes(self) -> Sequence[int]:
        """See `Executor.check_processes`."""
        return self.executor.check_processes()

    def close(self) -> None:
        """Let go of what computes the steps; nothing else may be called afterwards."""
        self.executor.close()

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; its tokens come out of later steps.

        Raises:
            RequestError: the request is refused (`PromptTooLong`, `InvalidSamplingParams`, …).
        """
        self._check_token_ids(request)
        self._check_params(request.params)
        self._check_scored_tokens(request)
        grammar = request.params.structured_outputs
        if grammar is None:
            self._scheduler.add(request)
        else:
            self._preparation.hold(request, grammar)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tell what the model's tokens stand for; before the first request with a grammar."""
        self.executor.use_vocabulary(vocabulary)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop requests; they give no further output. Unknown ids are ignored."""
        request_ids = list(request_ids)
        self._preparation.drop(request_ids)
        self._pipeline.abort(request_ids)

    def reset_prefix_cache(self) -> None:
        """Let no later request begin with what earlier ones have computed."""
        self._scheduler.blocks.forget_prefixes()

    def has_unfinished_requests(self) -> bool:
        """Whether another `step` has anything to do."""
        return self._pipeline.has_unfinished() or len(self._preparation) > 0

    def step(self) -> list[RequestOutput]:
        """Compute one step and return what it added, per request that got anything.

        Raises:
            OutOfMemory: the device ran out of memory; the core cannot go on.
        """
        if len(self._preparation) and not self._pipeline.has_unfinished():
            self._preparation.wait()
        return [*self._preparation.release(), *self._pipeline.step()]

    def stats(self) -> EngineStats:
        """Return the counters as they stand."""
        stats, num_late = self._scheduler.stats(), compilations.OWN.num_late
        return replace(stats, late_compilations_total=num_late) if num_late else stats

    def check_integrity(self) -> None:
        """Raise InternalError when queues, block tables and reference counts disagree."""
        self._scheduler.check_integrity()

    def _check_token_ids(self, request: EngineRequest) -> None:
        largest = self.spec.vocab_size - 1
        ends = (min(request.prompt_token_ids, default=0), max(request.prompt_token_ids, default=0))
        for token_id in ends:
            if not 0 <= token_id <= largest:
                raise RequestError(
                    f"the prompt has token id {token_id}, but the vocabulary has ids from 0 to {largest}",
                    param="prompt",
                )

    def _check_params(self, params: SamplingParams) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is not None and asked > self.config.max_logprobs:
                raise InvalidSamplingParams(
                    f"{name} is {asked}, but at most {self.config.max_logprobs} are allowed",
                    param=name,
                    hint="Ask for fewer, or start the engine with a higher --max-logprobs.",
                )
        for name, token_ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", tuple(params.logit_bias or ())),
            ("allowed_token_ids", params.allowed_token_ids or ()),
            ("bad_words", tuple(itertools.chain.from_iterable(params.bad_words))),
        ):
            for token_id in token_ids:
                if not 0 <= token_id < self.spec.vocab_size:
                    raise InvalidSamplingParams(
                        f"{name} has token id {token_id}, but the vocabulary has ids from 0 to "
                        f"{self.spec.vocab_size - 1}",
                        param=name,
                    )
        self._check_allowed(params)

    def _check_allowed(self, params: SamplingParams) -> None:
        """Refuse what allows only tokens that it forbids; bad words of several tokens forbid them now and then only."""
        if params.allowed_token_ids is None or params.structured_outputs is not None:
            return
        left = {*params.allowed_token_ids}
        left -= {word[0] for word in params.bad_words if len(word) == 1}
        if not left:
            raise InvalidSamplingParams(
                "bad_words forbid every token of allowed_token_ids, so that none is left to choose",
                param="allowed_token_ids",
            )
        if params.min_tokens and not left.difference(
            self.spec.eos_token_ids, params.stop_token_ids
        ):
            raise InvalidSamplingParams(
                f"min_tokens is {params.min_tokens}, and until then no token of stop_token_ids and none that ends a text "
                "may come, but allowed_token_ids, less bad_words, has only such tokens, so that none is left to choose",
                param="min_tokens",
            )

    def _check_scored_tokens(self, request: EngineRequest) -> None:
        longest, length = self._max_scored_tokens, len(request.prompt_token_ids)
        if request.params.prompt_logprobs is not None and longest is not None and length > longest:
            raise InvalidSamplingParams(
                f"prompt_logprobs are asked for a prompt of {length} tokens, but this simulation "
                f"computes them for at most {longest}",
                param="prompt_logprobs",
                hint="Shorten the prompt, or leave prompt_logprobs out.",
            )


def _step_times(loaded: LoadedCore) -> StepTimes | None:
    """Have steps timed where their time follows their tokens: not on a GPU, nor a simulated one."""
    is_cpu = loaded.config.device == "cpu" and not loaded.measurements.simulated
    return StepTimes() if is_cpu and loaded.config.enable_chunked_prefill else None


def _load(config: EngineConfig, start_up: StartUp) -> LoadedCore:
    if config.tensor_parallel_size > 1:
        check_ranks(config)
    if config.executor_backend == "mp" or config.tensor_parallel_size > 1:
        return ProcessExecutor(config, start_up).loaded
    return load_here(config, start_up)
