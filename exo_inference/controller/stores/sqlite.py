"""The store of one machine: SQLite, one file. The contract is in `base.py`.

Objects are kept as three JSON texts (metadata, spec, status), so that a status write touches no
spec. Watchers are told after the commit, in order of commits.
"""

from __future__ import annotations

import asyncio
import functools
import json
import sqlite3
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from exo_inference.controller.stores import records
from exo_inference.controller.stores.base import (
    Change,
    ChangeType,
    NameTaken,
    ObjectNotFound,
    RecordedRequest,
    Recording,
    StoreUnwritable,
    VersionConflict,
)
from exo_inference.controller.stores.database import Database
from exo_inference.controller.stores.deletion_waiters import DeletionWaiters
from exo_inference.resources import ObjectMeta, Resource
from exo_inference.wire import Event, Operation

R = TypeVar("R", bound=Resource)

_COLUMNS = "metadata, spec, status"
_Row = tuple[str, str, str]
"""Metadata, with the uid, so that no two are equal; spec; status."""
_Events = list[Event]  # inside the class, `list` is the method


class SqliteStore:
    """Implements `Store`. Open it with `await SqliteStore.open(path)`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watchers: list[tuple[str, asyncio.Queue[Change]]] = []
        self._listed: dict[str, dict[_Row, Any]] = {}
        self._departures = DeletionWaiters()
        self._unwritten: dict[str, tuple[str, Any]] = {}

    @classmethod
    async def open(cls, path: Path, *, in_use: bool = False) -> SqliteStore:
        """Open or create the file; one that is `in_use` and empty was emptied, and is refused.

        Raises:
            StoreUnwritable, StoreDamaged, StoreTooNew
        """
        return cls(await Database.open(path, in_use=in_use))

    async def close(self) -> None:
        """Finish what was begun and close the file. Idempotent."""
        await self._database.close()

    # -- objects

    async def create(self, obj: R, recording: Recording | None = None) -> R:
        """Store a new object; see `ObjectStore.create`."""
        stored = await self._database.write(lambda db: _create(db, obj, recording))
        self._tell(ChangeType.ADDED, stored)
        return stored

    async def get(self, kind: type[R], uid: str) -> R:
        """Return the object with this uid; see `ObjectStore.get`."""
        return self._as_last_seen(await self._database.read(lambda db: _load(db, kind, "uid", uid)))

    async def get_current(self, kind: type[R], uid: str) -> R:
        """Return the object with this uid; see `ObjectStore.get_current`. Nothing of it is kept here."""
        return await self.get(kind, uid)

    async def get_by_name(self, kind: type[R], name: str) -> R:
        """Return the object with this name; see `ObjectStore.get_by_name`."""
        found = await self._database.read(lambda db: _load(db, kind, "name", name))
        return self._as_last_seen(found)

    async def list(self, kind: type[R]) -> list[R]:
        """Return all objects of a kind, oldest first.

        Most requests list something. An object that was listed before and has the same text is the same
        object (they are frozen): reading hundreds again would hold up all other requests.
        """
        rows = await self._database.read(lambda db: _rows(db, kind))
        before = self._listed.get(kind.KIND, {})
        found: dict[_Row, R] = {row: before.get(row) or _parse(kind, row) for row in rows}
        self._listed[kind.KIND] = found
        return [self._as_last_seen(obj) for obj in found.values()]

    async def update(self, obj: R, recording: Recording | None = None) -> R:
        """Replace spec and metadata; see `ObjectStore.update`."""
        stored, change = await self._database.write(lambda db: _update(db, obj, recording))
        if change is not None:
            self._tell(change, stored)
        return stored

    async def update_status(self, obj: R, recording: Recording | None = None) -> R:
        """Replace the status alone; see `ObjectStore.update_status`.

        One that cannot be written, as on a full disk, is kept in memory until one can: it says what
        is so, and who asks must not be told what is no longer so.
        """
        metadata = obj.metadata
        try:
            stored, changed = await self._database.write(
                lambda db: _update_status(db, obj, recording)
            )
        except StoreUnwritable:
            self._unwritten[metadata.uid] = (metadata.resource_version, _status_of(obj))
            raise
        self._unwritten.pop(metadata.uid, None)
        if changed:
            self._tell(ChangeType.MODIFIED, stored)
        return stored

    async def delete(self, kind: type[R], uid: str, recording: Recording | None = None) -> R | None:
        """Remove the object or mark it; see `ObjectStore.delete`."""
        stored, gone = await self._database.write(lambda db: _delete(db, kind, uid, recording))
        self._tell(ChangeType.DELETED if gone else ChangeType.MODIFIED, stored)
        return None if gone else stored

    async def wait_until_gone(self, kind: type[R], uid: str, *, timeout_seconds: float) -> bool:
        """Wait until an object is gone; see `ObjectStore.wait_until_gone`."""

        async def is_gone() -> bool:
            try:
                await self.get(kind, uid)
            except ObjectNotFound:
                return True
            return False

        return await self._departures.wait(uid, is_gone, timeout_seconds)

    def watch(self, kind: type[R]) -> AsyncIterator[Change]:
        """Yield every change from this call on."""
        queue: asyncio.Queue[Change] = asyncio.Queue()
        entry = (kind.KIND, queue)
        self._watchers.append(entry)

        async def changes() -> AsyncIterator[Change]:
            try:
                while True:
                    yield await queue.get()
            finally:
                self._watchers.remove(entry)

        return changes()

    def _as_last_seen(self, obj: R) -> R:
        """Return an object with the status that could not be written, if it has not changed since."""
        version, status = self._unwritten.get(obj.metadata.uid, ("", None))
        if status is None or version != obj.metadata.resource_version:
            return obj
        return obj.model_copy(update={"status": status})

    def _tell(self, change: ChangeType, obj: Resource) -> None:
        for kind, queue in self._watchers:
            if kind == obj.KIND:
                queue.put_nowait(Change(change, obj))
        if change is ChangeType.DELETED:
            self._unwritten.pop(obj.metadata.uid, None)
            self._departures.tell(obj.metadata.uid)

    # -- records

    async def get_operation(self, uid: str) -> Operation:
        """Return a recorded operation; see `RecordStore.get_operation`."""
        return await self._database.read(lambda db: records.get_operation(db, uid))

    async def find_request(self, key: str) -> RecordedRequest | None:
        """Return the create that carried this idempotency key, if it is still remembered."""
        return await self._database.read(lambda db: records.find_request(db, key))

    async def get_secret(self, uid: str, name: str) -> bytes | None:
        """Return an encrypted value of an object, or None."""
        return await self._database.read(lambda db: records.get_secret(db, uid, name))

    async def list_events(self, uid: str) -> _Events:
        """Return what happened to an object, oldest first."""
        return await self._database.read(lambda db: records.list_events(db, uid))

    async def ensure_fact(self, name: str, value: str) -> str:
        """Return the stored fact of this name; store `value` if there is none yet."""
        return await self._database.write(lambda db: records.ensure_fact(db, name, value))

    async def prune(self, *, requests_before: datetime, operations_before: datetime) -> None:
        """Forget idempotency keys and operations from before these moments."""
        work = functools.partial(
            records.prune, requests_before=requests_before, operations_before=operations_before
        )
        await self._database.write(work)


def _create(db: sqlite3.Connection, obj: R, recording: Recording | None) -> R:
    _ask_guard(db, type(obj), recording)
    now = datetime.now(UTC)
    metadata = obj.metadata.model_copy(
        update={
            "uid": obj.metadata.uid or str(uuid.uuid4()),
            "generation": 1,
            "resource_version": _next_version(db),
            "creation_timestamp": now,
            "update_timestamp": now,
            "deletion_timestamp": None,
        }
    )
    stored = obj.model_copy(update={"metadata": metadata})
    row = (stored.KIND, metadata.uid, metadata.name, *_texts(stored))
    try:
        db.execute(
            "INSERT INTO objects (kind, uid, name, metadata, spec, status)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            row,
        )
    except sqlite3.IntegrityError as exc:
        raise _name_taken(obj) from exc
    records.record(db, metadata.uid, recording, now)
    return stored


def _update(
    db: sqlite3.Connection, obj: R, recording: Recording | None
) -> tuple[R, ChangeType | None]:
    old = _load(db, type(obj), "uid", obj.metadata.uid)
    _check_version(obj, old)
    _ask_guard(db, type(obj), recording)
    now = datetime.now(UTC)
    # Also where nothing differs: the write has an operation all the same.
    records.record(db, old.metadata.uid, recording, now)
    # What only the store sets, whatever the caller hands in.
    kept = {
        "generation": old.metadata.generation,
        "resource_version": old.metadata.resource_version,
        "creation_timestamp": old.metadata.creation_timestamp,
        "update_timestamp": old.metadata.update_timestamp,
        "deletion_timestamp": old.metadata.deletion_timestamp,
    }
    metadata = obj.metadata.model_copy(update=kept)
    spec_changed = _spec_of(obj) != _spec_of(old)
    if metadata == old.metadata and not spec_changed:
        return old, None
    if metadata.deletion_timestamp is not None and not metadata.finalizers:
        _remove(db, old)
        return old, ChangeType.DELETED
    changed = {
        "generation": metadata.generation + spec_changed,
        "resource_version": _next_version(db),
        "update_timestamp": now,
    }
    metadata = metadata.model_copy(update=changed)
    # The status has a write of its own, which may have come since the caller read the object.
    stored = obj.model_copy(update={"metadata": metadata, "status": _status_of(old)})
    metadata_text, spec_text, _ = _texts(stored)
    try:
        db.execute(
            "UPDATE objects SET name = ?, metadata = ?, spec = ? WHERE kind = ? AND uid = ?",
            (metadata.name, metadata_text, spec_text, obj.KIND, metadata.uid),
        )
    except sqlite3.IntegrityError as exc:
        raise _name_taken(obj) from exc
    return stored, ChangeType.MODIFIED


def _update_status(db: sqlite3.Connection, obj: R, recording: Recording | None) -> tuple[R, bool]:
    old = _load(db, type(obj), "uid", obj.metadata.uid)
    _check_version(obj, old)
    records.record(db, old.metadata.uid, recording, datetime.now(UTC))
    if _status_of(obj) == _status_of(old):
        return old, False
    metadata = old.metadata.model_copy(update={"resource_version": _next_version(db)})
    stored = old.model_copy(update={"metadata": metadata, "status": _status_of(obj)})
    metadata_text, _, status_text = _texts(stored)
    db.execute(
        "UPDATE objects SET metadata = ?, status = ? WHERE kind = ? AND uid = ?",
        (metadata_text, status_text, obj.KIND, metadata.uid),
    )
    return stored, True


def _delete(
    db: sqlite3.Connection, kind: type[R], uid: str, recording: Recording | None
) -> tuple[R, bool]:
    old = _load(db, kind, "uid", uid)
    now = datetime.now(UTC)
    records.record(db, uid, recording, now)
    if not old.metadata.finalizers:
        _remove(db, old)
        return old, True
    if old.metadata.deletion_timestamp is not None:
        return old, False
    marked = {
        "deletion_timestamp": now,
        "update_timestamp": now,
        "resource_version": _next_version(db),
    }
    stored = old.model_copy(update={"metadata": old.metadata.model_copy(update=marked)})
    db.execute(
        "UPDATE objects SET metadata = ? WHERE kind = ? AND uid = ?",
        (_texts(stored)[0], kind.KIND, uid),
    )
    return stored, False


def _rows(db: sqlite3.Connection, kind: type[Resource]) -> list[_Row]:
    query = f"SELECT {_COLUMNS} FROM objects WHERE kind = ? ORDER BY number"  # noqa: S608
    return db.execute(query, (kind.KIND,)).fetchall()


def _ask_guard(db: sqlite3.Connection, kind: type[Resource], recording: Recording | None) -> None:
    if recording is not None and recording.guard is not None:
        recording.guard([_parse(kind, row) for row in _rows(db, kind)])


def _remove(db: sqlite3.Connection, obj: Resource) -> None:
    uid = obj.metadata.uid
    db.execute("DELETE FROM objects WHERE kind = ? AND uid = ?", (obj.KIND, uid))
    records.forget_owner(db, uid)


def _load(db: sqlite3.Connection, kind: type[R], column: str, value: str) -> R:
    query = f"SELECT {_COLUMNS} FROM objects WHERE kind = ? AND {column} = ?"  # noqa: S608
    row = db.execute(query, (kind.KIND, value)).fetchone()
    if row is None:
        raise ObjectNotFound(f"there is no {kind.KIND} with {column} {value!r}")
    return _parse(kind, row)


def _parse(kind: type[R], row: _Row) -> R:
    metadata, spec, status = row
    return kind.model_validate_json(
        f'{{"kind":"{kind.KIND}","metadata":{metadata},"spec":{spec},"status":{status}}}'
    )


def _texts(obj: Resource) -> tuple[str, str, str]:
    data = obj.model_dump(mode="json", by_alias=True)
    return (
        json.dumps(data["metadata"]),
        json.dumps(data["spec"]),
        json.dumps(data["status"]),
    )


def _spec_of(obj: Resource) -> Any:
    return getattr(obj, "spec", None)


def _status_of(obj: Resource) -> Any:
    return getattr(obj, "status", None)


def _check_version(given: Resource, stored: Resource) -> None:
    expected, found = given.metadata.resource_version, stored.metadata.resource_version
    if expected and expected != found:
        raise VersionConflict(
            f"{given.KIND} {given.metadata.name!r} changed meanwhile: version {found}, "
            f"expected {expected}"
        )


def _name_taken(obj: Resource) -> NameTaken:
    metadata: ObjectMeta = obj.metadata
    return NameTaken(f"another {obj.KIND} has the name {metadata.name!r}")


def _next_version(db: sqlite3.Connection) -> str:
    row = db.execute(
        "UPDATE facts SET value = CAST(CAST(value AS INTEGER) + 1 AS TEXT)"
        " WHERE name = 'resource-version' RETURNING value"
    ).fetchone()
    return str(row[0])
