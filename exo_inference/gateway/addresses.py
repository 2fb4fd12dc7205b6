"""Takes a request's path apart: which deployment, and which path on its engine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from exo_inference.gateway import errors

_ROUTE = re.compile(
    r"/(?P<deployment>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<path>/v1(?:/[^\s?#]*)?|/v2/rerank)"
)
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. `path` begins with `/v1`, or is Cohere's `/v2/rerank`, and is as the client sent it."""

    deployment: str
    path: str


def parse_path(raw_path: str) -> Target:
    """Return where a raw (still percent-encoded) path leads.

    The deployment and `/v1` (or `/v2/rerank`, of Cohere's clients) must be there in plain letters. What follows may hold encoded slashes,
    as in `/v1/models/exo%2Ftiny-chat`, but nothing that leaves `/v1` once it is decoded.

    Raises:
        RequestRefused: 404.
    """
    match = _ROUTE.fullmatch(raw_path)
    if match is None:
        raise errors.unknown_path()
    decoded = unquote(match["path"], errors="strict") if _is_utf8(match["path"]) else "\0"
    if _FORBIDDEN.search(decoded) or not {".", ".."}.isdisjoint(decoded.split("/")):
        raise errors.unknown_path()
    return Target(match["deployment"], match["path"])


def _is_utf8(path: str) -> bool:
    try:
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        return False
    return True
