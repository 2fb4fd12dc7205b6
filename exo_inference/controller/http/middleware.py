"""What every request passes: an id, a log line, the body limit, the signature, the error boundary.

Plain ASGI, because the signature covers the raw path and the raw body. `app.py` puts it around
the router. Only `GET /v2/zone` and `GET /healthz` are open: clients fetch the zones unsigned.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from exo_inference.byte_budget import ByteBudget
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.http.auth import (
    EXPIRED_LEEWAY_SECONDS,
    READS,
    Claim,
    SignedRequest,
    Verifier,
)
from exo_inference.controller.http.body import MAX_BODY_BYTES
from exo_inference.controller.http.operations import answered_before
from exo_inference.controller.http.replays import Answer, Forgotten, ReplayMemory, Superseded
from exo_inference.controller.stores.base import (
    ChangeSuperseded,
    ObjectRefused,
    StoreTooNew,
    StoreUnwritable,
    VersionConflict,
)
from exo_inference.errors import ExoError, PlatformError

logger = logging.getLogger(__name__)
access_logger = logging.getLogger("exo_inference.controller.access")

PUBLIC_PATHS = frozenset({"/v2/zone", "/healthz"})
"""Answered without a signature, for GET and HEAD alone."""

_OBJECT = re.compile(r"/v2/ai/[a-z-]+/[0-9a-fA-F-]{36}(?=/|$)")
_TELLS_A_VALUE = re.compile(r"/v2/ai/api-key(/[^/]+/rotate)?")
"""A POST here answers with the value of a key, which another controller may have rotated away since."""

_HARMLESS_WRITES = frozenset({"/v2/ai/plan"})
"""Requests that only calculate."""

BODY_TIMEOUT_SECONDS = 30

MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
"""Of all bodies together whose signature was not checked yet. The bodies of those who name no key that there
is are not kept at all."""

ShareRefusal = Callable[[str], Awaitable[None]]
"""Tells the other controllers of a cluster the signature of a write that was refused."""

_MAX_DRAINED_BYTES = 64 * MAX_BODY_BYTES
"""A refused body is read up to here, so that a client which sends all of it first sees the answer."""


class RequestBoundary:
    """The outermost layer: names, times and logs each request, and turns errors into answers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request (or pass the lifespan on)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        # `//` comes from an endpoint configured with a trailing slash; raw_path stays as signed.
        scope["path"] = re.sub("//+", "/", scope["path"])
        scope.setdefault("state", {})["request_id"] = request_id
        started = time.monotonic()
        status = 0

        async def observed_send(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ())]}
                message["headers"].append((b"x-request-id", request_id.encode()))
            await send(message)

        try:
            _refuse_two_lengths(scope)
            await self._app(scope, receive, observed_send)
        except Exception as exc:  # the boundary: nothing passes it unanswered
            if status:  # part of the answer is out already; the client sees it break off
                logger.exception("request %s failed while it was being answered", request_id)
                raise
            await answer_error(exc, scope)(scope, receive, observed_send)
        finally:
            _log_access(scope, request_id, status, time.monotonic() - started)


