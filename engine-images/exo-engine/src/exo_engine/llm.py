"""The engine in-process: a model directory in, finished completions out.

For tests, scripts and offline batches; the server does not use it. Text goes through the model's own
tokenizer; prompts given as token ids need none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exo_engine.config import EngineConfig
from exo_engine.core.engine import EngineCore
from exo_engine.core.request import (
    NOTHING_LEFT,
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestOutput,
    TokenLogprobs,
)
from exo_engine.core.start_up import StartUp
from exo_engine.errors import ConfigurationError, InvalidSamplingParams
from exo_engine.sampling_params import SamplingParams
from exo_engine.structured_output.vocabulary import Vocabulary, vocabulary_of

if TYPE_CHECKING:
    from exo_engine.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True)
class Completion:
    """One finished prompt."""

    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    """What was generated; a final stop token included."""
    finish_reason: FinishReason
    num_cached_tokens: int
    text: str | None = None
    """Decoded output; None when the prompt was given as token ids."""
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None


@dataclass(slots=True)
class _Pending:
    prompt_token_ids: tuple[int, ...]
    is_text: bool
    outputs: list[RequestOutput] = field(default_factory=list)


class LLM:
    """A loaded model that completes prompts.

    Args:
        model_dir: directory with config.json and safetensors files.
        progress: told in words what loading is at.
        options: fields of `EngineConfig`, such as `dtype` or `max_model_len`.
    """

    def __init__(
        self,
        model_dir: str | Path,
        *,
        progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        try:
            config = EngineConfig(model_dir=Path(model_dir), **options)
        except TypeError as exc:
            raise ConfigurationError(f"cannot build the engine's configuration: {exc}") from exc
        self._core = EngineCore(config, start_up=StartUp(progress) if progress else None)
        self._model_dir = config.model_dir
        self._tokenizer: Tokenizer | None = None
        self._is_vocabulary_told = False
        self._ids = itertools.count()

    @property
    def core(self) -> EngineCore:
        """The core underneath, for those who step it themselves."""
        return self._core

    def close(self) -> None:
        """Let go of the model; nothing else may be called afterwards."""
        self._core.close()

    def stats(self) -> EngineStats:
        """Return the core's counters."""
        return self._core.stats()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Complete one prompt or several together, and return them in order.

        Args:
            prompts: text, or token ids, or a sequence of either.
            params: for all prompts, or one per prompt.

        Raises:
            RequestError: a prompt or a parameter is refused; then nothing is generated.
        """
        texts_or_ids = _as_list(prompts)
        if params is None or isinstance(params, SamplingParams):
            params = [params or SamplingParams()] * len(texts_or_ids)
        if len(params) != len(texts_or_ids):
            raise ConfigurationError(
                f"got {len(texts_or_ids)} prompts and {len(params)} sampling parameters, expected "
                "one for all or one for each"
            )
        pending: dict[str, _Pending] = {}
        try:
            for prompt, each in zip(texts_or_ids, params, strict=True):
                token_ids = self._encode(prompt)
                request_id = str(next(self._ids))
                if each.structured_outputs is not None:
                    self._tell_vocabulary()
                self._core.add_request(EngineRequest(request_id, token_ids, each))
                pending[request_id] = _Pending(token_ids, isinstance(prompt, str))
            while self._core.has_unfinished_requests():
                for output in self._core.step():
                    if output.fault is not None:
                        is_of_grammar = output.fault != NOTHING_LEFT
                        param = "structured_outputs" if is_of_grammar else None
                        raise InvalidSamplingParams(output.fault, param=param)
                    pending[output.request_id].outputs.append(output)
        except BaseException:
            self._core.abort_requests(pending)
            raise
        return [self._finish(each) for each in pending.values()]

    def _tell_vocabulary(self) -> None:
        if not self._is_vocabulary_told:
            spec = self._core.spec
            found = vocabulary_of(self._get_tokenizer(), spec.vocab_size, spec.eos_token_ids)
            self.use_vocabulary(found)

    def use_vocabulary(self, vocabulary: Vocabulary) -> None:
        """Tell what tokens stand for, of a model that has no tokenizer beside it."""
        self._core.use_vocabulary(vocabulary)
        self._is_vocabulary_told = True

    def _encode(self, prompt: Prompt) -> tuple[int, ...]:
        if isinstance(prompt, str):
            return tuple(self._get_tokenizer().encode(prompt, add_special_tokens=True))
        return tuple(prompt)

    def _finish(self, pending: _Pending) -> Completion:
        outputs = pending.outputs
        token_ids = tuple(token_id for output in outputs for token_id in output.token_ids)
        logprobs = tuple(entry for output in outputs for entry in output.logprobs or ())
        text = None
        if pending.is_text:
            text = self._get_tokenizer().decode(token_ids, skip_special_tokens=True)
        return Completion(
            prompt_token_ids=pending.prompt_token_ids,
            token_ids=token_ids,
            finish_reason=outputs[-1].finish_reason or "error",
            num_cached_tokens=outputs[-1].num_cached_tokens,
            text=text,
            logprobs=logprobs if outputs[0].logprobs is not None else None,
            prompt_logprobs=outputs[0].prompt_logprobs,
        )

    def _get_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            from exo_engine.tokenizer import Tokenizer

            self._tokenizer = Tokenizer(self._model_dir)
        return self._tokenizer


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    as_list: list[Any] = list(prompts)
    return [as_list] if as_list and isinstance(as_list[0], int) else as_list
