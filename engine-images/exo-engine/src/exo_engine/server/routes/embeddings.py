"""POST /v1/embeddings: texts in, vectors out."""

from __future__ import annotations

import base64
import sys
from array import array

from aiohttp import web

from exo_engine.server.fields import Fields
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
    is_base64 = read_form(fields)
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
    items = (
        {"object": "embedding", "index": index, "embedding": shown_as(vector, is_base64=is_base64)}
        for index, vector in enumerate(vectors)
    )
    return await send_items(request, head, "data", items, service.readers)


def read_form(fields: Fields) -> bool:
    """Read `encoding_format`: whether vectors are told in base64.

    Raises:
        ApiError: it is none.
    """
    form = fields.string("encoding_format")
    if form not in (None, "float", "base64"):
        raise fields.wrong("encoding_format", "float or base64")
    return form == "base64"


def shown_as(vector: array[float], *, is_base64: bool) -> list[float] | str:
    """Return the numbers, or them as OpenAI's clients read them: float32, little-endian, in base64."""
    if not is_base64:
        return vector.tolist()
    if sys.byteorder == "big":
        vector = array("f", vector)
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
