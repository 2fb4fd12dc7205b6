"""The HTTP server below the gateway: bounds on connections, and answers to what is not HTTP.

`app.py` gets every request that could be parsed. What could not be is answered here, with the
OpenAI error object, and logged by its kind alone: aiohttp itself would log the whole head, and so
the key in it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from exo_inference import acceptor
from exo_inference.connection_limits import end_when_stalled
from exo_inference.gateway import errors

logger = logging.getLogger(__name__)

IDLE_SECONDS = 75.0
"""How long a connection may be without a whole request head, from its start or the last answer."""

LINGER_SECONDS = 2.0
"""For how long the rest of a refused body is read, so that the client sees the refusal."""

MAX_LINE_BYTES = 8190

_UNKNOWN_VERSION = web.RequestKey("unknown_version", bool)


class Server(web.Server):
    """aiohttp's server with our connections.

    Attributes:
        is_closing: every answer from now on is the last one on its connection, and says so.
        max_kept: with more connections than this, none is kept after its answer.
        on_lost: called with each connection that has ended.
    """

    is_closing = False
    max_kept: int | None = None
    on_lost: Callable[[acceptor.Connection], None] = staticmethod(lambda _: None)

    def __call__(self) -> Connection:
        """Return the protocol of one new connection."""
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=LINGER_SECONDS,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            auto_decompress=False,  # `uploads.py` does, within bounds
            access_log=None,
            logger=logger,
        )

    def _make_request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        known = message.version in (HttpVersion10, HttpVersion11)
        if not known:  # the answer must be in a version that there is
            message = message._replace(version=HttpVersion11)
        is_full = self.max_kept is not None and len(self.connections) > self.max_kept
        if self.is_closing or is_full or not known:
            message = message._replace(should_close=True)
        if isinstance(protocol, Connection):
            protocol.idle_since = None
        request = super()._make_request(message, payload, protocol, writer, task)
        request[_UNKNOWN_VERSION] = not known
        return request


def check_head(request: web.BaseRequest) -> None:
    """Refuse a head that HTTP libraries let pass and that has no clear meaning.

    Raises:
        RequestRefused: 505 an HTTP version that is not served, 400 more than one key.
    """
    if request[_UNKNOWN_VERSION]:
        raise errors.RequestRefused(
            505,
            "http_version_not_supported",
            "only HTTP/1.1 and HTTP/1.0 are served",
            headers={"Connection": "close"},
        )
    if len(request.headers.getall("Authorization", ())) > 1:
        raise errors.RequestRefused(
            400, "ambiguous_api_key", "the request has more than one Authorization header"
        )


class Connection(web.RequestHandler):
    """One connection of a client.

    Attributes:
        idle_since: when it last began to wait for a whole request head; None while a request is answered.
        address: where it comes from.
    """

    __slots__ = ("_server", "address", "idle_since")

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(server, **options)
        self._server = server
        self.address = ""
        self.idle_since: float | None = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, and bound how long the client may take nothing."""
        super().connection_made(transport)
        if (own := transport.get_extra_info("socket")) is not None:
            end_when_stalled(own)
        self.address = str((transport.get_extra_info("peername") or ("",))[0])

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        super().connection_lost(exc)
        self._server.on_lost(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the rest of an answer, and wait for the next request."""
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self.idle_since = self._loop.time()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed, or what the handler failed at."""
        if isinstance(exc, ConnectionError):
            raise exc  # the client has hung up
        self.log_exception("no answer could be made", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("a part of the answer was sent already")
        response = _refusal_of(exc).to_response()
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log the kind of a failure: texts and tracebacks of parsers hold what the client sent."""
        exc = kw.get("exc_info")
        kind = type(exc).__name__ if isinstance(exc, BaseException) else "failure"
        level = logging.INFO if isinstance(exc, HttpProcessingError) else logging.ERROR
        logger.log(level, "a request was refused unread or broken off: %s", kind)


def _refusal_of(exc: BaseException | None) -> errors.RequestRefused:
    close = {"Connection": "close"}
    if isinstance(exc, LineTooLong):
        return errors.RequestRefused(
            431,
            "request_header_fields_too_large",
            f"the request's first line, or one of its headers, is longer than {MAX_LINE_BYTES} bytes",
            headers=close,
        )
    if isinstance(exc, HttpProcessingError):
        return errors.RequestRefused(
            400, "malformed_request", "the request is not well-formed HTTP/1.1", headers=close
        )
    return errors.RequestRefused(
        500, "internal_error", "the gateway failed", type="server_error", headers=close
    )
