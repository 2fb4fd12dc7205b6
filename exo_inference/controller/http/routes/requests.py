"""Reading what routes share: path ids, query arguments, objects by id, JSON answers."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from exo_inference.controller.admission.problems import Issue, Refused, not_found, refuse
from exo_inference.controller.stores.base import ObjectNotFound, Store
from exo_inference.resources import InferenceApiKey, InferenceDeployment, InferenceModel, Resource
from exo_inference.wire import WireModel

R = TypeVar("R", bound=Resource)

Handler = Callable[[Request], Awaitable[Response]]

_NOUNS: dict[type[Resource], str] = {
    InferenceModel: "model",
    InferenceDeployment: "deployment",
    InferenceApiKey: "API key",
}


def route(
    path: str,
    arguments: Mapping[str, Sequence[str]] | None = None,
    *,
    has_versions: bool = False,
    **handlers: Handler,
) -> Route:
    """Return one route with a handler per method, so that 405 can list them all.

    Args:
        path: with its parameters.
        arguments: the query arguments that a write takes, by its method. All others are refused:
            see `_refuse_unbound`.
        has_versions: writes honour `If-Match`; elsewhere it is refused, lest it be ignored.
        handlers: by method.
    """

    async def dispatch(request: Request) -> Response:
        method = "GET" if request.method == "HEAD" else request.method
        if method != "GET":
            _refuse_unbound(request, (arguments or {}).get(method, ()))
        if method != "GET" and not has_versions and "if-match" in request.headers:
            raise Refused(
                400,
                "No versions here",
                f"{method} {path} knows no versions, so If-Match cannot be honoured",
                hint="Leave the header out.",
            )
        return await handlers[method](request)

    return Route(path, dispatch, methods=list(handlers))


def answer(body: WireModel) -> JSONResponse:
    """Return a successful answer."""
    return JSONResponse(body.to_wire())


async def load(store: Store, kind: type[R], request: Request, *, current: bool = False) -> R:
    """Return the object that the path names.

    Args:
        store: of the object.
        kind: of the object.
        request: whose path it is.
        current: as it is now, past what is kept of it in this process.

    Raises:
        Refused: 404.
    """
    uid: str = request.path_params["id"].lower()
    try:
        return await (store.get_current if current else store.get)(kind, uid)
    except ObjectNotFound as exc:
        raise not_found(_NOUNS[kind], uid[:64]) from exc


def _refuse_unbound(request: Request, allowed: Sequence[str]) -> None:
    """Refuse a write with query arguments that its signature does not bind to their names.

    A signature covers values alone, so a signed `?dry-run=true` could be sent as `?force=true`.
    Therefore each of our arguments has its own name as its value, and a write takes no others.

    Raises:
        Refused: 400.
    """
    issues = []
    names = [name for name, _ in request.query_params.multi_items()]
    for name, value in request.query_params.multi_items():
        shown = name[:64]
        if name not in allowed:
            known = f"known: {', '.join(allowed)}" if allowed else "this request takes none"
            text = f"{shown!r} is not an argument of this request; {known}"
        elif value != name or names.count(name) > 1:
            text = f"must be given once, as {name}={name}, found {value[:64]!r}"
        else:
            continue
        issues.append(Issue(f"{shown}: {text}", f"$['{shown}']", text))
    if issues:
        raise refuse("Query not understood", issues)


def has_argument(request: Request, name: str) -> bool:
    """Return whether a write has one of our arguments, `?name=name`; its form was checked before."""
    return name in request.query_params


def read_flag(request: Request, name: str) -> bool:
    """Return a boolean query argument; absent or blank is false.

    Raises:
        Refused: 400.
    """
    text = _read_one(request, name)
    if text is None or text.lower() in ("false", "0"):
        return False
    if text.lower() in ("true", "1"):
        return True
    raise _wrong(name, f"must be true or false, found {text[:64]!r}")


def read_count(request: Request, name: str, *, default: int, maximum: int) -> int:
    """Return a query argument that is a number from 0 on.

    Raises:
        Refused: 400.
    """
    text = _read_one(request, name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) > maximum:
        raise _wrong(name, f"must be a whole number from 0 to {maximum}, found {text[:64]!r}")
    return int(text)


def read_moment(request: Request, name: str) -> datetime | None:
    """Return a query argument that is a moment with its zone (RFC 3339).

    Raises:
        Refused: 400.
    """
    text = _read_one(request, name)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise _wrong(name, f"must be a time as 2026-11-20T20:00:00Z, found {text[:64]!r}") from exc
    if moment.tzinfo is None:
        raise _wrong(name, f"needs its zone, as 2026-11-20T20:00:00Z, found {text[:64]!r}")
    return moment


def read_text(request: Request, name: str) -> str | None:
    """Return a query argument, None if it is absent or blank.

    Raises:
        Refused: 400.
    """
    return _read_one(request, name)


def _read_one(request: Request, name: str) -> str | None:
    values = request.query_params.getlist(name)
    if len(values) > 1:
        raise _wrong(name, f"must be given once, found {len(values)} times")
    return values[0] if values and values[0] else None


def _wrong(name: str, text: str) -> Refused:
    return refuse("Query not understood", [Issue(f"{name} {text}", f"$['{name}']", text)])