class SignatureGate:
    """Reads the body, within its limit, and lets nothing unsigned through, and no write twice."""

    def __init__(
        self,
        app: ASGIApp,
        verifier: Verifier,
        memory: ReplayMemory,
        share_refusal: ShareRefusal | None = None,
    ) -> None:
        self._app = app
        self._verifier = verifier
        self._memory = memory
        self._share_refusal = share_refusal
        self._room = ByteBudget(MAX_BODIES_BYTES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request (or pass the lifespan on)."""
        path, method = scope["path"] if scope["type"] == "http" else "", scope.get("method")
        if scope["type"] != "http" or (path in PUBLIC_PATHS and method in ("GET", "HEAD")):
            await self._app(scope, receive, send)
            return
        if not path.startswith("/v2/"):
            raise Refused(
                404,
                "No such path",
                f"{method} {path[:256]} is not part of the API",
                hint="The endpoint must end in /v2, as http://HOST:PORT/v2.",
            )
        claim, body = await self._check(scope, receive)
        scope["state"].update(key_id=claim.key, signature=claim.signature)
        if _has_no_effect(scope):
            await self._app(scope, _replay(body, receive), send)
        else:
            await self._answer_once(claim, scope, body, receive, send)

    async def _check(self, scope: Scope, receive: Receive) -> tuple[Claim, bytes]:
        """Read the body and check the signature."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        authorization = [
            value.decode("latin-1") for name, value in headers if name == b"authorization"
        ]
        try:
            self._verifier.check_key(authorization)
        except Refused:
            await _read_body(receive, keep=None)
            raise
        with self._room.share() as keep:
            body = await _read_body(receive, keep=keep)
            request = SignedRequest(
                method=scope["method"],
                raw_path=scope["raw_path"].decode("latin-1"),
                query=scope["query_string"].decode("latin-1"),
                body=body,
                authorization=authorization,
            )
            return self._verifier.verify(request), body

    async def _answer_once(
        self, claim: Claim, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        """Answer a write; one whose signature came before gets the answer of then."""

        async def answer_now() -> Answer:
            messages: list[Message] = []

            async def keep(message: Message) -> None:
                messages.append(message)

            try:
                await self._app(scope, _replay(body, receive), keep)
            except Exception as exc:  # refusals are remembered as well
                messages.clear()
                await answer_error(exc, scope)(scope, receive, keep)
            answer = _to_answer(messages)
            await _send_answer(answer, send)
            return answer

        async def first() -> Answer:
            answer = await answer_now()
            if self._share_refusal is not None and answer.is_final and answer.status >= 400:
                await self._share_refusal(claim.signature)
            return answer

        until, path = claim.expires + EXPIRED_LEEWAY_SECONDS, scope["path"]
        try:
            before = await self._memory.once(
                f"{claim.key} {claim.signature}",
                until,
                first,
                target=_find_target(path),
                repeat=answer_now if _TELLS_A_VALUE.fullmatch(path) else None,
            )
        except Forgotten as exc:
            raise answered_before() from exc
        except Superseded as exc:
            raise Refused(
                409,
                "Answered before",
                "this very request was done before, and another one has changed the object since",
                hint="If it is meant once more, sign it again: a second later its signature is another one.",
            ) from exc
        if before is not None:
            await _send_answer(before, send)


def _find_target(path: str) -> str:
    """Return the part of a path that names one object; empty where it names none."""
    found = _OBJECT.match(path)
    return found[0] if found is not None else ""


def _has_no_effect(scope: Scope) -> bool:
    # A dry run in a wrong form is refused by its route.
    return (
        scope["method"] in READS
        or scope["path"] in _HARMLESS_WRITES
        or "dry-run" in QueryParams(scope["query_string"])
    )


def _to_answer(messages: list[Message]) -> Answer:
    start, *rest = messages
    body = b"".join(message.get("body", b"") for message in rest)
    return Answer(start["status"], tuple(start.get("headers", ())), body)


async def _send_answer(answer: Answer, send: Send) -> None:
    headers = list(answer.headers)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})


def answer_error(exc: Exception, scope: Scope) -> JSONResponse:
    """Return the answer for an exception; what nobody meant to raise is logged and answered 500."""
    refused = _refuse_route(exc, scope) if isinstance(exc, HTTPException) else _to_refused(exc)
    if refused is None:
        request_id = scope["state"]["request_id"]
        logger.error("request %s failed", request_id, exc_info=exc)
        refused = Refused(
            500,
            "Unexpected failure",
            f"the controller failed on request {request_id}",
            hint="Its log has the details; nothing was changed by a request that only reads.",
        )
    body = refused.to_problem().to_wire()
    return JSONResponse(body, refused.status_code, headers=refused.headers)


