"""All objects of one kind as last seen, kept up to date by one list and one watch.

The platform of a cluster and the gateway have one informer per kind, read them, and ask the API for
nothing. A watch that ends is taken up where it stopped, one that is too old (410) begins again with a list.
While the API cannot be reached the objects stay as they were.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Collection
from typing import Any

from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi

logger = logging.getLogger(__name__)

Object = dict[str, Any]

PAGE_OBJECTS = 500
WATCH_SECONDS = 300
MAX_DELAY_SECONDS = 2.0
FORBIDDEN_DELAY_SECONDS = 60.0
"""How long to wait before asking again for what the role does not permit."""


class Informer:
    """The objects of one collection.

    Args:
        api: to ask.
        path: of the collection.
        query: selectors.
        key_of: what `by_key` finds objects by; empty is nothing.
        keep: which objects are worth keeping.
        on_change: called with every object that came, changed or went.
        optional: go on without, where the role does not permit to look.
    """

    def __init__(
        self,
        api: KubernetesApi,
        path: str,
        *,
        query: dict[str, str] | None = None,
        key_of: Callable[[Object], str] = lambda item: "",
        keep: Callable[[Object], bool] = lambda item: True,
        on_change: Callable[[Object], None] = lambda item: None,
        optional: bool = False,
    ) -> None:
        self._api = api
        self._path = path
        self._query = query or {}
        self._key_of = key_of
        self._is_kept = keep
        self._on_change = on_change
        self._optional = optional
        self._objects: dict[str, Object] = {}
        self._keys: dict[str, set[str]] = {}
        self._version: str | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything once, then follow the changes in the background.

        Raises:
            StoreError: it could not be read.
        """
        try:
            await self._list_all()
        except ApiRefusal as exc:
            if exc.status_code != 403 or not self._optional:
                raise
            logger.warning("going on without %s: %s", self._path, exc.message)
        self._task = asyncio.create_task(self._run(), name=f"watch {self._path}")

    async def close(self) -> None:
        """Stop following. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def all(self) -> Collection[Object]:
        """Return every object."""
        return self._objects.values()

    def get(self, name: str) -> Object | None:
        """Return the object of that name."""
        return self._objects.get(name)

    def by_key(self, key: str) -> list[Object]:
        """Return the objects that have that key, oldest first."""
        found = [self._objects[name] for name in self._keys.get(key, ())]
        return sorted(found, key=_age)

    def known_keys(self) -> set[str]:
        """Return all keys that some object has."""
        return {key for key in self._keys if key}

    def observe(self, item: Object) -> None:
        """Take note of an answer to a request of our own, which the watch may tell of only later."""
        if self._version is None or int(item["metadata"]["resourceVersion"]) > int(self._version):
            self._keep(item)

    async def _list_all(self) -> None:
        query = {**self._query, "limit": str(PAGE_OBJECTS)}
        found: dict[str, Object] = {}
        while True:
            page = await self._api.get(self._path, query)
            found.update({item["metadata"]["name"]: item for item in page["items"]})
            metadata = page["metadata"]
            if not metadata.get("continue"):
                break
            query = {**query, "continue": metadata["continue"]}
        for name, known in list(self._objects.items()):
            if name not in found or _version(known) > _version(found[name]):  # it was put back
                self._forget(known)
        for item in found.values():
            self._keep(item)
        self._version = metadata["resourceVersion"]

    async def _run(self) -> None:
        delay = 0.0
        while True:
            try:
                if self._version is None:
                    await self._list_all()
                await self._follow()
                delay = 0.0
                continue
            except StoreError as exc:
                if isinstance(exc, ApiRefusal):  # too old (410), or the cluster was put back
                    self._version = None
                    if exc.status_code == 403:
                        await asyncio.sleep(FORBIDDEN_DELAY_SECONDS)
                        continue
                logger.info("watching %s again: %s", self._path, exc.message)
            except Exception:
                logger.exception("watching %s failed unexpectedly", self._path)
                self._version = None
            delay = min(max(2 * delay, 0.05), MAX_DELAY_SECONDS)
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311 -- not a secret

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
                if not self._take(event["type"], event["object"]):
                    return

    def _take(self, type_: str, item: Object) -> bool:
        """Take note of one event; False when the watch has to begin again."""
        if type_ == "ERROR":
            logger.info("watching %s again: %s", self._path, str(item.get("message"))[:256])
            self._version = None
            return False
        if type_ == "DELETED":
            self._forget(item)
        elif type_ in ("ADDED", "MODIFIED"):
            self._keep(item)
        self._version = item["metadata"]["resourceVersion"]
        return True

    def _keep(self, item: Object) -> None:
        if not self._is_kept(item):
            return
        item["metadata"].pop("managedFields", None)  # half of the object, and nobody reads it
        name = item["metadata"]["name"]
        known = self._objects.get(name)
        if known is not None:
            if _version(known) >= _version(item):
                return
            self._unindex(known)
        self._objects[name] = item
        self._keys.setdefault(self._key_of(item), set()).add(name)
        self._on_change(item)

    def _forget(self, item: Object) -> None:
        known = self._objects.pop(item["metadata"]["name"], None)
        if known is not None:
            self._unindex(known)
            self._on_change(known)

    def _unindex(self, item: Object) -> None:
        key = self._key_of(item)
        names = self._keys.get(key, set())
        names.discard(item["metadata"]["name"])
        if not names:
            self._keys.pop(key, None)


def _version(item: Object) -> int:
    return int(item["metadata"]["resourceVersion"])


def _age(item: Object) -> tuple[str, str]:
    metadata = item["metadata"]
    return str(metadata.get("creationTimestamp", "")), metadata["name"]
