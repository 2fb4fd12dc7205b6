"""Takes a request's path apart: which deployment, and which path on its engine. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

from exo_inference.gateway import errors

BESIDE_V1 = (
    *("/v2/rerank", "/rerank", "/score", "/pooling", "/classify", "/tokenize", "/detokenize"),
    *("/tokenizer_info", "/load", "/openapi.json", "/health"),
)
"""What Cohere's clients, vLLM's and load generators ask for beside /v1. Not what changes an engine or shows its settings."""
_BELOW_V1 = (
    *("chat/completions", "completions", "responses", "messages", "messages/count_tokens"),
    *(
        "embeddings",
        "rerank",
        "score",
        "classify",
        "pooling",
        "moderations",
        "tokenize",
        "detokenize",
    ),
    *("audio/transcriptions", "audio/translations", "audio/speech"),
    *("models", "load_lora_adapter", "unload_lora_adapter"),
)
_EXACT = frozenset({*BESIDE_V1, *(f"/v1/{each}" for each in _BELOW_V1)})
_WITH_NAMES = (
    (re.compile(r"/v1/models/.+"), "/v1/models/{model}"),
    (re.compile(r"/v1/responses/[^/]+"), "/v1/responses/{id}"),
    (re.compile(r"/v1/responses/[^/]+/cancel"), "/v1/responses/{id}/cancel"),
)
OTHER_ROUTE = "/v1/*"
_ROUTE = re.compile(
    r"/(?P<deployment>[A-Za-z0-9][A-Za-z0-9._-]*)"
    rf"(?P<path>/v1(?:/[^\s?#]*)?|{'|'.join(map(re.escape, BESIDE_V1))})"
)
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes. `path` begins with `/v1`, or is one of `BESIDE_V1`, and is as the client sent it."""

    deployment: str
    path: str


def parse_path(raw_path: str) -> Target:
    """Return where a raw (still percent-encoded) path leads.

    The deployment and `/v1` (or one of `BESIDE_V1`) must be there in plain letters. What follows `/v1` may hold encoded slashes,
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


def route_of(path: str) -> str:
    """Return one of few names for a path that `parse_path` gave: ids are left out, and what is not known has one."""
    decoded = unquote(path)
    if decoded in _EXACT:
        return decoded
    names = (name for pattern, name in _WITH_NAMES if pattern.fullmatch(decoded))
    return next(names, OTHER_ROUTE)


def _is_utf8(path: str) -> bool:
    try:
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        return False
    return True
