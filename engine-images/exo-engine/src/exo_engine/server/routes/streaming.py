"""Server-sent events: one JSON object per event, `[DONE]` at the end, errors as an event.

The response starts with the first event, so that a request refused before that still gets a proper
error status.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from aiohttp import web

from exo_engine.errors import EngineError
from exo_engine.server.api_errors import ApiError, from_engine
from exo_engine.server.readers import Readers

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx would collect the stream before passing it on
}


async def send_events(
    request: web.Request,
    events: AsyncGenerator[list[dict[str, Any]], None],
    readers: Readers,
    *,
    is_named: bool = False,
) -> web.StreamResponse:
    """Send events as they come, those of one step in one write.

    Args:
        request: to answer.
        events: batches of them.
        readers: watches a client that does not read.
        is_named: each has its `type` as its name, and the last one is the end; without, `[DONE]` is.

    A stream that fails ends with the error and without `[DONE]`, so that nobody takes it for whole.
    A client that stops reading is hung up on, which ends its sequences.

    Raises:
        EngineError: nothing was sent yet, and the first events could not be made.
    """
    response = web.StreamResponse(headers={**_HEADERS, "X-Request-Id": request["id"]})
    end = b"" if is_named else b"data: [DONE]\n\n"

    async def write(data: bytes) -> None:
        with readers.watch(request):
            await response.write(data)

    async with aclosing(events):
        try:
            async for batch in events:
                if not response.prepared:
                    await response.prepare(request)
                await write(b"".join(_event(each, is_named=is_named) for each in batch))
        except EngineError as exc:
            if not response.prepared:
                raise
            request["error"] = exc.message
            end = _failure(from_engine(exc), is_named=is_named)
        if not response.prepared:
            await response.prepare(request)
        if end:
            await write(end)
        with readers.watch(request):
            await response.write_eof()
    return response


def _event(value: dict[str, Any], *, is_named: bool) -> bytes:
    name = f"event: {value['type']}\n" if is_named else ""
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"{name}data: {body}\n\n".encode(errors="replace")


def _failure(error: ApiError, *, is_named: bool) -> bytes:
    """Return the event of a stream that fails; a named one says both what OpenAI's and Anthropic's clients read."""
    if not is_named:
        return _event(error.body, is_named=False)
    inner = error.body["error"]
    flat = {"code": inner["code"], "message": inner["message"], "param": inner["param"]}
    return _event({"type": "error", **flat, "error": inner}, is_named=True)
