"""POST /pooling and /classify, as vLLM has them: what a model that embeds, scores or tells labels makes of texts."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from exo_engine.server.api_errors import not_supported
from exo_engine.server.fields import Fields
from exo_engine.server.known_fields import CLASSIFY, POOLING, check_fields
from exo_engine.server.pooling import Pooling, pooling_of, read_cutting, read_options, read_texts
from exo_engine.server.routes.embeddings import read_form, shown_as
from exo_engine.server.routes.long_answers import send_items
from exo_engine.server.routes.requests import note_usage, read_request
from exo_engine.server.service import Service

_PER_TOKEN: Final = ("token_embed", "token_classify", "encode")


async def create_pooling(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer with the numbers as the model makes them: vectors, scores, or one per label."""
    fields = await read_request(request, service)
    check_fields(fields, POOLING)
    model = service.check_model(fields)
    _check_task(fields, service)
    is_base64 = read_form(fields)
    pooling = await _read(fields, service)
    with note_usage(request, pooling.usage):
        found = await pooling.run()
    items = (
        {"index": index, "object": "pooling", "data": shown_as(each, is_base64=is_base64)}
        for index, each in enumerate(found)
    )
    head = _head(f"pool-{request['id']}", model, pooling, service)
    return await send_items(request, head, "data", items, service.readers)


async def create_classification(request: web.Request, service: Service) -> web.StreamResponse:
    """Answer with the likeliest label of each text, and the numbers of all."""
    fields = await read_request(request, service)
    check_fields(fields, CLASSIFY)
    model = service.check_model(fields)
    pooling = await _read(fields, service)
    with note_usage(request, pooling.usage):
        found = await pooling.run()
    labels = pooling_of(service).labels
    items = (
        {
            "index": index,
            "label": labels[max(range(len(each)), key=each.__getitem__)],
            "probs": each.tolist(),
            "num_classes": len(each),
        }
        for index, each in enumerate(found)
    )
    head = _head(f"classify-{request['id']}", model, pooling, service)
    return await send_items(request, head, "data", items, service.readers)


async def _read(fields: Fields, service: Service) -> Pooling:
    options = read_options(fields, service)
    texts = await read_texts(fields, read_cutting(fields, service), service)
    return Pooling(service, texts, options)


def _check_task(fields: Fields, service: Service) -> None:
    """Refuse a task that is not the model's own; vLLM calls scores a classification, too."""
    task = fields.string("task")
    if task in _PER_TOKEN:
        raise not_supported(fields.name("task"), "numbers for each token")
    own = pooling_of(service).task
    known = ("embed",) if own == "embed" else ("classify", own)
    if task is not None and task not in known:
        raise fields.wrong("task", " or ".join(sorted(set(known))))


def _head(id: str, model: str, pooling: Pooling, service: Service) -> dict[str, Any]:
    return {
        "id": id,
        "object": "list",
        "created": service.now(),
        "model": model,
        "usage": pooling.usage(),
    }
