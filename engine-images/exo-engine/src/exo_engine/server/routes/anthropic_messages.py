"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's form, over the path of chat completions."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from typing import Any

from aiohttp import web

from exo_engine.server.api_errors import ApiError, renamed
from exo_engine.server.fields import Fields
from exo_engine.server.routes.anthropic_request import NAMES, as_chat
from exo_engine.server.routes.chat_answer import ChatAnswer, begin_chat
from exo_engine.server.routes.conversation import read_conversation, unhurried
from exo_engine.server.routes.formats import format_usage
from exo_engine.server.routes.message_blocks import Event, MessageBlocks
from exo_engine.server.routes.requests import json_response, note_usage, read_request
from exo_engine.server.routes.streaming import send_events
from exo_engine.server.service import Service

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


async def create_message(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request."""
    fields = await read_request(request, service)
    is_streaming = fields.boolean("stream")
    chat = await _read_chat(fields)
    try:
        model = service.check_model(fields)
        answer = await begin_chat(chat, service)
    except ApiError as exc:
        raise renamed(exc, NAMES) from exc
    writer = _Writer(service, answer, id=f"msg_{request['id']}", model=model)
    with note_usage(request, lambda: format_usage(answer.usage, service.options)):
        if is_streaming:
            return await send_events(request, writer.events(), service.readers, is_named=True)
        async for _ in writer.events():
            pass
        return json_response(writer.message)


async def count_tokens(request: web.Request, service: Service) -> web.StreamResponse:
    """Tell how many tokens the prompt of a request would have."""
    fields = await read_request(request, service)
    chat = await _read_chat(fields, is_count=True)
    service.check_model(fields)
    try:
        conversation = await read_conversation(chat, service)
    except ApiError as exc:
        raise renamed(exc, NAMES) from exc
    return json_response({"input_tokens": len(conversation.tokens)})


async def _read_chat(fields: Fields, *, is_count: bool = False) -> Fields:
    work = functools.partial(as_chat, fields, is_count=is_count)
    return await unhurried(fields.values.get("messages"), work)


class _Writer:
    """Turns pieces of an answer into a message and its events.

    Attributes:
        message: as it is so far.
    """

    def __init__(self, service: Service, answer: ChatAnswer, *, id: str, model: str) -> None:
        self._answer = answer
        self._blocks = MessageBlocks(service.text.format)
        self.message: dict[str, Any] = {
            "id": id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": self._blocks.blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of a stream; afterwards the message is complete."""
        has_begun = False
        async for deltas in self._answer.run():
            batch: list[Event] = []
            if not has_begun:
                has_begun = True
                start = {**self.message, "content": [], "usage": self._usage()}
                batch = [{"type": "message_start", "message": start}]
            for delta in deltas:
                batch += self._blocks.take(delta.pieces)
                if delta.finish_reason is not None:
                    self._note_end(delta.finish_reason, delta.stop_reason)
            if batch:
                yield batch
        yield self._end()

    def _note_end(self, reason: str, stop: str | int | None) -> None:
        if isinstance(stop, str):
            self.message.update(stop_reason="stop_sequence", stop_sequence=stop)
        elif self._blocks.has_calls and reason == "stop":
            self.message["stop_reason"] = "tool_use"
        else:
            self.message["stop_reason"] = _STOP_REASONS.get(reason, "end_turn")

    def _end(self) -> list[Event]:
        closing = self._blocks.close()
        self.message["usage"] = self._usage()
        delta = {name: self.message[name] for name in ("stop_reason", "stop_sequence")}
        usage = self.message["usage"]
        return [
            *closing,
            {"type": "message_delta", "delta": delta, "usage": usage},
            {"type": "message_stop"},
        ]

    def _usage(self) -> dict[str, int]:
        """Return the token counts; what came from the prefix cache is counted apart."""
        usage = self._answer.usage
        return {
            "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_completion_tokens,
        }
