"""Which model a request asks for, found out only where it decides which replicas may get the request.

That is while a deployment is replaced by one with another model. The body is searched, not parsed: of the names
that it has where a model's name would be, one that the table knows is meant. A mistake costs nothing: a request that
names no known model is answered by any replica. `proxy.py` asks; decides nothing about replicas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from urllib.parse import unquote

from exo_inference.gateway.table import Deployment

MODELS_PATH = "/v1/models"

MAX_NAMES = 64
"""More are not looked at: a body with so many names is parsed instead, if it is short."""

_PARSED_BYTES = 1 << 20
"""A longer body is not parsed: that would hold up all others."""

_KEY = b'"model"'
_VALUE = re.compile(rb'"model"[ \t\r\n]*+:[ \t\r\n]*+("(?:[^"\\]|\\.){0,512}+")')
_FIELD = b'name="model"'
_FIELD_VALUE = re.compile(
    rb'name="model"[^\r\n]*+\r\n(?:[^\r\n]++\r\n){0,8}+\r\n([^\r\n]{1,512}+)\r\n'
)


class RequestedModel:
    """The model that one request asks for; remembers what was found.

    Args:
        path: begins with `/v1`.
        body: of the request, decoded.
    """

    __slots__ = ("_body", "_names", "_path", "_top")

    def __init__(self, path: str, body: bytes) -> None:
        self._path = path
        self._body = body
        self._names: tuple[str, ...] | None = None
        self._top: str | None = None

    def narrow(self, deployment: Deployment) -> Deployment:
        """Return the deployment with the replicas alone that may get the request."""
        if not deployment.by_model:
            return deployment
        return deployment.with_model(self._find(deployment.by_model.keys()))

    def names(self, model: str) -> bool:
        """Whether this model is asked for."""
        if self._find((model,)) != model:
            return False
        return self._names == (model,) or _parsed_name(self._body) == model

    def _find(self, known: Collection[str]) -> str | None:
        """Return the name that is asked for: a known one where there is one; None where there is none."""
        if self._names is None:
            self._names = _names_of(self._path, self._body)
        found = [name for name in self._names if name in known]
        if len(found) > 1:  # an object within may have a model too
            if self._top is None:
                self._top = _parsed_name(self._body)
            return self._top
        return (found or self._names or (None,))[0]


def _names_of(path: str, body: bytes) -> tuple[str, ...]:
    """Return the names that may be meant, each once."""
    if not body:
        name = unquote(path).removeprefix(f"{MODELS_PATH}/")
        return () if name == unquote(path) else (name,)
    if body.startswith(b"--"):
        return _names_of_form(body)
    names: dict[str, None] = {}
    at = body.find(_KEY)
    for _ in range(MAX_NAMES):
        if at < 0:
            break
        value = _VALUE.match(body, at)
        if value is not None and (name := _text(value[1])):
            names[name] = None
        at = body.find(_KEY, at + len(_KEY))
    # The key may be spelled with escapes, or in UTF-16; and what was not looked at may be meant.
    is_spelled = not names and (b"\\u" in body or b"\0" in body)
    if (is_spelled or at >= 0) and (name := _parsed_name(body)):
        return (name,)
    return tuple(names)


def _names_of_form(body: bytes) -> tuple[str, ...]:
    """Return the name in a form, as audio is sent in."""
    value = _FIELD_VALUE.match(body, max(0, body.find(_FIELD)))
    return () if value is None else (value[1].decode("utf-8", "replace").strip(),)


def _text(literal: bytes) -> str:
    try:
        return str(json.loads(literal))
    except ValueError:
        return ""


def _parsed_name(body: bytes) -> str:
    """Return the name that a body of JSON has; empty where it has none, or is too long to be parsed."""
    if len(body) > _PARSED_BYTES:
        return ""
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    name = request.get("model") if isinstance(request, dict) else None
    return name if isinstance(name, str) else ""
