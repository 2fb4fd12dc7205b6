"""What an object store is: get, list, create, update with optimistic concurrency, status apart.

The reconciler and the routes call it. `sqlite.py` implements it on one machine,
`kubernetes/` on a cluster; the same test suite holds every implementation to this contract. What
belongs to a write (its operation, events, secrets) is handed over with it as a `Recording`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal, Protocol, TypeVar

from exo_inference.errors import (
    ObjectRefused as ObjectRefused,  # also raised by the client of the Kubernetes API
)
from exo_inference.errors import StoreError
from exo_inference.errors import StoreUnreachable as StoreUnreachable
from exo_inference.errors import StoreUnwritable as StoreUnwritable
from exo_inference.resources import Resource
from exo_inference.wire import Event, Operation


class ObjectNotFound(StoreError):
    """No object of that kind has that uid or name."""


class NameTaken(StoreError):
    """Another object of that kind has the name."""


class VersionConflict(StoreError):
    """The object changed since it was read; read it again and repeat."""


class RequestRepeated(VersionConflict):
    """A create with this idempotency key was recorded, or is being recorded, by someone else."""


class ChangeSuperseded(StoreError):
    """The same change was begun before and cut off, and another one was made since; nothing was changed."""


class StoreDamaged(StoreError):
    """The store's data cannot be read; nothing was changed."""


class StoreTooNew(StoreError):
    """A newer version of this program wrote the store or the object; nothing was changed."""


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


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One thing that happened to an object. Equal events in a row are counted, not repeated."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A write that is done once.

    Attributes:
        key: what the client chose, else its signature.
        fingerprint: hash of method, path and body; the same key with another one is refused.
        result_id: the operation (or the object) that was answered.
        signature: under which it is known as well; a key is in a header, which is not signed.
        is_refused: it was refused, and is not judged again.
    """

    key: str
    fingerprint: str
    result_id: str
    signature: str | None = None
    is_refused: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """All that the request is known under."""
        return (self.key,) if self.signature is None else (self.key, self.signature)


@dataclass(frozen=True, slots=True)
class Recording:
    """What is stored together with the write of an object: all of it, or nothing.

    Only events may be lost where there is no transaction: they are a log, and no state hangs on them.

    Attributes:
        secrets: encrypted values of the object, by name; they go when the object goes.
        guard: called in the transaction of a create or update, before it, with all objects of the kind
            as they are; what it raises undoes the write. Only for stores that have transactions.
    """

    operation: Operation | None = None
    request: RecordedRequest | None = None
    secrets: Mapping[str, bytes] = field(default_factory=dict)
    events: Sequence[NewEvent] = ()
    guard: Callable[[Sequence[Resource]], None] | None = None


R = TypeVar("R", bound=Resource)


class ObjectStore(Protocol):
    """The contract. Every write is durable when it returns; a crash loses nothing that returned."""

    async def create(self, obj: R, recording: Recording | None = None) -> R:
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

    async def get_current(self, kind: type[R], uid: str) -> R:
        """Return the object with this uid as it is now, past whatever is kept of it in this process.

        For what must not be told once it is over; `get` may lag behind what others write.

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

    async def update(self, obj: R, recording: Recording | None = None) -> R:
        """Replace spec and metadata; `generation` grows if the spec differs. Status is untouched.

        When the object is being deleted and its last finalizer is gone, it is removed.

        A change with a request that was begun before and cut off is finished; where another one was made since
        it would take that back, and is refused. Stores with transactions begin no change that they do not end.

        Raises:
            ObjectNotFound, NameTaken, VersionConflict
            ChangeSuperseded: where there are no transactions.
        """
        ...

    async def update_status(self, obj: R, recording: Recording | None = None) -> R:
        """Replace the status alone; a status equal to the stored one is no write.

        Raises:
            ObjectNotFound, VersionConflict
        """
        ...

    async def delete(self, kind: type[R], uid: str, recording: Recording | None = None) -> R | None:
        """Remove the object, or set its deletionTimestamp while it has finalizers.

        Returns:
            The object that is now being deleted, or None when it is gone.

        Raises:
            ObjectNotFound
        """
        ...

    async def wait_until_gone(self, kind: type[R], uid: str, *, timeout_seconds: float) -> bool:
        """Wait, briefly, until there is no object with this uid; return whether there is none."""
        ...

    def watch(self, kind: type[R]) -> AsyncIterator[Change]:
        """Yield what changes from now on.

        The newest state of an object always comes; one that was replaced at once may be left out
        where others write, too.
        """
        ...


class RecordStore(Protocol):
    """What is kept beside the objects. Same durability."""

    async def get_operation(self, uid: str) -> Operation:
        """Return a recorded operation.

        Raises:
            ObjectNotFound
        """
        ...

    async def find_request(self, key: str) -> RecordedRequest | None:
        """Return the write that is known under this key, if it is still remembered."""
        ...

    async def get_secret(self, uid: str, name: str) -> bytes | None:
        """Return an encrypted value of an object, or None."""
        ...

    async def list_events(self, uid: str) -> list[Event]:
        """Return what happened to an object, oldest first; the latest 200 are kept."""
        ...

    async def ensure_fact(self, name: str, value: str) -> str:
        """Return the stored fact of this name; store `value` if there is none yet."""
        ...

    async def prune(self, *, requests_before: datetime, operations_before: datetime) -> None:
        """Forget idempotency keys and operations from before these moments."""
        ...


class Store(ObjectStore, RecordStore, Protocol):
    """Everything the controller keeps."""

    async def close(self) -> None:
        """Finish what was begun and let go of the storage. Idempotent."""
        ...
