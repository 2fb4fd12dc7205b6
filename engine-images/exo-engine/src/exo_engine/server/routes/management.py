"""What operators and tools ask an engine beside computing: load, settings, the tokenizer, an empty prefix cache.

`/server_info` and `/reset_prefix_cache` are there only in vLLM's development mode (VLLM_SERVER_DEV_MODE=1), and
`/tokenizer_info` with its flag. The platform's gateway passes on neither of the first two.
"""

from __future__ import annotations

import dataclasses
import json
import platform
from typing import Any

from aiohttp import web

from exo_engine import __version__
from exo_engine.arguments import ServerOptions
from exo_engine.config import EngineConfig
from exo_engine.server.api_errors import bad_request, not_supported
from exo_engine.server.routes.openapi import describe
from exo_engine.server.routes.requests import json_response
from exo_engine.server.service import Service

_SECRET = frozenset({"api_keys"})


async def load(request: web.Request, service: Service) -> web.Response:
    """Return how many requests are being answered."""
    return json_response({"server_load": service.num_active})


async def server_info(request: web.Request, service: Service) -> web.Response:
    """Return the settings in effect, as text or as JSON."""
    form = request.query.get("config_format", "text")
    if form not in ("text", "json"):
        text = f"config_format must be 'text' or 'json', got {form[:100]!r}"
        raise bad_request(text, "config_format")
    config = {**_plain(service.options), **_plain(service.link.config)}
    lines = "\n".join(f"{name}={value!r}" for name, value in config.items())
    system = {
        "exo_engine": __version__,
        "python": platform.python_version(),
        "os": platform.platform(),
    }
    shown = lines if form == "text" else config
    return json_response({"vllm_config": shown, "vllm_env": {}, "system_env": system})


async def tokenizer_info(request: web.Request, service: Service) -> web.Response:
    """Return what tokenizer_config.json says, and the chat template in effect."""
    service.check_open()
    text = service.text
    template = text.templates.get("default") or next(iter(text.templates.values()), None)
    return json_response(
        {"tokenizer_class": None, **text.tokenizer.config, "chat_template": template}
    )


async def reset_prefix_cache(request: web.Request, service: Service) -> web.Response:
    """Have the core forget what earlier prompts left; requests in progress keep what they hold."""
    service.check_open()
    for name in ("reset_running_requests", "reset_external"):
        if request.query.get(name, "false").lower() not in ("false", "0", "no", "off"):
            raise not_supported(name, name)
    service.link.reset_prefix_cache()
    return web.Response()


async def openapi(request: web.Request, service: Service) -> web.Response:
    """Return the description of this server's routes and their fields."""
    routes = [
        (route.method, route.resource.canonical)
        for route in request.app.router.routes()
        if route.resource is not None and route.method != "HEAD"
    ]
    return json_response(describe(routes))


def _plain(settings: ServerOptions | EngineConfig | None) -> dict[str, Any]:
    """Return settings as JSON can say them, without what is secret."""
    if settings is None:
        return {}
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings), default=str))
    return {name: value for name, value in found.items() if name not in _SECRET}
