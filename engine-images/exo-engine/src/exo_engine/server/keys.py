"""Which paths are for holders of a key (`--api-key`), and where a client shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_FOR_HOLDERS: Final = (
    "/v1/",
    "/v2/",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
    "/tokenize",  # and /tokenizer_info
    "/detokenize",
    "/server_info",
    "/reset_prefix_cache",
)
OTHER_HEADER: Final = "X-Api-Key"
"""In which Anthropic's clients show a key."""


def needs_key(path: str) -> bool:
    """Say whether a path is answered only to who shows a key, where the engine has any."""
    return path.startswith(_FOR_HOLDERS)


def credentials(headers: Mapping[str, str]) -> str | None:
    """Return what a client shows, in the form of the header `Authorization`; None: nothing."""
    key = headers.get(OTHER_HEADER)
    return headers.get("Authorization") or (key and f"Bearer {key}")
