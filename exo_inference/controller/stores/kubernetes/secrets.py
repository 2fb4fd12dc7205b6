"""Secrets of objects: one Kubernetes Secret for each, found by the uid of its owner.

`store.py` is the only caller. They have no ownerReference: a Secret is written before the object
it belongs to, and after a restore from a backup the garbage collector would take it for orphaned.
Instead they are removed with the object, and `remove_orphans` removes what a crash left.
"""

from __future__ import annotations

import base64
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, get_if_there, object_path
from exo_inference.kubernetes_api.deletion import delete_if_there
from exo_inference.kubernetes_api.objects import UID_LABEL
from exo_inference.resources import API_GROUP

ORPHANED_AFTER = timedelta(minutes=10)
"""A Secret may be older than its object by the time that a create takes; this is far longer."""

_OWNED = {"app.kubernetes.io/managed-by": "exo-inference"}
_KEY = "value"


class Secrets:
    """The Secrets of one namespace that belong to objects."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api

    async def add(self, owner: str, name: str, value: bytes) -> bool:
        """Store a secret; return False, and keep what is there, if the object has one."""
        try:
            await self._api.create(self._path(), _secret(owner, name, value))
        except ApiRefusal as exc:
            if exc.reason == "AlreadyExists":
                return False
            raise
        return True

    async def put(self, owner: str, name: str, value: bytes) -> bool:
        """Store a secret, replacing one that is there; return whether there was none."""
        if await self.add(owner, name, value):
            return True
        body = {"data": _secret(owner, name, value)["data"]}
        await self._api.merge(self._path(_name(owner, name)), body)
        return False

    async def get(self, owner: str, name: str) -> bytes | None:
        """Return a secret, or None."""
        found = await get_if_there(self._api, self._path(_name(owner, name)))
        return None if found is None else base64.b64decode(found["data"][_KEY])

    async def remove(self, owner: str, name: str) -> None:
        """Remove one secret."""
        await delete_if_there(self._api, self._path(_name(owner, name)))

    async def forget(self, owner: str) -> None:
        """Remove all secrets of an object that is gone."""
        await self._api.delete(self._path(), query={"labelSelector": _selector(owner)})

    async def remove_orphans(self, owners: Collection[str]) -> None:
        """Remove secrets whose object was never made, or went without its secrets."""
        query = {"labelSelector": ",".join(f"{key}={value}" for key, value in _OWNED.items())}
        query["labelSelector"] += f",{UID_LABEL}"
        limit = datetime.now(UTC) - ORPHANED_AFTER
        for item in (await self._api.get(self._path(), query))["items"]:
            meta = item["metadata"]
            owner = meta["labels"][UID_LABEL]
            if owner not in owners and datetime.fromisoformat(meta["creationTimestamp"]) < limit:
                await self.forget(owner)

    def _path(self, name: str = "") -> str:
        return object_path(self._api, "secrets", name)


def _name(owner: str, name: str) -> str:
    return f"exo-{owner}-{name}"


def _selector(owner: str) -> str:
    return ",".join(f"{key}={value}" for key, value in {**_OWNED, UID_LABEL: owner}.items())


def _secret(owner: str, name: str, value: bytes) -> dict[str, Any]:
    return {
        "metadata": {
            "name": _name(owner, name),
            "labels": {**_OWNED, UID_LABEL: owner, f"{API_GROUP}/secret": name},
        },
        "type": "Opaque",
        "data": {_KEY: base64.b64encode(value).decode()},
    }
