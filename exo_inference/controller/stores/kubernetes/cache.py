"""All objects of one kind as last seen, and who is told of changes. No I/O.

Fed by the watch and by the answers to our own writes, in whatever order they come: only what is
newer than what is known counts, so a write is seen by its own process at once and nothing is told
twice. `store.py` reads it, `kubernetes_api/follower.py` fills it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from exo_inference.controller.stores.base import Change, ChangeType
from exo_inference.controller.stores.deletion_waiters import DeletionWaiters
from exo_inference.kubernetes_api.identity import Claims, Seal, sealed_annotation
from exo_inference.kubernetes_api.objects import Stored, read_object
from exo_inference.resources import Resource

_OF_ITS_UID = ("uid", "url", "release", "key_sha256", "path")
"""Fields of a status that hang on the uid."""

MAX_GONE = 4096
"""Deleted objects that are remembered: far more than go while one request is answered."""


class Cache:
    """The objects of one kind.

    Attributes:
        version: the newest resourceVersion that was seen.

    Args:
        kind: of the objects.
        claims: who has which uid, among the objects of all kinds.
        seal: of the controllers; None is without.
    """

    def __init__(
        self, kind: type[Resource], claims: Claims | None = None, seal: Seal | None = None
    ) -> None:
        self.kind = kind
        self._seal = seal
        self._claims = Claims() if claims is None else claims
        self.version = 0
        self._objects: dict[str, Stored] = {}
        self._by_name: dict[str, set[str]] = {}
        self._by_own_uid: dict[str, str] = {}
        self._gone: dict[str, None] = {}
        self._queues: list[asyncio.Queue[Change]] = []
        self._departures = DeletionWaiters()

    # -- reading

    def by_uid(self, uid: str) -> Stored | None:
        """Return the object whose resource has this uid."""
        holder = self._claims.holder(uid)
        name = None if holder is None else self._by_own_uid.get(holder.own)
        stored = None if name is None else self._objects[name]
        return stored if stored is not None and self.uid_of(stored) == uid else None

    def uid_of(self, stored: Stored) -> str:
        """Return the uid that an object's resource is known by; that it asks for one is not enough."""
        known = self._by_own_uid.get(stored.uid) is not None
        return self._claims.resolve(stored.uid)[0] if known else stored.resource_uid

    def by_name(self, name: str) -> Stored | None:
        """Return the object whose resource has this name."""
        return self._first(self._by_name.get(name, ()))

    def all(self) -> list[Stored]:
        """Return everything, oldest first."""
        return sorted(self._objects.values(), key=lambda stored: stored.age)

    def present(self, stored: Stored) -> Resource:
        """Return a readable object's resource; of several that claim a name or a uid only one has it."""
        assert stored.resource is not None, "callers look at the problem first"
        metadata = stored.resource.metadata
        first = self.by_name(metadata.name)
        if first is not None and first.name != stored.name:
            metadata = metadata.model_copy(update={"name": stored.name})
        if stored.uid in self._by_own_uid:
            uid, problem = self._claims.resolve(stored.uid)
            if (uid, problem) != (metadata.uid, None):
                metadata = metadata.known_as(uid, problem)
            if self._claims.has_lost(stored.uid):
                return _without_lies(stored.resource).model_copy(update={"metadata": metadata})
        if metadata is stored.resource.metadata:
            return stored.resource
        return stored.resource.model_copy(update={"metadata": metadata})

    def find_seal(self, stored: Stored) -> str:
        """Return the seal that an object lacks; empty where it has it, or nothing is to be sealed yet."""
        if self._seal is None or stored.uid not in self._by_own_uid:
            return ""
        uid, problem = self._claims.resolve(stored.uid)
        found = sealed_annotation(self.kind.KIND, stored.name, uid, self._seal)
        return "" if problem is not None or found == stored.seal else found

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

    async def wait_until_gone(self, uid: str, timeout_seconds: float) -> bool:
        """Wait until no object has this uid; return whether none has."""

        async def is_gone() -> bool:
            return self.by_uid(uid) is None

        return await self._departures.wait(uid, is_gone, timeout_seconds)

    # -- writing

    def observe(self, raw: Mapping[str, Any]) -> Stored:
        """Take note of an object as it is, or was, and return it."""
        stored = read_object(self.kind, raw, self._seal)
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

    def _first(self, names: Collection[str]) -> Stored | None:
        if len(names) == 1:
            return self._objects[next(iter(names))]
        claims = (self._objects[name] for name in names)
        # An object's own name outranks one that another was renamed to; then the older has it.
        is_alias = self.kind.KIND == "InferenceDeployment"
        return min(claims, key=lambda s: (is_alias and s.is_renamed, s.age), default=None)

    def _keep(self, stored: Stored, known: Stored | None) -> None:
        if known is not None:
            self._unindex(known)
            is_kept = stored.identity.is_fixed and stored.resource_uid == known.resource_uid
            if known.identity.is_fixed and not is_kept:  # a hand took it out of the status
                stored = replace(stored, identity=known.identity)
        self._objects[stored.name] = stored
        self._by_own_uid[stored.uid] = stored.name
        self._claims.note(stored.claim(self.kind.KIND))
        if stored.resource is not None:
            self._by_name.setdefault(stored.resource.metadata.name, set()).add(stored.name)
        self._tell(ChangeType.ADDED if known is None else ChangeType.MODIFIED, stored)

    def _remove(self, stored: Stored) -> None:
        self._tell(ChangeType.DELETED, stored)
        uid, rivals = self.uid_of(stored), self._claims.rivals(stored.uid)
        self._claims.depart(stored.uid)
        self._unindex(stored)
        del self._objects[stored.name]
        self._departures.tell(uid)
        for own in rivals:  # one of them has the uid now
            if own in self._by_own_uid:
                self._tell(ChangeType.MODIFIED, self._objects[self._by_own_uid[own]])

    def _unindex(self, stored: Stored) -> None:
        self._claims.drop(stored.uid)
        self._by_own_uid.pop(stored.uid, None)
        if stored.resource is not None:
            _drop(self._by_name, stored.resource.metadata.name, stored.name)

    def _tell(self, change: ChangeType, stored: Stored) -> None:
        if stored.resource is None:
            return
        told = Change(change, self.present(stored))
        for queue in self._queues:
            queue.put_nowait(told)


def _without_lies(resource: Resource) -> Resource:
    """Return an object without what its status says of an id that is another's."""
    status: Any = getattr(resource, "status", None)
    if status is None:
        return resource
    named = [name for name in _OF_ITS_UID if name in type(status).model_fields]
    nothing = type(status)()
    told = status.model_copy(update={name: getattr(nothing, name) for name in named})
    return resource.model_copy(update={"status": told})


def _drop(index: dict[str, set[str]], key: str, name: str) -> None:
    names = index.get(key, set())
    names.discard(name)
    if not names:
        index.pop(key, None)
