"""POST /v1/chat/completions: a conversation in, the next message out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.generation import Delta, Generation
from exo_engine.server.known_fields import CHAT, check_fields
from exo_engine.server.routes.conversation import read_conversation
from exo_engine.server.routes.formats import (
    LogprobFormat,
    StreamOptions,
    add_usage,
    format_usage,
    read_stream_options,
)
from exo_engine.server.routes.requests import json_response, note_usage, read_request
from exo_engine.server.routes.streaming import send_events
from exo_engine.server.sampling import read_sampling
from exo_engine.server.service import Service


@dataclass(frozen=True, slots=True)
class _Options:
    """What of a request is about the form of the answer."""

    id: str
    model: str
    stream: StreamOptions
    num_top_logprobs: int | None


async def create_chat_completion(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request."""
    fields = await read_request(request, service)
    check_fields(fields, CHAT)
    model = service.check_model(fields)
    _refuse_unsupported(fields)
    limit_name = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    num_top_logprobs = _read_logprobs(fields, service.options.max_logprobs)
    sampling = read_sampling(
        fields,
        service.text.defaults,
        logprobs=num_top_logprobs,
        prompt_logprobs=None,
        max_tokens=fields.integer(limit_name, minimum=1),
        tokenizer=service.text.tokenizer,
        vocabulary_size=service.vocabulary_size,
    )
    options = _Options(
        id=f"chatcmpl-{request['id']}",
        model=model,
        stream=read_stream_options(fields, service.options),
        num_top_logprobs=num_top_logprobs,
    )
    prompt = await read_conversation(fields, service)
    generation = service.begin([prompt], sampling, prompt_name="messages", limit_name=limit_name)
    writer = _Writer(service, options, generation)
    with note_usage(request, writer.usage):
        if options.stream.is_streaming:
            return await send_events(request, writer.events(), service.readers)
        return json_response(await writer.whole())


def _refuse_unsupported(fields: Fields) -> None:
    kind = Fields(fields.mapping("response_format"), prefix="response_format.").string("type")
    if kind not in (None, "text"):
        raise not_supported("response_format", f"response_format {kind[:40]!r}")
    if fields.has("audio") or fields.values.get("modalities") not in (None, ["text"]):
        raise not_supported("modalities", "output other than text")
    if fields.values.get("echo"):
        raise not_supported("echo", "echo on chat completions")


def _read_logprobs(fields: Fields, maximum: int) -> int | None:
    """Return how many alternatives to report, or None for no log probabilities."""
    is_wanted = fields.boolean("logprobs")
    num_top = fields.integer("top_logprobs", minimum=0, maximum=maximum)
    if num_top and not is_wanted:
        raise bad_request("top_logprobs is only allowed with logprobs: true", "top_logprobs")
    return (num_top or 0) if is_wanted else None


class _Writer:
    """Turns deltas into messages."""

    def __init__(self, service: Service, options: _Options, generation: Generation) -> None:
        self._service = service
        self._options = options
        self._generation = generation
        self._format = LogprobFormat(service.text.tokenizer, service.options)

    def usage(self) -> dict[str, Any]:
        """Return the token counts so far."""
        return format_usage(self._generation.usage, self._service.options)

    async def whole(self) -> dict[str, Any]:
        """Return the complete answer."""
        total = [Delta(each.index) for each in self._generation.sequences]
        async for deltas in self._generation.run():
            for delta in deltas:
                known = total[delta.index]
                known.text += delta.text
                known.logprobs += delta.logprobs
                known.finish_reason, known.stop_reason = delta.finish_reason, delta.stop_reason
        choices = [
            {
                "index": each.index,
                "message": {
                    "role": self._service.options.response_role,
                    "content": each.text,
                    "refusal": None,
                },
                **self._ending(each),
            }
            for each in total
        ]
        return {**self._body("chat.completion", choices), "usage": self.usage()}

    async def events(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield the events of a stream: roles first, then text, then the token counts."""
        stream = self._options.stream
        has_begun = False
        async for deltas in self._generation.run():
            batch = []
            if not has_begun:
                has_begun = True
                batch = [self._opening(each.index) for each in self._generation.sequences]
            batch += [self._chunk(each) for each in deltas if _is_worth_showing(each)]
            add_usage(batch, stream, self.usage)
            if batch:
                yield batch
        if stream.has_usage:
            yield [{**self._body("chat.completion.chunk", []), "usage": self.usage()}]

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": self._service.options.response_role, "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return self._body("chat.completion.chunk", [choice])

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        content = {"content": delta.text} if delta.text or not delta.finish_reason else {}
        choice = {"index": delta.index, "delta": content, **self._ending(delta)}
        return self._body("chat.completion.chunk", [choice])

    def _ending(self, delta: Delta) -> dict[str, Any]:
        num_top = self._options.num_top_logprobs
        return {
            "logprobs": None if num_top is None else self._format.chat(delta.logprobs, num_top),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
        }

    def _body(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._options.id,
            "object": kind,
            "created": self._service.now(),
            "model": self._options.model,
            "choices": choices,
            "system_fingerprint": None,
        }


def _is_worth_showing(delta: Delta) -> bool:
    return bool(delta.text or delta.logprobs or delta.finish_reason)
