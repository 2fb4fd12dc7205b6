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
from exo_engine.server.api_errors import from_engine

_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # or nginx would collect the stream before passing it on
}


async def send_events(
    request: web.Request, events: AsyncGenerator[list[dict[str, Any]], None]
) -> web.StreamResponse:
    """Send events as they come, those of one step in one write.

    Raises:
        EngineError: nothing was sent yet, and the first events could not be made.
    """
    response = web.StreamResponse(headers={**_HEADERS, "X-Request-Id": request["id"]})
    async with aclosing(events):
        try:
            async for batch in events:
                if not response.prepared:
                    await response.prepare(request)
                await response.write(b"".join(_event(each) for each in batch))
        except EngineError as exc:
            if not response.prepared:
                raise
            request["error"] = exc.message
            await response.write(_event(from_engine(exc).body))
        if not response.prepared:
            await response.prepare(request)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
    return response


def _event(value: dict[str, Any]) -> bytes:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"data: {body}\n\n".encode(errors="replace")
