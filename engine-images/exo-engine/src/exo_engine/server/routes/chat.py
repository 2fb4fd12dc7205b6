"""POST /v1/chat/completions: a conversation in, the next message out."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from exo_engine.server.answer_parsing.pieces import Arguments, Call, Content, Piece, Reasoning, join
from exo_engine.server.known_fields import CHAT, check_fields
from exo_engine.server.routes.chat_answer import AnswerDelta, ChatAnswer, begin_chat
from exo_engine.server.routes.formats import (
    LogprobFormat,
    StreamOptions,
    add_usage,
    format_usage,
    read_stream_options,
)
from exo_engine.server.routes.requests import json_response, note_usage, read_request
from exo_engine.server.routes.streaming import send_events
from exo_engine.server.service import Service


@dataclass(frozen=True, slots=True)
class _Options:
    """What of a request is about the form of the answer."""

    id: str
    model: str
    stream: StreamOptions


async def create_chat_completion(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request."""
    fields = await read_request(request, service)
    check_fields(fields, CHAT)
    options = _Options(
        id=f"chatcmpl-{request['id']}",
        model=service.check_model(fields),
        stream=read_stream_options(fields, service.options),
    )
    writer = _Writer(service, options, await begin_chat(fields, service))
    with note_usage(request, writer.usage):
        if options.stream.is_streaming:
            return await send_events(request, writer.events(), service.readers)
        return json_response(await writer.whole())


class _Writer:
    """Turns pieces of an answer into messages."""

    def __init__(self, service: Service, options: _Options, answer: ChatAnswer) -> None:
        self._service = service
        self._options = options
        self._answer = answer
        self._form = service.text.format
        self._format = LogprobFormat(
            service.text.tokenizer, is_by_id=answer.reports.are_named_by_id
        )
        self._num_calls = [0] * answer.num_choices

    def usage(self) -> dict[str, Any]:
        """Return the token counts so far."""
        return format_usage(self._answer.usage, self._service.options)

    async def whole(self) -> dict[str, Any]:
        """Return the complete answer."""
        total = [AnswerDelta(index) for index in range(self._answer.num_choices)]
        async for deltas in self._answer.run():
            for delta in deltas:
                known = total[delta.index]
                known.pieces += delta.pieces
                known.logprobs += delta.logprobs
                known.token_ids += delta.token_ids
                known.finish_reason, known.stop_reason = delta.finish_reason, delta.stop_reason
        choices = [
            {"index": each.index, "message": self._message(each.pieces), **self._ending(each)}
            for each in total
        ]
        reported = {**self._prompt_tokens(), **self._prompt_logprobs()}
        return {**self._body("chat.completion", choices), "usage": self.usage(), **reported}

    def _prompt_tokens(self) -> dict[str, Any]:
        has_them = self._answer.reports.has_token_ids
        return {"prompt_token_ids": self._answer.prompt_token_ids} if has_them else {}

    def _prompt_logprobs(self) -> dict[str, Any]:
        num_top = self._answer.reports.num_prompt_logprobs
        if num_top is None:
            return {}
        return {"prompt_logprobs": self._format.prompt(self._answer.prompt_logprobs, num_top)}

    def _message(self, pieces: list[Piece]) -> dict[str, Any]:
        parts = join(pieces)
        content = "".join(each.text for each in parts if isinstance(each, Content))
        calls = [each for each in parts if isinstance(each, Call)]
        reasoning = "".join(each.text for each in parts if isinstance(each, Reasoning))
        message: dict[str, Any] = {
            "role": self._service.options.response_role,
            "content": content if content or not (calls or reasoning) else None,
            "refusal": None,
        }
        if self._form.marks_reasoning:
            message.update(_reasoning(reasoning or None))
        if calls:
            message["tool_calls"] = [self._call(each) for each in calls]
        return message

    async def events(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield the events of a stream: roles first, then what is new, then the token counts."""
        stream = self._options.stream
        has_begun = False
        async for deltas in self._answer.run():
            batch = []
            if not has_begun:
                has_begun = True
                batch = [self._opening(index) for index in range(self._answer.num_choices)]
            for each in deltas:
                batch += self._chunks(each)
            add_usage(batch, stream, self.usage)
            if batch:
                yield batch
        if stream.has_usage:
            yield [{**self._body("chat.completion.chunk", []), "usage": self.usage()}]

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": self._service.options.response_role, "content": ""}
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
        return {**self._body("chat.completion.chunk", [choice]), **self._prompt_tokens()}

    def _chunks(self, delta: AnswerDelta) -> list[dict[str, Any]]:
        """Return a chunk for each piece; the last of them says how the answer ended."""
        if not delta.is_worth_showing:
            return []
        pieces = join(delta.pieces)
        chunks = [self._chunk(AnswerDelta(delta.index), piece) for piece in pieces[:-1]]
        return [*chunks, self._chunk(delta, pieces[-1] if pieces else None)]

    def _chunk(self, delta: AnswerDelta, piece: Piece | None) -> dict[str, Any]:
        content: dict[str, Any] = {} if delta.finish_reason else {"content": ""}
        if piece is not None:
            content = self._delta(delta.index, piece)
        choice = {"index": delta.index, "delta": content, **self._ending(delta)}
        return self._body("chat.completion.chunk", [choice])

    def _delta(self, index: int, piece: Piece) -> dict[str, Any]:
        if isinstance(piece, Content):
            return {"content": piece.text}
        if isinstance(piece, Reasoning):
            return _reasoning(piece.text)
        if isinstance(piece, Arguments):
            function = {"arguments": piece.text}
            return {"tool_calls": [{"index": self._num_calls[index] - 1, "function": function}]}
        self._num_calls[index] += 1
        return {"tool_calls": [{"index": self._num_calls[index] - 1, **self._call(piece)}]}

    def _call(self, call: Call) -> dict[str, Any]:
        return {
            "id": self._form.call_id(),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _ending(self, delta: AnswerDelta) -> dict[str, Any]:
        num_top = self._answer.num_top_logprobs
        has_token_ids = self._answer.reports.has_token_ids
        return {
            "logprobs": None if num_top is None else self._format.chat(delta.logprobs, num_top),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            **({"token_ids": delta.token_ids} if has_token_ids else {}),
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


def _reasoning(text: str | None) -> dict[str, str | None]:
    """Return the field of reasoning under both of the names that clients look for."""
    return {"reasoning_content": text, "reasoning": text}
