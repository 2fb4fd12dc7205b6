"""POST /v1/completions: text in, text out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from exo_engine.server.api_errors import ApiError, bad_request
from exo_engine.server.constraints import read_constraint
from exo_engine.server.fields import Fields, check_token_ids
from exo_engine.server.generation import Delta, Generation
from exo_engine.server.known_fields import COMPLETIONS, check_fields
from exo_engine.server.prompts.infilling import fill_in, no_text, read_suffix
from exo_engine.server.prompts.truncation import Truncation, read_truncation
from exo_engine.server.request_size import check_num_prompts
from exo_engine.server.routes.formats import (
    LogprobFormat,
    StreamOptions,
    TokenReports,
    add_usage,
    format_usage,
    read_stream_options,
    read_token_reports,
)
from exo_engine.server.routes.requests import json_response, note_usage, read_request
from exo_engine.server.routes.streaming import send_events
from exo_engine.server.sampling import Sampling, read_sampling
from exo_engine.server.service import Service
from exo_engine.server.token_limits import with_bad_words

_DEFAULT_MAX_TOKENS = 16
"""Of OpenAI's reference and of vLLM; chat has no such limit."""


@dataclass(frozen=True, slots=True)
class _Options:
    """What of a request is about the form of the answer."""

    id: str
    model: str
    stream: StreamOptions
    num_logprobs: int | None
    reports: TokenReports
    is_echo: bool
    is_prompt_only: bool
    """max_tokens is 0: only the prompt and its log probabilities are wanted."""


async def create_completion(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request."""
    fields = await read_request(request, service)
    check_fields(fields, COMPLETIONS)
    model = service.check_model(fields)
    max_tokens = fields.integer("max_tokens", minimum=0)
    is_echo = fields.boolean("echo")
    if max_tokens == 0 and not is_echo:
        raise bad_request("max_tokens must be 1 or more without echo, got 0", "max_tokens")
    num_logprobs = fields.integer("logprobs", minimum=0, maximum=service.options.max_logprobs)
    reports = read_token_reports(fields, service.options)
    sampling = read_sampling(
        fields,
        service.text.defaults,
        logprobs=num_logprobs,
        prompt_logprobs=_most(reports.num_prompt_logprobs, num_logprobs if is_echo else None),
        max_tokens=1 if max_tokens == 0 else max_tokens,
        tokenizer=service.text.tokenizer,
        vocabulary_size=service.vocabulary_size,
    )
    sampling = await with_bad_words(fields, sampling, service)
    sampling = await service.constrain(sampling, read_constraint(fields))
    truncation = read_truncation(
        fields,
        max_model_len=service.max_model_len,
        max_tokens=_DEFAULT_MAX_TOKENS if max_tokens is None else max_tokens,
    )
    prompts = await _read_prompts(fields, service, sampling.num_choices, truncation)
    options = _Options(
        id=f"cmpl-{request['id']}",
        model=model,
        stream=read_stream_options(fields, service.options),
        num_logprobs=num_logprobs,
        reports=reports,
        is_echo=is_echo,
        is_prompt_only=max_tokens == 0,
    )
    generation = service.begin(prompts, sampling, default_max_tokens=_DEFAULT_MAX_TOKENS)
    writer = _Writer(service, options, generation, sampling)
    with note_usage(request, writer.usage):
        if options.stream.is_streaming:
            return await send_events(request, writer.events(), service.readers)
        return json_response(await writer.whole())


class _Writer:
    """Turns deltas into choices."""

    def __init__(
        self, service: Service, options: _Options, generation: Generation, sampling: Sampling
    ) -> None:
        self._service = service
        self._options = options
        self._generation = generation
        self._format = LogprobFormat(
            service.text.tokenizer, is_by_id=options.reports.are_named_by_id
        )
        self._is_special_skipped = sampling.skips_special_tokens
        self._offsets = [0] * len(generation.sequences)
        self._is_prompt_due = [options.is_echo] * len(generation.sequences)
        self._has_begun = [False] * len(generation.sequences)

    def usage(self) -> dict[str, Any]:
        """Return the token counts so far."""
        usage = self._generation.usage
        if self._options.is_prompt_only:
            usage.num_completion_tokens = 0
        return format_usage(usage, self._service.options)

    async def whole(self) -> dict[str, Any]:
        """Return the complete answer."""
        choices: dict[int, dict[str, Any]] = {}
        async for deltas in self._generation.run():
            for delta in deltas:
                choice = self._choice(delta)
                known = choices.setdefault(delta.index, choice)
                if known is not choice:
                    _append(known, choice)
        body = self._body([choices[index] for index in sorted(choices)])
        return {**body, "usage": self.usage()}

    async def events(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield the events of a stream."""
        stream = self._options.stream
        async for deltas in self._generation.run():
            batch = [self._body([self._choice(each)]) for each in deltas if _is_worth_showing(each)]
            add_usage(batch, stream, self.usage)
            if batch:
                yield batch
        if stream.has_usage:
            yield [{**self._body([]), "usage": self.usage()}]

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._options.id,
            "object": "text_completion",
            "created": self._service.now(),
            "model": self._options.model,
            "choices": choices,
        }

    def _choice(self, delta: Delta) -> dict[str, Any]:
        text, logprobs = delta.text, self._logprobs(delta)
        if self._options.is_prompt_only:
            text, logprobs = "", None
            if delta.finish_reason == "stop":
                delta.finish_reason, delta.stop_reason = "length", None
        if self._is_prompt_due[delta.index]:
            self._is_prompt_due[delta.index] = False
            prompt_text, prompt_logprobs = self._prompt(delta)
            text = prompt_text + text
            logprobs = _joined(prompt_logprobs, logprobs)
        return {
            "index": delta.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            **self._reported(delta),
        }

    def _reported(self, delta: Delta) -> dict[str, Any]:
        """Return what the request wants to see of the tokens; the prompt's with the first part."""
        reports, is_first = self._options.reports, not self._has_begun[delta.index]
        self._has_begun[delta.index] = True
        found: dict[str, Any] = {}
        if reports.has_token_ids:
            prompt = self._generation.sequences[delta.index].request.prompt_token_ids
            found["token_ids"] = [] if self._options.is_prompt_only else delta.token_ids
            found["prompt_token_ids"] = list(prompt) if is_first else None
        if reports.num_prompt_logprobs is not None and is_first:
            entries = delta.prompt_logprobs or ()
            found["prompt_logprobs"] = self._format.prompt(entries, reports.num_prompt_logprobs)
        return found

    def _logprobs(self, delta: Delta) -> dict[str, Any] | None:
        if self._options.num_logprobs is None or self._options.is_prompt_only:
            return None
        if self._is_prompt_due[delta.index]:
            self._offsets[delta.index] = len(self._prompt_text(delta.index))
        body, self._offsets[delta.index] = self._format.completion(
            delta.logprobs,
            delta.token_ids,
            self._options.num_logprobs,
            self._offsets[delta.index],
        )
        return body

    def _prompt_text(self, index: int) -> str:
        prompt = self._generation.sequences[index].request.prompt_token_ids
        return self._service.text.tokenizer.decode(
            prompt, skip_special_tokens=self._is_special_skipped
        )

    def _prompt(self, delta: Delta) -> tuple[str, dict[str, Any] | None]:
        text = self._prompt_text(delta.index)
        num_top = self._options.num_logprobs
        if num_top is None:
            return text, None
        prompt = self._generation.sequences[delta.index].request.prompt_token_ids
        entries = delta.prompt_logprobs or (None,) * len(prompt)
        return text, self._format.completion(entries, prompt, num_top, 0)[0]


