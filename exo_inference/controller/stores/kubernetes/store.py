"""The store of a cluster: objects in the Kubernetes API. The contract is in `stores/base.py`.

Reads come from a cache that watches keep; a miss is asked of the API server, as another controller
may have written in this moment. There is no transaction over several objects, so a write has an
order (docs/decisions/0007-kubernetes-store.md): what belongs to it is written first, then the object
itself, whose write decides whether it happened, then what may be lost or is made good by itself.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from exo_inference.controller.stores.base import (
    Change,
    ObjectNotFound,
    RecordedRequest,
    Recording,
    StoreTooNew,
    VersionConflict,
)
from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.controller.stores.kubernetes.companions import Companions
from exo_inference.controller.stores.kubernetes.events import Events
from exo_inference.controller.stores.kubernetes.records import KINDS, Basis, Effect, Records
from exo_inference.controller.stores.kubernetes.refusals import check_version, gone, name_taken
from exo_inference.controller.stores.kubernetes.schemas import explain_missing, refuse_old_schemas
from exo_inference.controller.stores.kubernetes.secrets import Secrets
from exo_inference.controller.stores.kubernetes.unreadable import report_unreadable
from exo_inference.errors import StoreError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, get_if_there, object_path
from exo_inference.kubernetes_api.follower import Follower
from exo_inference.kubernetes_api.identity import SEAL_ANNOTATION, Claims, Seal
from exo_inference.kubernetes_api.objects import (
    UID_LABEL,
    Stored,
    dump_part,
    new_object,
    plan_change,
    read_object,
)
from exo_inference.resources import API_VERSION, OperationSubject, Resource
from exo_inference.wire import Event, Operation

logger = logging.getLogger(__name__)

R = TypeVar("R", bound=Resource)

REPAIR_SECONDS = 600.0
"""How often old records and orphaned secrets are looked for: that reads them all."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_Events = list[Event]  # inside the class, `list` is the method