def _refuse_route(exc: HTTPException, scope: Scope) -> Refused:
    """Word the router's 404 and 405 like all other refusals."""
    what = f"{scope['method']} {scope['path'][:256]} is not part of the API"
    if exc.status_code == 405:
        allowed = (exc.headers or {}).get("Allow", "")
        hint = f"This path has: {allowed}."
        return Refused(405, "Not for this path", what, hint=hint, headers={"Allow": allowed})
    return Refused(404, "No such path", what, hint="Compare it with the reference of the API.")


def _to_refused(exc: Exception) -> Refused | None:
    if isinstance(exc, Refused):
        return exc
    # 412 rather than 503: some clients repeat every 5xx for 15 s and then hide its text.
    titles: dict[type[ExoError], tuple[int, str]] = {
        StoreUnwritable: (412, "Change not stored"),
        ObjectRefused: (412, "Change not stored"),
        VersionConflict: (409, "Changed meanwhile"),
        ChangeSuperseded: (409, "Changed since"),
        StoreTooNew: (412, "Object not readable"),
        PlatformError: (412, "Platform not able"),
    }
    for kind, (status, title) in titles.items():
        if isinstance(exc, kind):
            return Refused(status, title, exc.message, hint=exc.hint)
    if isinstance(exc, ExoError):
        logger.error("request refused by an error: %s", exc.message, exc_info=exc)
        return Refused(500, "Controller not able", exc.text)
    return None


def _refuse_two_lengths(scope: Scope) -> None:
    """Refuse a body that has two lengths: a proxy may go by the other one (RFC 9112 §6.1)."""
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:
        raise Refused(
            400,
            "Length not clear",
            "the request has both Content-Length and Transfer-Encoding",
            hint="Send one of them.",
            headers={"connection": "close"},
        )


async def _read_body(receive: Receive, *, keep: Callable[[int], bool] | None) -> bytes:
    """Return the body.

    Args:
        receive: brings it.
        keep: asked for room for each part, which is refused without; None reads it and keeps nothing.

    Raises:
        Refused: it did not come, is too large, or there is no room.
    """
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_SECONDS):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused(400, "Body incomplete", "the client hung up within its body")
                part = message.get("body", b"")
                size += len(part)
                if keep is not None and size <= MAX_BODY_BYTES:
                    if not keep(len(part)):
                        raise _no_room()
                    chunks.append(part)
                if size > _MAX_DRAINED_BYTES or not message.get("more_body", False):
                    break
                del message, part  # a quarter of a MiB that need not wait for the next one
    except TimeoutError as exc:
        raise Refused(
            408, "Body incomplete", f"the body did not arrive within {BODY_TIMEOUT_SECONDS} s"
        ) from exc
    if size > MAX_BODY_BYTES:
        raise Refused(
            413,
            "Body too large",
            f"the body has more than {MAX_BODY_BYTES} bytes",
            hint="No request of this API needs that much.",
            headers={"connection": "close"},
        )
    return b"".join(chunks)


def _no_room() -> Refused:
    return Refused(
        429,
        "Too many bodies",
        "the bodies of all requests together are too large at the moment",
        hint="Repeat it in a moment.",
        headers={"retry-after": "1", "connection": "close"},
    )


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that hands out the body once and then whatever comes (a disconnect)."""
    pending = [body]

    async def replay() -> Message:
        if pending:
            return {"type": "http.request", "body": pending.pop(), "more_body": False}
        return await receive()

    return replay


def _log_access(scope: Scope, request_id: str, status: int, seconds: float) -> None:
    fields = {
        "request_id": request_id,
        "method": scope["method"],
        "path": scope["path"][:256],
        "status": status,
        "duration_seconds": round(seconds, 4),
        "key_id": scope["state"].get("key_id"),
    }
    access_logger.info(
        "%s %s -> %s in %.1f ms by %s",
        fields["method"],
        ascii(fields["path"])[1:-1],
        status or "no answer",
        seconds * 1000,
        fields["key_id"] or "nobody",
        extra=fields,
    )
