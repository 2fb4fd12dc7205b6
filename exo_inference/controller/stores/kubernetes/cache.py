"""All objects of one kind as last seen, and who is told of changes. No I/O.

Fed by the watch and by the answers to our own writes, in whatever order they come: only what is
newer than what is known counts, so a write is seen by its own process at once and nothing is told
twice. `store.py` reads it, `kubernetes_api/follower.py` fills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from exo_inference.controller.stores.base import Change, ChangeType
from exo_inference.kubernetes_api.objects import Stored, read_object
from exo_inference.resources import Resource

MAX_GONE = 4096
"""Deleted objects that are remembered: far more than go while one request is answered."""


class Cache:
    """The objects of one kind.

    Attributes:
        version: the newest resourceVersion that was seen.
    """

    def __init__(self, kind: type[Resource]) -> None:
        self.kind = kind
        self.version = 0
        self._objects: dict[str, Stored] = {}
        self._by_name: dict[str, set[str]] = {}
        self._by_uid: dict[str, set[str]] = {}
        self._gone: dict[str, None] = {}
        self._queues: list[asyncio.Queue[Change]] = []

    # -- reading

    def by_uid(self, uid: str) -> Stored | None:
        """Return the object whose resource has this uid."""
        return self._first(self._by_uid.get(uid, ()))

    def by_name(self, name: str) -> Stored | None:
        """Return the object whose resource has this name."""
        return self._first(self._by_name.get(name, ()))

    def all(self) -> list[Stored]:
        """Return everything, oldest first."""
        return sorted(self._objects.values(), key=lambda stored: stored.age)

    def present(self, stored: Stored) -> Resource:
        """Return a readable object's resource; of several that claim a name only one has it."""
        assert stored.resource is not None, "callers look at the problem first"
        first = self.by_name(stored.resource.metadata.name)
        if first is None or first.name == stored.name:
            return stored.resource
        metadata = stored.resource.metadata.model_copy(update={"name": stored.name})
        return stored.resource.model_copy(update={"metadata": metadata})

    def subscribe(self) -> AsyncIterator[Change]:
        """Yield what changes from this call on."""
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._queues.append(queue)

        async def changes() -> AsyncIterator[Change]:
            try:
                while True:
                    yield await queue.get()
            finally:
                self._queues.remove(queue)

        return changes()

    # -- writing

    def observe(self, raw: Mapping[str, Any]) -> Stored:
        """Take note of an object as it is, or was, and return it."""
        stored = read_object(self.kind, raw)
        self.version = max(self.version, stored.version)
        known = self._objects.get(stored.name)
        if stored.uid in self._gone or (known is not None and stored.version <= known.version):
            return stored
        if known is not None and known.uid != stored.uid:
            self._remove(known)
            known = None
        self._keep(stored, known)
        return stored

    def forget(self, name: str, uid: str) -> None:
        """Take note that an object is gone."""
        known = self._objects.get(name)
        # Answers that are still on their way may tell of what was before; no uid comes again.
        self._gone[uid] = None
        if len(self._gone) > MAX_GONE:
            self._gone.pop(next(iter(self._gone)))
        if known is not None and known.uid == uid:
            self._remove(known)

    def observe_deletion(self, raw: Mapping[str, Any]) -> None:
        """Take note of what the watch tells of an object that is gone."""
        meta = raw["metadata"]
        self.version = max(self.version, int(meta["resourceVersion"]))
        self.forget(meta["name"], meta["uid"])

    def replace(self, items: Iterable[Mapping[str, Any]], version: int, *, asked_at: int) -> None:
        """Take note of a complete list.

        Args:
            items: all objects.
            version: of the list.
            asked_at: `version` of this cache when the list was asked for.
        """
        if version < asked_at:  # the cluster was put back to an earlier state
            for stored in list(self._objects.values()):
                self._remove(stored)
            self._gone.clear()
        present = {item["metadata"]["name"]: item for item in items}
        for name, stored in list(self._objects.items()):
            if name not in present and stored.version <= version:
                self._remove(stored)
        for item in present.values():
            self.observe(item)
        self.version = version if version < asked_at else max(self.version, version)

    def _first(self, names: Iterable[str]) -> Stored | None:
        claims = (self._objects[name] for name in names)
        # An object's own name outranks one that another was renamed to; then the older has it.
        is_alias = self.kind.KIND == "InferenceDeployment"
        return min(claims, key=lambda s: (is_alias and s.is_renamed, s.age), default=None)

    def _keep(self, stored: Stored, known: Stored | None) -> None:
        if known is not None:
            self._unindex(known)
        self._objects[stored.name] = stored
        self._by_uid.setdefault(stored.resource_uid, set()).add(stored.name)
        if stored.resource is not None:
            self._by_name.setdefault(stored.resource.metadata.name, set()).add(stored.name)
        self._tell(ChangeType.ADDED if known is None else ChangeType.MODIFIED, stored)

    def _remove(self, stored: Stored) -> None:
        self._tell(ChangeType.DELETED, stored)
        self._unindex(stored)
        del self._objects[stored.name]

    def _unindex(self, stored: Stored) -> None:
        _drop(self._by_uid, stored.resource_uid, stored.name)
        if stored.resource is not None:
            _drop(self._by_name, stored.resource.metadata.name, stored.name)

    def _tell(self, change: ChangeType, stored: Stored) -> None:
        if stored.resource is None:
            return
        told = Change(change, self.present(stored))
        for queue in self._queues:
            queue.put_nowait(told)


def _drop(index: dict[str, set[str]], key: str, name: str) -> None:
    names = index.get(key, set())
    names.discard(name)
    if not names:
        index.pop(key, None)
