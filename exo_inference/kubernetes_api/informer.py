"""All objects of one kind as last seen, kept up to date by one list and one watch.

The platform of a cluster and the gateway have one informer per kind, read them, and ask the API for
nothing. `follower.py` fills it; while the API cannot be reached the objects stay as they were.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi
from exo_inference.kubernetes_api.follower import Follower

logger = logging.getLogger(__name__)

Object = dict[str, Any]


class Informer:
    """The objects of one collection.

    Attributes:
        version: the resourceVersion up to which the watch has told.

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
        self._key_of = key_of
        self._is_kept = keep
        self._on_change = on_change
        self._optional = optional
        self._objects: dict[str, Object] = {}
        self.version = 0
        self._keys: dict[str, set[str]] = {}
        self._path = path
        self._follower = Follower(api, path, self, query=query, optional=optional)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read everything once, then follow the changes in the background.

        Raises:
            StoreError: it could not be read.
        """
        try:
            await self._follower.list_all()
        except ApiRefusal as exc:
            if exc.status_code != 403 or not self._optional:
                raise
            logger.warning("going on without %s: %s", self._path, exc.message)
        self._task = asyncio.create_task(self._follower.run(), name=f"watch {self._path}")

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

    def observe_answer(self, item: Object) -> None:
        """Take note of an answer to a request of our own, which the watch may tell of only later."""
        if _version(item) > self.version:
            self._keep(item)

    def replace(self, items: list[Object], version: int, *, asked_at: int) -> None:
        """Take note of a complete list; see `follower.Known`."""
        found = {item["metadata"]["name"]: item for item in items}
        is_put_back = version < asked_at  # the cluster, to an earlier state
        for name, known in list(self._objects.items()):
            if is_put_back or (name not in found and _version(known) <= version):
                self._forget(known)
        for item in found.values():
            self._keep(item)
        self.version = version

    def observe(self, item: Object) -> None:
        """Take note of what the watch tells of an object that came or changed."""
        self.version = _version(item)
        self._keep(item)

    def observe_deletion(self, item: Object) -> None:
        """Take note of what the watch tells of an object that went."""
        self.version = _version(item)
        self._forget(item)

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
