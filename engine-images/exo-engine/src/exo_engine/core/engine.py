"""The engine core: owns model, cache and scheduler, and moves all requests one step at a time.

The engine process of the server and `LLM` call it, from one thread. It knows token ids only: text,
HTTP and processes are others' business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from exo_engine.attention.kv_cache import KVCache
from exo_engine.config import EngineConfig, ResolvedConfig, resolve
from exo_engine.core.block_manager import BlockManager
from exo_engine.core.memory import check_weights_fit, choose_num_blocks, fit_model_len
from exo_engine.core.request import EngineRequest, EngineStats, RequestOutput
from exo_engine.core.runner import ModelRunner
from exo_engine.core.scheduler import Scheduler, SchedulerLimits
from exo_engine.errors import InvalidSamplingParams, OutOfMemory, RequestError
from exo_engine.models.config_file import limits_of, read_spec
from exo_engine.models.decoder import Decoder
from exo_engine.models.spec import DecoderSpec
from exo_engine.models.weights import check_checkpoint, load_weights
from exo_engine.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def _ignore(message: str) -> None:
    del message


class EngineCore:
    """Loads a model on construction; then `add_request` and `step` until nothing is unfinished.

    Args:
        config: what to load and how.
        progress: told in words what loading is at, such as `loading weights 43 %`.

    Raises:
        ConfigurationError: a setting is wrong (`ModelUnusable`: the model's files are).
        OutOfMemory: weights or cache do not fit.
    """

    def __init__(self, config: EngineConfig, *, progress: Callable[[str], None] = _ignore) -> None:
        progress("reading configuration")
        self.spec: DecoderSpec = read_spec(config.model_dir)
        settings = resolve(config, limits_of(self.spec), has_cuda=torch.cuda.is_available())
        if settings.num_threads is not None:
            torch.set_num_threads(settings.num_threads)
        try:
            decoder = _load(self.spec, settings, progress)
            progress("sizing KV cache")
            num_blocks = choose_num_blocks(
                self.spec, settings, lambda: _run_largest_step(decoder, settings)
            )
            max_model_len = fit_model_len(
                settings, num_blocks, was_asked=config.max_model_len is not None
            )
            self.config: ResolvedConfig = replace(settings, max_model_len=max_model_len)
            decoder.set_num_positions(max_model_len)
            progress(f"allocating {num_blocks} KV blocks")
            self._runner = _make_runner(decoder, self.config, num_blocks)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"loading {config.model_dir} ran out of memory on the {settings.device} device",
                hint="Lower --gpu-memory-utilization or --max-num-batched-tokens, or free memory.",
            ) from exc
        self._scheduler = _make_scheduler(self.spec, self.config, num_blocks)
        progress("warming up")
        self._warm_up()
        logger.info(
            "%s ready on %s in %s: %d KV blocks of %d tokens, sequences of up to %d tokens",
            self.spec.architecture,
            self.config.device,
            self.config.dtype,
            num_blocks,
            self.config.block_size,
            max_model_len,
        )

    def add_request(self, request: EngineRequest) -> None:
        """Queue a request; its tokens come out of later steps.

        Raises:
            RequestError: the request is refused (`PromptTooLong`, `InvalidSamplingParams`, …).
        """
        self._check_token_ids(request)
        self._check_params(request.params)
        self._scheduler.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """Drop requests; they give no further output. Unknown ids are ignored."""
        self._scheduler.abort(request_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether another `step` has anything to do."""
        return self._scheduler.has_unfinished()

    def step(self) -> list[RequestOutput]:
        """Compute one step and return what it added, per request that got anything.

        Raises:
            OutOfMemory: the device ran out of memory; the core cannot go on.
        """
        step = self._scheduler.schedule()
        if not step.items:
            return []
        try:
            sampled = self._runner.run(step)
        except torch.OutOfMemoryError as exc:
            raise OutOfMemory(
                f"computing a step of {step.num_tokens} tokens ran out of memory on the "
                f"{self.config.device} device",
                hint="Lower --gpu-memory-utilization or --max-num-batched-tokens.",
            ) from exc
        return self._scheduler.update(step, sampled)

    def stats(self) -> EngineStats:
        """Return the counters as they stand."""
        return self._scheduler.stats()

    def check_integrity(self) -> None:
        """Raise InternalError when queues, block tables and reference counts disagree."""
        self._scheduler.check_integrity()

    def _warm_up(self) -> None:
        """Run a prompt and a token, so that the first request does not pay for lazy set-up."""
        params = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
        length = min(8, self.config.max_model_len - 2)
        if length < 1:
            return
        self._scheduler.add(EngineRequest("warm-up", (0,) * length, params))
        while self.has_unfinished_requests():
            self.step()
        # Neither its blocks nor its counts should be seen.
        self._scheduler = _make_scheduler(self.spec, self.config, self._scheduler.blocks.num_blocks)

    def _check_token_ids(self, request: EngineRequest) -> None:
        for token_id in request.prompt_token_ids:
            if not 0 <= token_id < self.spec.vocab_size:
                raise RequestError(
                    f"the prompt has token id {token_id}, but the vocabulary has ids from 0 to "
                    f"{self.spec.vocab_size - 1}",
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
        ):
            for token_id in token_ids:
                if not 0 <= token_id < self.spec.vocab_size:
                    raise InvalidSamplingParams(
                        f"{name} has token id {token_id}, but the vocabulary has ids from 0 to "
                        f"{self.spec.vocab_size - 1}",
                        param=name,
                    )


def _load(spec: DecoderSpec, settings: ResolvedConfig, progress: Callable[[str], None]) -> Decoder:
    entries = check_checkpoint(settings.model_dir, spec)
    check_weights_fit(spec, settings)
    decoder = Decoder(spec, dtype=DTYPES[settings.dtype], device=torch.device(settings.device))
    with torch.inference_mode():
        load_weights(decoder, entries, progress)
    return decoder


def _make_scheduler(spec: DecoderSpec, config: ResolvedConfig, num_blocks: int) -> Scheduler:
    limits = SchedulerLimits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=config.max_model_len,
        policy=config.scheduling_policy,
        enable_chunked_prefill=config.enable_chunked_prefill,
        seed=config.seed,
        eos_token_ids=frozenset(spec.eos_token_ids),
    )
    blocks = BlockManager(
        num_blocks, config.block_size, enable_prefix_caching=config.enable_prefix_caching
    )
    return Scheduler(limits, blocks)


