"""Keeping a cache up to date: list once, then watch, for as long as the store is open.

A watch that ends or breaks is taken up where it stopped; one that is too old for the server (410)
begins again with a list, of which only the differences are told. While the API cannot be reached the
cache stays as it was, so reads go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any

from exo_inference.controller.stores.base import StoreUnreachable
from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import (
    ApiRefusal,
    KubernetesApi,
    object_path,
)
from exo_inference.resources import API_VERSION

logger = logging.getLogger(__name__)

PAGE_OBJECTS = 500
WATCH_SECONDS = 300
"""After so long, and up to half as long again, the server ends a watch: a load balancer is used anew."""

MAX_DELAY_SECONDS = 2.0
_EXPIRED = 410


class Follower:
    """Feeds one cache. `list_all` comes before `run`."""

    def __init__(self, api: KubernetesApi, cache: Cache) -> None:
        self._api = api
        self._cache = cache
        self._path = object_path(api, cache.kind.PLURAL, group=API_VERSION)
        self._version: str | None = None

    async def list_all(self) -> None:
        """Read all objects, page by page.

        Raises:
            StoreUnreachable
            ApiRefusal: among others 404, the cluster does not know the kind.
        """
        asked_at = self._cache.version
        query = {"limit": str(PAGE_OBJECTS)}
        items: list[dict[str, Any]] = []
        while True:
            page = await self._api.get(self._path, query)
            # The items of a list do not repeat what the list says of all of them.
            items += [{"apiVersion": page["apiVersion"], **item} for item in page["items"]]
            metadata = page["metadata"]
            if not metadata.get("continue"):
                break
            query = {**query, "continue": metadata["continue"]}
        version = metadata["resourceVersion"]
        self._cache.replace(items, int(version), asked_at=asked_at)
        self._version = version

    async def run(self) -> None:
        """Follow all changes until cancelled."""
        delay = 0.0
        while True:
            try:
                if self._version is None:
                    await self.list_all()
                await self._follow()
                delay = 0.0
                continue
            except ApiRefusal as exc:
                if exc.status_code == _EXPIRED or exc.reason == "Timeout":
                    self._version = None  # too old, or of a time before the cluster was restored
                self._say(exc, delay)
            except StoreError as exc:
                self._say(exc, delay)
            except Exception:
                logger.exception("watching %s failed unexpectedly", self._cache.kind.PLURAL)
                self._version = None
            delay = min(max(2 * delay, 0.05), MAX_DELAY_SECONDS)
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 -- not a secret

    def _say(self, exc: StoreError, delay: float) -> None:
        """Say that a watch broke; once, and again when it stays so."""
        level = logging.WARNING if delay >= MAX_DELAY_SECONDS else logging.INFO
        logger.log(level, "watching %s again: %s", self._cache.kind.PLURAL, exc.message)

    async def _follow(self) -> None:
        seconds = WATCH_SECONDS * random.uniform(1.0, 1.5)  # noqa: S311 -- not a secret
        query = {
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(seconds)),
        }
        async with contextlib.aclosing(self._api.watch(self._path, query)) as events:
            async for event in events:
                self._take(event["type"], event["object"])

    def _take(self, type_: str, raw: dict[str, Any]) -> None:
        if type_ == "ERROR":
            code = int(raw.get("code", 0))
            text = str(raw.get("message", raw))[:256]
            if code:
                raise ApiRefusal(text, status_code=code, reason=str(raw.get("reason", "")))
            raise StoreUnreachable(text)
        if type_ == "DELETED":
            self._cache.observe_deletion(raw)
        elif type_ in ("ADDED", "MODIFIED"):
            self._cache.observe(raw)
        self._version = raw["metadata"]["resourceVersion"]
