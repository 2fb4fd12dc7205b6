"""Keeping what is known of a collection up to date: list once, then watch, until cancelled.

A watch that ends or breaks is taken up where it stopped; one that is too old for the server (410)
begins again with a list. While the API cannot be reached what is known stays as it was, so reads go
on. The store's caches and the informers of the platform and the gateway are fed by it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import Any, Protocol

from exo_inference.errors import StoreError, StoreUnreachable
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi

logger = logging.getLogger(__name__)

PAGE_OBJECTS = 500
WATCH_SECONDS = 300
"""After so long, and up to half as long again, the server ends a watch: a load balancer is used anew."""

MAX_DELAY_SECONDS = 2.0
FORBIDDEN_DELAY_SECONDS = 60.0
"""How long to wait before asking again for what is optional and the role does not permit."""

_EXPIRED = 410


class Known(Protocol):
    """What is known of a collection.

    Attributes:
        version: the newest resourceVersion that was seen.
    """

    version: int

    def replace(self, items: list[dict[str, Any]], version: int, *, asked_at: int) -> None:
        """Take note of a complete list, of that version, asked for when `version` was `asked_at`."""

    def observe(self, raw: dict[str, Any], /) -> object:
        """Take note of an object that came or changed."""

    def observe_deletion(self, raw: dict[str, Any], /) -> None:
        """Take note of an object that went, as it was last."""


class Follower:
    """Tells one `Known` of one collection. `list_all` comes before `run`.

    Args:
        api: to ask.
        path: of the collection.
        known: is told.
        query: selectors.
        optional: ask but rarely, where the role does not permit to look.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        known: Known,
        *,
        query: dict[str, str] | None = None,
        optional: bool = False,
    ) -> None:
        self._api = api
        self._path = path
        self._known = known
        self._query = query or {}
        self._optional = optional
        self._version: str | None = None

    async def list_all(self) -> None:
        """Read all objects, page by page.

        Raises:
            StoreUnreachable
            ApiRefusal: among others 404, the cluster does not know the kind.
        """
        asked_at = self._known.version
        query = {**self._query, "limit": str(PAGE_OBJECTS)}
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
        self._known.replace(items, int(version), asked_at=asked_at)
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
                if exc.status_code == 403 and self._optional:
                    await asyncio.sleep(FORBIDDEN_DELAY_SECONDS)
                    continue
            except StoreError as exc:
                self._say(exc, delay)
            except Exception:
                logger.exception("watching %s failed unexpectedly", self._path)
                self._version = None
            delay = min(max(2 * delay, 0.05), MAX_DELAY_SECONDS)
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 -- not a secret

    def _say(self, exc: StoreError, delay: float) -> None:
        """Say that a watch broke; once, and louder when it stays so."""
        level = logging.WARNING if delay >= MAX_DELAY_SECONDS else logging.INFO
        logger.log(level, "watching %s again: %s", self._path, exc.message)

    async def _follow(self) -> None:
        seconds = WATCH_SECONDS * random.uniform(1.0, 1.5)  # noqa: S311 -- not a secret
        query = {
            **self._query,
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
            self._known.observe_deletion(raw)
        elif type_ in ("ADDED", "MODIFIED"):
            self._known.observe(raw)
        self._version = raw["metadata"]["resourceVersion"]