class KubernetesStore:
    """Implements `Store`. Open it with `await KubernetesStore.open(api)`."""

    def __init__(self, api: KubernetesApi, clock: Callable[[], float], seal: Seal | None) -> None:
        self._api = api
        self._seal = seal
        self._clock = clock
        self._records = Records(api)
        self._secrets = Secrets(api)
        self._events = Events(api)
        self._companions = Companions(self._records, self._secrets, self._events)
        self._claims = claims = Claims()
        self._caches = {name: Cache(kind, claims, seal) for name, kind in KINDS.items()}
        self._followers = [
            Follower(api, object_path(api, cache.kind.PLURAL, group=API_VERSION), cache)
            for cache in self._caches.values()
        ]
        self._tasks: list[asyncio.Task[None]] = []
        self._next_repair = float("-inf")
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        api: KubernetesApi,
        clock: Callable[[], float] = time.monotonic,
        seal: Seal | None = None,
    ) -> KubernetesStore:
        """Read everything and begin to watch; `close` closes the API, too.

        Args:
            api: the server and the namespace.
            clock: seconds, for how often is repaired.
            seal: of the uids that are taken over; None is without, as where nobody else writes.

        Raises:
            StoreUnreachable: the API does not answer.
            StoreDamaged: the CRDs are not installed, or are those of an older version.
            StoreTooNew: those of a newer version are.
        """
        store = cls(api, clock, seal)
        try:
            for follower in store._followers:
                await store._list_all(follower)
            await refuse_old_schemas(api)
            for subject in await store._records.list_departed():
                store._claims.remember(subject.uid, f"{subject.kind} {subject.name}")
        except BaseException:
            await store.close()
            raise
        store._tasks = [
            asyncio.create_task(follower.run(), name=f"follow-{name}")
            for follower, name in zip(store._followers, KINDS, strict=True)
        ]
        return store

    async def close(self) -> None:
        """Stop watching and close the connections. Idempotent."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._api.close()

    # -- objects

    async def create(self, obj: R, recording: Recording | None = None) -> R:
        """Store a new object; see `ObjectStore.create`.

        Raises:
            RequestRepeated: the same create is known already.
        """
        cache = self._cache(type(obj))
        meta = obj.metadata.model_copy(update={"uid": obj.metadata.uid or str(uuid.uuid4())})
        obj = obj.model_copy(update={"metadata": meta})
        holder = cache.by_name(meta.name)
        if holder is not None and cache.uid_of(holder) != meta.uid:
            raise name_taken(obj)
        subject = OperationSubject(kind=obj.KIND, name=meta.name, uid=meta.uid)
        async with self._companions.before(recording, subject, Effect.CREATE):
            raw = await self._post(obj)
        stored = cache.observe(await self._post_status(obj, raw))
        await self._companions.after(recording, type(obj), stored)
        return cast(R, self._present(cache, stored))

    async def get(self, kind: type[R], uid: str) -> R:
        """Return the object with this uid; see `ObjectStore.get`."""
        cache = self._cache(kind)
        return cast(R, self._present(cache, await self._find(cache, uid)))

    async def get_current(self, kind: type[R], uid: str) -> R:
        """Return the object as the API server has it; see `ObjectStore.get_current`."""
        cache = self._cache(kind)
        await self._read_again(cache, await self._find(cache, uid))
        return await self.get(kind, uid)

    async def get_by_name(self, kind: type[R], name: str) -> R:
        """Return the object with this name; see `ObjectStore.get_by_name`."""
        cache = self._cache(kind)
        if cache.by_name(name) is None and _NAME.fullmatch(name):
            await self._look_up(cache, name)
        if (stored := cache.by_name(name)) is None:
            raise ObjectNotFound(f"there is no {kind.KIND} with name {name!r}")
        return cast(R, self._present(cache, stored))

    async def list(self, kind: type[R]) -> list[R]:
        """Return all objects of a kind that can be read, oldest first."""
        cache = self._cache(kind)
        return [cast(R, cache.present(s)) for s in cache.all() if s.resource is not None]

    async def update(self, obj: R, recording: Recording | None = None) -> R:
        """Replace spec and metadata; see `ObjectStore.update`."""
        cache = self._cache(type(obj))
        stored = await self._find(cache, obj.metadata.uid)
        present = self._present(cache, stored)
        check_version(obj, stored)
        name = obj.metadata.name
        if name != present.metadata.name and cache.by_name(name) not in (None, stored):
            raise name_taken(obj)
        is_let_go = len(obj.metadata.finalizers) < len(present.metadata.finalizers)
        if present.metadata.deletion_timestamp is not None and is_let_go:
            # Before the object goes: of one that is gone nobody looks for secrets for a while. Others may hold
            # it yet, and their finalizers are the last then.
            await self._companions.before_the_end(type(obj), stored, cache.uid_of(stored))
        patch = plan_change(stored, obj)
        if patch and (seal := cache.find_seal(stored)):
            metadata = patch.setdefault("metadata", {})
            metadata.setdefault("annotations", {})[SEAL_ANNOTATION] = seal
        if patch:
            patch.setdefault("metadata", {})["resourceVersion"] = str(stored.version)
        if "spec" in patch:
            await self._refuse_unreadable(cache, stored)
        after = await self._write(
            type(obj), stored, recording, lambda: self._patch(cache, stored, "", patch),
            basis=Basis.of(present, obj),
        )  # fmt: skip
        return cast(R, self._present(cache, after))

    async def update_status(self, obj: R, recording: Recording | None = None) -> R:
        """Replace the status alone; see `ObjectStore.update_status`."""
        cache = self._cache(type(obj))
        stored = await self._find(cache, obj.metadata.uid)
        present = self._present(cache, stored)
        check_version(obj, stored)
        patch: dict[str, Any] = {}
        if dump_part(obj, "status") != dump_part(present, "status"):
            patch = {
                "metadata": {"resourceVersion": str(stored.version)},
                "status": dump_part(obj, "status", with_nulls=True),
            }
        after = await self._write(
            type(obj), stored, recording, lambda: self._patch(cache, stored, "/status", patch)
        )
        return cast(R, self._present(cache, after))

    async def delete(self, kind: type[R], uid: str, recording: Recording | None = None) -> R | None:
        """Remove the object or mark it; see `ObjectStore.delete`."""
        cache = self._cache(kind)
        stored = await self._find(cache, uid)
        after = await self._write(
            kind, stored, recording, lambda: self._delete(cache, stored), Effect.DELETION
        )
        is_gone = cache.by_uid(uid) is None
        return None if is_gone else cast(R, self._present(cache, after))

    async def wait_until_gone(self, kind: type[R], uid: str, *, timeout_seconds: float) -> bool:
        """Wait until an object is gone; see `ObjectStore.wait_until_gone`."""
        return await self._cache(kind).wait_until_gone(uid, timeout_seconds)

    def watch(self, kind: type[R]) -> AsyncIterator[Change]:
        """Yield what changes from this call on."""
        return self._cache(kind).subscribe()

    # -- records

    async def get_operation(self, uid: str) -> Operation:
        """Return a recorded operation; see `RecordStore.get_operation`."""
        return await self._records.get_operation(uid)

    async def find_request(self, key: str) -> RecordedRequest | None:
        """Return the write that is known under this key, if it is still remembered."""
        return await self._records.find_request(key)

    async def add_refusal(self, key: str, judged_again_until: float) -> None:
        """Note that a write was refused, for all controllers; see `Records.add_refusal`."""
        await self._records.add_refusal(key, judged_again_until)

    async def get_secret(self, uid: str, name: str) -> bytes | None:
        """Return an encrypted value of an object, or None."""
        return await self._secrets.get(uid, name)

    async def list_events(self, uid: str) -> _Events:
        """Return what happened to an object, oldest first."""
        for cache in self._caches.values():
            if (stored := cache.by_uid(uid)) is not None:
                return await self._events.list(stored)
        return []

    async def ensure_fact(self, name: str, value: str) -> str:
        """Return the stored fact of this name; store `value` if there is none yet."""
        return await self._records.ensure_fact(name, value)

    async def prune(self, *, requests_before: datetime, operations_before: datetime) -> None:
        """Forget what is old, and remove what a crash left; at most every `REPAIR_SECONDS`.

        Each time, say on objects that cannot be read that they are left alone.
        """
        await report_unreadable(self._api, self._caches.values())
        if self._clock() < self._next_repair:
            return
        self._next_repair = self._clock() + REPAIR_SECONDS
        await self._records.prune_all(requests_before, operations_before)
        # What is removed for good is not decided by a cache that may have fallen behind.
        for follower in self._followers:
            await follower.list_all()
        stored = [(cache, s) for cache in self._caches.values() for s in cache.all()]
        await self._seal_adopted(stored)
        owners = {cache.uid_of(s) for cache, s in stored} | {s.resource_uid for _, s in stored}
        await self._secrets.remove_orphans(owners)

    # -- parts

    async def _seal_adopted(self, stored: Sequence[tuple[Cache, Stored]]) -> None:
        """Seal the uids of what a version before took over, or a hand took the seal of."""
        for cache, each in stored:
            if not each.identity.is_fixed or not (seal := cache.find_seal(each)):
                continue
            patch = {"metadata": {"annotations": {SEAL_ANNOTATION: seal}}}
            try:
                await self._patch(cache, each, "", patch)
            except StoreError as exc:
                logger.warning("the uid of %s is sealed later: %s", each.name, exc.message)

    def _cache(self, kind: type[Resource]) -> Cache:
        if self._is_closed:
            raise StoreError("the store is closed")
        return self._caches[kind.KIND]

    async def _list_all(self, follower: Follower) -> None:
        try:
            await follower.list_all()
        except ApiRefusal as exc:
            if exc.status_code != 404:
                raise
            raise await explain_missing(self._api) from exc

    async def _find(self, cache: Cache, uid: str) -> Stored:
        """Return an object that is in the cluster; one that cannot be read, too."""
        if cache.by_uid(uid) is None and _LABEL_VALUE.fullmatch(uid):
            query = {"labelSelector": f"{UID_LABEL}={uid}"}
            path = object_path(self._api, cache.kind.PLURAL, group=API_VERSION)
            page = await self._api.get(path, query)
            for item in page["items"]:
                cache.observe({"apiVersion": page["apiVersion"], **item})
        if (stored := cache.by_uid(uid)) is None:
            raise ObjectNotFound(f"there is no {cache.kind.KIND} with uid {uid[:64]!r}")
        return stored

    async def _look_up(self, cache: Cache, name: str) -> dict[str, Any] | None:
        """Read one object by the name it has in the cluster, past the cache."""
        path = object_path(self._api, cache.kind.PLURAL, name, group=API_VERSION)
        raw = await get_if_there(self._api, path)
        if raw is not None:
            cache.observe(raw)
        return raw

    async def _read_again(self, cache: Cache, stored: Stored) -> dict[str, Any]:
        """Read an object past the cache.

        Raises:
            ObjectNotFound: it is gone.
        """
        raw = await self._look_up(cache, stored.name)
        if raw is None:
            cache.forget(stored.name, stored.uid)
            raise gone(cache.kind, stored.name)
        return raw

    async def _refuse_unreadable(self, cache: Cache, stored: Stored) -> None:
        """Read an object past the cache before its spec is changed.

        CRDs of a newer version give every object their defaults, which no watch tells of.

        Raises:
            ObjectNotFound: it is gone.
            StoreTooNew: it cannot be read any more.
        """
        raw = await self._read_again(cache, stored)
        self._present(cache, read_object(cache.kind, raw))

    def _present(self, cache: Cache, stored: Stored) -> Resource:
        if stored.resource is None:
            raise StoreTooNew(
                f"the {cache.kind.KIND} {stored.name!r} cannot be read: {stored.problem}",
                hint="A newer exo-inference may have written it: run that one, or mend the object.",
            )
        return cache.present(stored)

    async def _post(self, obj: Resource) -> dict[str, Any]:
        """Create an object; one with this name and uid is the outcome of an attempt before."""
        path = object_path(self._api, obj.PLURAL, group=API_VERSION)
        try:
            return await self._api.create(path, new_object(obj, datetime.now(UTC), self._seal))
        except ApiRefusal as exc:
            if exc.reason != "AlreadyExists":
                raise
            cache = self._cache(type(obj))
            raw = await self._look_up(cache, obj.metadata.name)
            if raw is not None and cache.uid_of(cache.observe(raw)) == obj.metadata.uid:
                return raw
            raise name_taken(obj) from exc

    async def _post_status(self, obj: Resource, raw: dict[str, Any]) -> dict[str, Any]:
        """Write what is known of a new object; should it be lost, the reconciler finds it out."""
        field = type(obj).model_fields["status"]
        if getattr(obj, "status") == field.get_default(call_default_factory=True):  # noqa: B009
            return raw
        status = dump_part(obj, "status")
        path = object_path(self._api, obj.PLURAL, obj.metadata.name, group=API_VERSION)
        try:
            return await self._api.merge(f"{path}/status", {"status": status})
        except StoreError as exc:
            logger.warning("the first status of %s was lost: %s", obj.metadata.name, exc.message)
            return raw

    async def _write(
        self,
        kind: type[Resource],
        stored: Stored,
        recording: Recording | None,
        write: Callable[[], Awaitable[Stored]],
        effect: Effect = Effect.CHANGE,
        basis: Basis | None = None,
    ) -> Stored:
        """Record what belongs to a write, make it, record the rest."""
        cache = self._caches[kind.KIND]
        uid = cache.uid_of(stored)
        subject = OperationSubject(kind=kind.KIND, name=stored.name, uid=uid)
        async with self._companions.before(recording, subject, effect, basis):
            after = await write()
        present = cache.by_uid(uid)
        is_gone = present is None or present.uid != stored.uid  # another may have asked for the uid
        if is_gone:
            await self._companions.after_the_end(recording, stored, uid)
        else:
            await self._companions.after(recording, kind, after)
        return after

    async def _patch(self, cache: Cache, stored: Stored, part: str, patch: Any) -> Stored:
        if not patch:
            return stored
        path = object_path(self._api, cache.kind.PLURAL, stored.name, group=API_VERSION) + part
        try:
            raw = await self._api.merge(path, patch)
        except ApiRefusal as exc:
            raise await self._explain(cache, stored, exc) from exc
        after = cache.observe(raw)
        meta = raw["metadata"]
        if meta.get("deletionTimestamp") and not meta.get("finalizers"):
            cache.forget(stored.name, stored.uid)
        return after

    async def _delete(self, cache: Cache, stored: Stored) -> Stored:
        """Delete an object, or mark it while something holds it; return it as it then is."""
        if stored.resource is not None and stored.resource.metadata.deletion_timestamp is not None:
            return stored
        path = object_path(self._api, cache.kind.PLURAL, stored.name, group=API_VERSION)
        try:
            raw = await self._api.delete(path, {"preconditions": {"uid": stored.uid}})
        except ApiRefusal as exc:
            if exc.status_code not in (404, 409):
                raise
            cache.forget(stored.name, stored.uid)
            return stored
        if raw.get("kind") == cache.kind.KIND and raw["metadata"].get("finalizers"):
            return cache.observe(raw)
        cache.forget(stored.name, stored.uid)
        return stored

    async def _explain(self, cache: Cache, stored: Stored, exc: ApiRefusal) -> StoreError:
        """Return the error of a refused change, having read the object again."""
        if exc.status_code == 404:
            cache.forget(stored.name, stored.uid)
            return gone(cache.kind, stored.name)
        if exc.status_code != 409:
            return exc
        await self._look_up(cache, stored.name)
        return VersionConflict(f"{cache.kind.KIND} {stored.name!r} changed meanwhile")
