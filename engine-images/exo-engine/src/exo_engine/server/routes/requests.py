"""What every route that computes does with its HTTP request before and after its own work."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from exo_engine.server.api_errors import ApiError
from exo_engine.server.fields import Fields, parse_object
from exo_engine.server.service import Service


async def read_request(request: web.Request, service: Service) -> Fields:
    """Read the JSON body of a request that needs the model.

    Raises:
        ApiError: the server is not open, or the body is too large or not a JSON object.
    """
    service.check_open()
    try:
        body = await request.read()
    except web.HTTPRequestEntityTooLarge as exc:
        raise ApiError(
            413,
            "the request body is larger than "
            f"{service.options.max_request_body_bytes} bytes (--max-request-body-bytes)",
            code="request_too_large",
        ) from exc
    except web.RequestPayloadError as exc:
        # What follows on this connection cannot be told from the rest of the body.
        close = {"Connection": "close"}
        text = "the request body cannot be read"
        raise ApiError(400, text, code="invalid_body", headers=close) from exc
    return parse_object(body)


@contextmanager
def note_usage(request: web.Request, usage: Callable[[], dict[str, Any]]) -> Iterator[None]:
    """Leave the token counts for the request log, however the request ends."""
    try:
        yield
    finally:
        request["usage"] = usage()


def json_response(
    body: dict[str, Any], *, status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    """Return a JSON response; text is not escaped to ASCII."""
    text = json.dumps(body, ensure_ascii=False)
    return web.Response(
        # Half of a surrogate pair has no UTF-8; an error may quote one that a client sent.
        body=text.encode(errors="replace"),
        status=status,
        headers=headers,
        content_type="application/json",
        charset="utf-8",
    )
