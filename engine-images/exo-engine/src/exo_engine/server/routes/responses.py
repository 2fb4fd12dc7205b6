"""POST /v1/responses: OpenAI's newer form of a conversation, over the path of chat completions."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator
from typing import Any

from aiohttp import web

from exo_engine.server.api_errors import ApiError, renamed
from exo_engine.server.fields import Fields
from exo_engine.server.inner_fields import RESPONSES_STREAM
from exo_engine.server.known_fields import check_fields
from exo_engine.server.routes.chat_answer import ChatAnswer, begin_chat
from exo_engine.server.routes.conversation import unhurried
from exo_engine.server.routes.formats import format_usage
from exo_engine.server.routes.output_items import Event, OutputItems
from exo_engine.server.routes.requests import json_response, note_usage, read_request
from exo_engine.server.routes.responses_request import NAMES, as_chat
from exo_engine.server.routes.streaming import send_events
from exo_engine.server.service import Service


async def create_response(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer one request."""
    fields = await read_request(request, service)
    is_streaming = fields.boolean("stream")
    check_fields(
        Fields(fields.mapping("stream_options"), prefix="stream_options."), RESPONSES_STREAM
    )
    chat = await unhurried(fields.values.get("input"), functools.partial(as_chat, fields))
    try:
        model = service.check_model(fields)
        answer = await begin_chat(chat, service)
    except ApiError as exc:
        raise renamed(exc, NAMES) from exc
    writer = _Writer(service, answer, fields, id=f"resp_{request['id']}", model=model)
    with note_usage(request, lambda: format_usage(answer.usage, service.options)):
        if is_streaming:
            return await send_events(request, writer.events(), service.readers, is_named=True)
        async for _ in writer.events():
            pass
        return json_response(writer.response)


class _Writer:
    """Turns pieces of an answer into a response and its events.

    Attributes:
        response: as it is so far.
    """

    def __init__(
        self, service: Service, answer: ChatAnswer, fields: Fields, *, id: str, model: str
    ) -> None:
        self._answer = answer
        self._service = service
        self._items = OutputItems(service.text.format)
        self.response: dict[str, Any] = {
            "id": id,
            "object": "response",
            "created_at": service.now(),
            "status": "in_progress",
            "model": model,
            "output": self._items.items,
            **_echoed(fields),
            # Behind what clients send: who reads a long answer as it passes takes the last one for the usage.
            "usage": None,
        }

    async def events(self) -> AsyncGenerator[list[Event], None]:
        """Yield the events of a stream; afterwards the response is complete."""
        reason: str | None = None
        has_begun = False
        async for deltas in self._answer.run():
            batch: list[Event] = []
            if not has_begun:
                has_begun = True
                batch = [self._tell("created"), self._tell("in_progress")]
            for delta in deltas:
                batch += self._items.take(delta.pieces)
                reason = delta.finish_reason or reason
            if batch:
                yield batch
        yield self._end("incomplete" if reason == "length" else "completed")

    def _end(self, status: str) -> list[Event]:
        closing = self._items.close(status)
        usage = self._answer.usage
        self.response["status"] = status
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        self.response["usage"] = {
            "input_tokens": usage.num_prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": usage.num_cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": usage.num_completion_tokens,
            "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens or 0},
            "total_tokens": usage.num_prompt_tokens + usage.num_completion_tokens,
        }
        return [*closing, self._tell(status)]

    def _tell(self, what: str) -> Event:
        output = [dict(item) for item in self._items.items]
        return self._items.event(what, response={**self.response, "output": output})


def _echoed(fields: Fields) -> dict[str, Any]:
    """Return what a response repeats of its request."""
    defaults: dict[str, Any] = {
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": None,
        "store": False,
        "temperature": None,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
    }
    same = (name for name in defaults if name != "store" and fields.has(name))
    return {**defaults, **{name: fields.values[name] for name in same}}
