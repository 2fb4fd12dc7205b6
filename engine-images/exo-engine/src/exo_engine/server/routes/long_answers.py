"""Answers that are one JSON object with a list of up to thousands of items: written as their client takes them.

The token counts stand ahead of the list, so that whoever counts has them even when the client leaves before the end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from aiohttp import web

from exo_engine.server.readers import Readers

PIECE_BYTES = 64 << 10
"""An answer that is longer is written in pieces of this and no length is told."""

_TYPE, _CHARSET = "application/json", "utf-8"


async def send_items(
    request: web.Request,
    head: Mapping[str, Any],
    name: str,
    items: Iterable[Mapping[str, Any]],
    readers: Readers,
) -> web.StreamResponse:
    """Answer with `head` and the list `name` behind it.

    Args:
        request: to answer.
        head: the other fields; at least one.
        name: of the list.
        items: made one by one, between which other requests get on.
        readers: watches a client that does not read.
    """
    response: web.StreamResponse | None = None
    held = bytearray(_encode(head)[:-1] + f', "{name}": ['.encode())
    separator = b""
    for item in items:
        held += separator + _encode(item)
        separator = b", "
        await asyncio.sleep(0)
        if len(held) < PIECE_BYTES:
            continue
        if response is None:
            response = web.StreamResponse(headers={"X-Request-Id": request["id"]})
            response.content_type, response.charset = _TYPE, _CHARSET
            await response.prepare(request)
        with readers.watch(request):
            await response.write(bytes(held))
        held.clear()
    held += b"]}"
    if response is None:
        return web.Response(body=bytes(held), content_type=_TYPE, charset=_CHARSET)
    with readers.watch(request):
        await response.write_eof(bytes(held))
    return response


def _encode(value: Mapping[str, Any]) -> bytes:
    """Return JSON; half of a surrogate pair, which has no UTF-8, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")
