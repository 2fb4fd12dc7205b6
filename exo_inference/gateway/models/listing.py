"""Puts together what replicas with different models answer to `GET /v1/models`. Used by `proxy.py`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import aiohttp

from exo_inference.gateway.table import Deployment, Replica

MAX_PAGE_BYTES = 256 << 10
"""A longer list is not put together with others: an engine that is not ours might send one without an end."""


def split_by_models(deployment: Deployment) -> list[Deployment]:
    """Return the deployment once for each set of names that replicas of it answer to, with these alone.

    None where all answer to the same ones.
    """
    alike: dict[frozenset[str] | None, list[Replica]] = {}
    for replica in deployment.replicas if deployment.by_model else ():
        alike.setdefault(replica.models, []).append(replica)
    groups = [replace(deployment, replicas=tuple(group)) for group in alike.values()]
    return groups if len(groups) > 1 else []


async def read_page(upstream: aiohttp.ClientResponse) -> bytes | None:
    """Return the body of an answer; None where it is no success, or longer than a list of models may be."""
    if upstream.status != 200:
        return None
    page = bytearray()
    async for part in upstream.content.iter_any():
        page += part
        if len(page) > MAX_PAGE_BYTES:
            return None
    return bytes(page)


def merge_models(pages: Sequence[bytes]) -> bytes | None:
    """Return one list with the models of all, each once, in the order of the answers.

    What else the first answer says is kept. None where fewer than two are lists of models, or what they say is
    no text.
    """
    lists = [page for page in map(_read, pages) if page is not None]
    if len(lists) < 2:
        return None
    models: dict[str, Any] = {}
    for page in lists:
        for model in page["data"]:
            if isinstance(model, dict) and isinstance(model.get("id"), str):
                models.setdefault(model["id"], model)
    try:
        merged = {**lists[0], "data": list(models.values())}
        return json.dumps(merged, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return None


def _read(page: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(page)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("data"), list) else None