def _make_runner(decoder: Decoder, config: ResolvedConfig, num_blocks: int) -> ModelRunner:
    cache = KVCache(
        decoder.spec,
        num_blocks,
        config.block_size,
        dtype=decoder.dtype,
        device=decoder.device,
    )
    return ModelRunner(
        decoder,
        cache,
        attention_backend=config.attention_backend,
        eos_token_ids=decoder.spec.eos_token_ids,
    )


def _run_largest_step(decoder: Decoder, config: ResolvedConfig) -> None:
    """Compute a step that fills the token budget and samples for as many sequences as may run."""
    num_seqs = min(config.max_num_seqs, config.max_num_batched_tokens)
    length = min(config.max_num_batched_tokens // num_seqs, config.max_model_len - 1)
    blocks_each = -(-(length + 1) // config.block_size)
    decoder.set_num_positions(length + 1)
    scheduler = _make_scheduler(decoder.spec, config, num_seqs * blocks_each)
    runner = _make_runner(decoder, config, num_seqs * blocks_each)
    params = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=1)
    for index in range(num_seqs):
        prompt = (index % decoder.spec.vocab_size,) + (0,) * (length - 1)
        scheduler.add(EngineRequest(str(index), prompt, params))
    runner.run(scheduler.schedule())
    runner.take_scratch()
