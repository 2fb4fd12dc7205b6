"""POST /v1/embeddings: texts in, vectors out."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Any

from aiohttp import web

from exo_engine.server.known_fields import EMBEDDINGS, check_fields
from exo_engine.server.pooling import Pooling, read_cutting, read_options, read_texts
from exo_engine.server.routes.long_answers import send_items
from exo_engine.server.routes.requests import note_usage, read_request
from exo_engine.server.service import Service


async def create_embeddings(request: web.Request, service: Service) -> web.StreamResponse:
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
    items = (_item(*each, is_base64=form == "base64") for each in enumerate(vectors))
    return await send_items(request, head, "data", items, service.readers)


def _item(index: int, vector: array[float], *, is_base64: bool) -> dict[str, Any]:
    shown = _in_base64(vector) if is_base64 else vector.tolist()
    return {"object": "embedding", "index": index, "embedding": shown}


def _in_base64(vector: array[float]) -> str:
    """Return the numbers as OpenAI's clients read them: float32, little-endian."""
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