def _is_worth_showing(delta: Delta) -> bool:
    return bool(delta.text or delta.token_ids or delta.finish_reason)


def _append(known: dict[str, Any], more: dict[str, Any]) -> None:
    known["text"] += more["text"]
    known["logprobs"] = _joined(known["logprobs"], more["logprobs"])
    known["finish_reason"] = more["finish_reason"]
    known["stop_reason"] = more["stop_reason"]
    if "token_ids" in known:
        known["token_ids"] += more["token_ids"]


def _joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    if first is None or second is None:
        return first if second is None else second
    return {key: first[key] + second[key] for key in first}


async def _read_prompts(
    fields: Fields, service: Service, num_choices: int, truncation: Truncation | None
) -> list[list[int]]:
    """Read `prompt`: a text, token ids, or a list of either; and `suffix`."""
    value = fields.values.get("prompt")
    suffix = read_suffix(fields, service.text.tokenizer)
    texts: Any = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts:
        raise _wrong_prompt(fields)
    if all(type(each) is int for each in texts):
        texts = [texts]
    check_num_prompts(len(texts), num_choices)
    if all(isinstance(each, str) for each in texts):
        if suffix is not None:
            return await _with_gaps(fields, texts, suffix, service)
        is_special_added = fields.boolean("add_special_tokens", True)
        return await service.encode_all(
            texts, add_special_tokens=is_special_added, truncation=truncation
        )
    if all(isinstance(each, list) for each in texts):
        if suffix is not None:
            raise no_text(fields)
        return _read_token_ids(fields, texts, service, truncation)
    raise _wrong_prompt(fields)


async def _with_gaps(
    fields: Fields, texts: list[str], suffix: str, service: Service
) -> list[list[int]]:
    """Return prompts whose gap the model is to fill."""
    tokenizer = service.text.tokenizer
    is_special_added = fields.boolean("add_special_tokens", True)
    before = tokenizer.encode("", add_special_tokens=is_special_added)
    (behind,) = await service.encode_all([suffix], add_special_tokens=False, param="suffix")
    prompts = await service.encode_all(texts, add_special_tokens=False)
    return [[*before, *fill_in(prompt, behind, tokenizer)] for prompt in prompts]


def _read_token_ids(
    fields: Fields, lists: list[list[Any]], service: Service, truncation: Truncation | None
) -> list[list[int]]:
    """Check prompts that came as token ids; the too long ones first, as that costs nothing."""
    if truncation is not None:
        lists = [truncation.cut(each) for each in lists]
    for each in lists:
        service.check_prompt_length(len(each))
    if not all(type(token) is int for each in lists for token in each):
        raise _wrong_prompt(fields)
    check_token_ids(lists, service.vocabulary_size, fields.name("prompt"))
    return [list(each) for each in lists]


def _most(*numbers: int | None) -> int | None:
    return max((each for each in numbers if each is not None), default=None)


def _wrong_prompt(fields: Fields) -> ApiError:
    return fields.wrong(
        "prompt", "a string, a list of strings, a list of token ids, or a list of such lists"
    )
