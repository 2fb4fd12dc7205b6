"""What an object store is: get, list, create, update with optimistic concurrency, status apart.

The reconciler and the routes are the only callers. `sqlite.py` implements it on one machine; the
same test suite holds every implementation to this contract.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeVar

from exo_inference.errors import StoreError
from exo_inference.resources import Resource


class ObjectNotFound(StoreError):
    """No object of that kind has that uid or name."""


class NameTaken(StoreError):
    """Another object of that kind has the name."""


class VersionConflict(StoreError):
    """The object changed since it was read; read it again and repeat."""


class ChangeType(StrEnum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one object; `object` is as it was after it (before it, for DELETED)."""

    type: ChangeType
    object: Resource


R = TypeVar("R", bound=Resource)


class ObjectStore(Protocol):
    """The contract. Every write is durable when it returns; a crash loses nothing that returned."""

    async def create(self, obj: R) -> R:
        """Store a new object; sets uid (unless given), generation 1, resourceVersion, creation time.

        Raises:
            NameTaken
        """
        ...

    async def get(self, kind: type[R], uid: str) -> R:
        """Return the object with this uid.

        Raises:
            ObjectNotFound
        """
        ...

    async def get_by_name(self, kind: type[R], name: str) -> R:
        """Return the object with this name.

        Raises:
            ObjectNotFound
        """
        ...

    async def list(self, kind: type[R]) -> list[R]:
        """Return all objects of a kind, oldest first."""
        ...

    async def update(self, obj: R) -> R:
        """Replace spec and metadata; `generation` grows if the spec differs. Status is untouched.

        When the object is being deleted and its last finalizer is gone, it is removed.

        Raises:
            ObjectNotFound, NameTaken, VersionConflict
        """
        ...

    async def update_status(self, obj: R) -> R:
        """Replace the status alone; a status equal to the stored one is no write.

        Raises:
            ObjectNotFound, VersionConflict
        """
        ...

    async def delete(self, kind: type[R], uid: str) -> R | None:
        """Remove the object, or set its deletionTimestamp while it has finalizers.

        Returns:
            The object that is now being deleted, or None when it is gone.

        Raises:
            ObjectNotFound
        """
        ...

    def watch(self, kind: type[R]) -> AsyncIterator[Change]:
        """Yield every change from now on."""
        ...
