"""The aiohttp application: routes, error objects, access to the model, one log line per request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from exo_engine import __version__
from exo_engine.errors import EngineError
from exo_engine.server.api_errors import ApiError, bad_request, from_engine
from exo_engine.server.core_link import CoreLink
from exo_engine.server.keys import credentials, needs_key
from exo_engine.server.routes import (
    anthropic_messages,
    chat,
    completions,
    embeddings,
    management,
    pooled,
    responses,
    scores,
    tokenization,
)
from exo_engine.server.routes.requests import json_response
from exo_engine.server.service import Service
from exo_engine.server.tasks import check_task
from exo_engine.server.telemetry.metrics import CONTENT_TYPE

logger = logging.getLogger("exo_engine.requests")

Route = Callable[[web.Request, Service], Awaitable[web.StreamResponse]]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_CLIENT_GONE: Final = 499  # nginx's status for it; never sent
_MAX_ID_CHARACTERS: Final = 128
STALLED_SECONDS: Final = 4.0
"""So long no layer may take; what asks /health every second knows of a hang within 5 s."""


def build_app(service: Service) -> web.Application:
    """Build the application around one service."""
    app = web.Application(
        client_max_size=service.options.max_request_body_bytes,
        middlewares=[_with_errors_and_log(service)],
    )
    for method, path, route, is_computing in _routes(service):
        handler = _handler(service, route, is_computing=is_computing)
        app.router.add_route(method, path, handler)
        if method == "GET":
            app.router.add_route("HEAD", path, handler)
    app.on_response_prepare.append(_name_server)
    app.on_response_prepare.append(_make_room(service))
    return app


def _make_room(service: Service) -> Callable[..., Awaitable[None]]:
    async def make_room(request: web.Request, response: web.StreamResponse) -> None:
        service.room.close_after(request, response)

    return make_room


async def _name_server(request: web.Request, response: web.StreamResponse) -> None:
    """Do not tell strangers which versions of what run here."""
    response.headers["Server"] = "exo-engine"


def _handler(service: Service, route: Route, *, is_computing: bool) -> _Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        if needs_key(request.path):
            service.check_key(credentials(request.headers))
        if not is_computing:
            return await route(request, service)
        service.check_open()
        if service.room.is_guest(request):
            raise _no_room()
        check_task(service.link.info, request.path)
        service.enter()
        tracing = service.tracing
        try:
            with contextlib.nullcontext() if tracing is None else tracing.under(request.headers):
                return await route(request, service)
        finally:
            service.leave()

    return handle


def _no_room() -> ApiError:
    """Return what is told to one that waited for a connection until there was no hope of one."""
    return ApiError(
        429,
        "all the connections that this replica may have are busy with other requests",
        code="connections_busy",
        headers={"Retry-After": "1"},
    )


def _with_errors_and_log(service: Service) -> Callable[..., Awaitable[web.StreamResponse]]:
    @web.middleware
    async def middleware(request: web.Request, handler: _Handler) -> web.StreamResponse:
        begin = time.monotonic()
        status = _CLIENT_GONE
        request["id"] = _request_id(request, service)
        try:
            response = await _answer(request, handler)
            if not response.prepared:
                response.headers["X-Request-Id"] = request["id"]
            status = response.status
            return response
        except (ConnectionError, asyncio.CancelledError) as exc:
            request["error"] = "the client hung up"
            if isinstance(exc, asyncio.CancelledError) or not _is_gone(request):
                raise
            # Not raised, or aiohttp would log an error of the server; nobody gets this.
            logger.debug("a client left", exc_info=exc, extra={"id": request["id"]})
            return web.Response(status=_CLIENT_GONE)
        finally:
            if service.options.is_request_log_on:
                _log(request, status, time.monotonic() - begin)

    return middleware


def _is_gone(request: web.Request) -> bool:
    return request.transport is None or request.transport.is_closing()


async def _answer(request: web.Request, handler: _Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except EngineError as exc:
        error = from_engine(exc)
    except web.HTTPException as exc:
        error = _from_http(request, exc)
    except (ConnectionError, asyncio.CancelledError):
        raise
    except RecursionError:
        error = bad_request("the request is nested too deeply", code="invalid_json")
    except Exception as exc:  # the edge: a bug must not show its insides to the client
        logger.error("a request failed unexpectedly", exc_info=exc, extra={"id": request["id"]})
        error = ApiError(500, "internal error; the log says more", code="internal_error")
    request["error"] = error.code
    body = error.anthropic_body if request.path.startswith("/v1/messages") else error.body
    return json_response(body, status=error.status, headers=error.headers)


def _from_http(request: web.Request, exc: web.HTTPException) -> ApiError:
    headers = {"Allow": exc.headers["Allow"]} if "Allow" in exc.headers else None
    what = {404: "there is no such path", 405: "this path takes another method"}
    message = f"{what.get(exc.status, exc.reason)}: {request.method} {request.path[:256]}"
    return ApiError(
        exc.status, message, code="not_found" if exc.status == 404 else None, headers=headers
    )


def _request_id(request: web.Request, service: Service) -> str:
    given = request.headers.get("X-Request-Id", "")
    is_plain = given.isascii() and given.isprintable() and len(given) <= _MAX_ID_CHARACTERS
    return given if given and is_plain else service.new_id()


def _log(request: web.Request, status: int, seconds: float) -> None:
    resource = request.match_info.route.resource
    route = resource.canonical if resource else "unknown"
    is_quiet = route in ("/health", "/ping", "/metrics") and status in (200, 503)
    extra = {"id": request["id"], "status": status, "seconds": round(seconds, 4)}
    usage = request.get("usage")
    if usage:
        extra["prompt_tokens"] = usage["prompt_tokens"]
        extra["completion_tokens"] = usage.get("completion_tokens", 0)
        extra["cached_tokens"] = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    if request.get("error"):
        extra["error"] = request["error"]
    logger.log(
        logging.DEBUG if is_quiet else logging.INFO, "%s %s", request.method, route, extra=extra
    )


async def _health(request: web.Request, service: Service) -> web.Response:
    body = _state(service)
    if service.options.simulation is not None:
        body["simulated"] = True
    return json_response(body, status=200 if body["status"] == "ok" else 503)


def _state(service: Service) -> dict[str, object]:
    if service.link.failure is not None:
        return {"status": "failed", "detail": service.link.failure.message}
    if service.phase == "starting":
        return {"status": "starting", "detail": service.progress}
    if service.phase == "draining":
        return {"status": "draining"}
    return _progress(service.link)


def _progress(link: CoreLink) -> dict[str, object]:
    seconds = link.stalled_seconds()
    if seconds < STALLED_SECONDS:
        return {"status": "ok"}
    detail = f"nothing was computed for {seconds:.0f} s while {link.num_unfinished} sequences are to be answered"
    return {"status": "stalled", "detail": detail}


async def _version(request: web.Request, service: Service) -> web.Response:
    body: dict[str, object] = {"version": __version__}
    simulation = service.options.simulation
    if simulation is not None:
        keys = ("model", "gpu", "gpu_count", "engine", "engine_version")
        body["simulation"] = {key: getattr(simulation, key) for key in keys}
    return json_response(body)


async def _measurements(request: web.Request, service: Service) -> web.Response:
    if service.link.info is None:
        service.check_open()
    return json_response(service.measurements)


async def _metrics(request: web.Request, service: Service) -> web.Response:
    service.metrics.set_unfinished(service.link.num_unfinished)
    return web.Response(body=service.metrics.render(), headers={"Content-Type": CONTENT_TYPE})


async def _models(request: web.Request, service: Service) -> web.Response:
    service.check_open()
    data = [_model_card(service, name) for name in service.options.served_model_names]
    return json_response({"object": "list", "data": data})


async def _model(request: web.Request, service: Service) -> web.Response:
    service.check_open()
    name = request.match_info["model"]
    if name not in service.options.served_model_names:
        raise ApiError(
            404,
            f"the model {name[:256]!r} does not exist here",
            code="model_not_found",
            param="model",
        )
    return json_response(_model_card(service, name))


def _model_card(service: Service, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "exo-engine",
        "root": service.options.served_model_names[0],
        "parent": None,
        "max_model_len": service.max_model_len,
        "permission": [],
    }


_Row = tuple[str, str, Route, bool]
_ROUTES: Final[tuple[_Row, ...]] = (
    ("GET", "/health", _health, False),
    ("GET", "/ping", _health, False),
    ("POST", "/ping", _health, False),
    ("GET", "/version", _version, False),
    ("GET", "/measurements", _measurements, False),
    ("GET", "/metrics", _metrics, False),
    ("GET", "/load", management.load, False),
    ("GET", "/openapi.json", management.openapi, False),
    ("GET", "/v1/models", _models, False),
    ("GET", "/v1/models/{model:.+}", _model, False),
    ("POST", "/v1/completions", completions.create_completion, True),
    ("POST", "/v1/chat/completions", chat.create_chat_completion, True),
    ("POST", "/v1/responses", responses.create_response, True),
    ("POST", "/v1/messages", anthropic_messages.create_message, True),
    ("POST", "/v1/messages/count_tokens", anthropic_messages.count_tokens, True),
    ("POST", "/v1/embeddings", embeddings.create_embeddings, True),
    ("POST", "/v1/score", scores.create_scores, True),
    ("POST", "/score", scores.create_scores, True),
    ("POST", "/v1/rerank", scores.create_ranking, True),
    ("POST", "/rerank", scores.create_ranking, True),
    ("POST", "/v2/rerank", scores.create_ranking, True),
    ("POST", "/pooling", pooled.create_pooling, True),
    ("POST", "/classify", pooled.create_classification, True),
    ("POST", "/tokenize", tokenization.tokenize, True),
    ("POST", "/detokenize", tokenization.detokenize, True),
)
"""Method, path, what answers, and whether it computes: then it waits for the model and counts as load."""
_TOKENIZER_INFO: Final[_Row] = ("GET", "/tokenizer_info", management.tokenizer_info, False)
_DEVELOPMENT: Final[tuple[_Row, ...]] = (
    ("GET", "/server_info", management.server_info, False),
    ("POST", "/reset_prefix_cache", management.reset_prefix_cache, False),
)


def _routes(service: Service) -> tuple[_Row, ...]:
    """Return what this server answers, by its flags."""
    options = service.options
    named = (_TOKENIZER_INFO,) if options.has_tokenizer_info else ()
    return (*_ROUTES, *named, *(_DEVELOPMENT if options.is_dev_mode_on else ()))
