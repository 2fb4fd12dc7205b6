"""POST /v1/embeddings: texts in, vectors out."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from array import array
from typing import Any

from aiohttp import web

from exo_engine.server.known_fields import EMBEDDINGS, check_fields
from exo_engine.server.pooling import Pooling, read_cutting, read_options, read_texts
from exo_engine.server.routes.requests import note_usage, read_request
from exo_engine.server.service import Service


async def create_embeddings(request: web.Request, service: Service) -> web.Response:
    """Answer one request."""
    fields = await read_request(request, service)
    check_fields(fields, EMBEDDINGS)
    model = service.check_model(fields)
    form = fields.string("encoding_format")
    if form not in (None, "float", "base64"):
        raise fields.wrong("encoding_format", "float or base64")
    options = read_options(fields, service)
    texts = await read_texts(fields, read_cutting(fields, service), service)
    pooling = Pooling(service, texts, options)
    with note_usage(request, pooling.usage):
        vectors = await pooling.run()
    head = {
        "id": f"embd-{request['id']}",
        "object": "list",
        "created": service.now(),
        "model": model,
        "usage": pooling.usage(),
    }
    return await _response(head, vectors, is_base64=form == "base64")


async def _response(
    head: dict[str, Any], vectors: list[array[float]], *, is_base64: bool
) -> web.Response:
    """Write an answer vector by vector, between which other requests get on."""
    items = []
    for index, vector in enumerate(vectors):
        shown = _in_base64(vector) if is_base64 else vector.tolist()
        items.append(json.dumps({"object": "embedding", "index": index, "embedding": shown}))
        await asyncio.sleep(0)
    text = f'{json.dumps(head, ensure_ascii=False)[:-1]}, "data": [{", ".join(items)}]}}'
    return web.Response(
        body=text.encode(errors="replace"), content_type="application/json", charset="utf-8"
    )


def _in_base64(vector: array[float]) -> str:
    """Return the numbers as OpenAI's clients read them: float32, little-endian."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
