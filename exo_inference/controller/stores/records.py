"""The tables beside the objects: operations, idempotency keys, secrets, events, facts.

Plain functions on an open connection, inside the transaction of their caller, `sqlite.py`.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime

from exo_inference.controller.stores.base import (
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
)
from exo_inference.wire import Event, Operation

MAX_EVENTS_PER_OBJECT = 200


def record(db: sqlite3.Connection, owner: str, recording: Recording | None, now: datetime) -> None:
    """Store everything that belongs to one write of the object `owner`."""
    if recording is None:
        return
    if recording.operation is not None:
        operation = recording.operation
        body = operation.model_dump_json(by_alias=True, exclude_none=True)
        db.execute("INSERT INTO operations VALUES (?, ?, ?)", (operation.id, now.timestamp(), body))
    if recording.request is not None:
        request, created = recording.request, now.timestamp()
        db.executemany(
            "INSERT OR REPLACE INTO requests VALUES (?, ?, ?, ?)",
            [(key, created, request.fingerprint, request.result_id) for key in request.keys],
        )
    for name, value in recording.secrets.items():
        db.execute("INSERT OR REPLACE INTO secrets VALUES (?, ?, ?)", (owner, name, value))
    for event in recording.events:
        _add_event(db, owner, event, now)


def _add_event(db: sqlite3.Connection, owner: str, event: NewEvent, now: datetime) -> None:
    last = db.execute(
        "SELECT number, type, reason, message FROM events WHERE owner = ?"
        " ORDER BY number DESC LIMIT 1",
        (owner,),
    ).fetchone()
    time = now.isoformat()
    if last is not None and last[1:] == (event.type, event.reason, event.message):
        db.execute(
            "UPDATE events SET count = count + 1, time = ? WHERE number = ?", (time, last[0])
        )
        return
    db.execute(
        "INSERT INTO events (owner, time, type, reason, message, count) VALUES (?, ?, ?, ?, ?, 1)",
        (owner, time, event.type, event.reason, event.message),
    )
    db.execute(
        "DELETE FROM events WHERE owner = ? AND number NOT IN"
        " (SELECT number FROM events WHERE owner = ? ORDER BY number DESC LIMIT ?)",
        (owner, owner, MAX_EVENTS_PER_OBJECT),
    )


def get_operation(db: sqlite3.Connection, uid: str) -> Operation:
    """Return one operation.

    Raises:
        ObjectNotFound
    """
    row = db.execute("SELECT body FROM operations WHERE uid = ?", (uid,)).fetchone()
    if row is None:
        raise ObjectNotFound(f"there is no operation {uid!r}")
    return Operation.model_validate_json(row[0])


def find_request(db: sqlite3.Connection, key: str) -> RecordedRequest | None:
    """Return the request with this idempotency key, or None."""
    row = db.execute(
        "SELECT key, fingerprint, result_id FROM requests WHERE key = ?", (key,)
    ).fetchone()
    return None if row is None else RecordedRequest(*row)


def get_secret(db: sqlite3.Connection, owner: str, name: str) -> bytes | None:
    """Return one encrypted value, or None."""
    row = db.execute(
        "SELECT value FROM secrets WHERE owner = ? AND name = ?", (owner, name)
    ).fetchone()
    return None if row is None else bytes(row[0])


def list_events(db: sqlite3.Connection, owner: str) -> list[Event]:
    """Return the events of one object, oldest first."""
    rows = db.execute(
        "SELECT time, type, reason, message, count FROM events WHERE owner = ? ORDER BY number",
        (owner,),
    )
    return [
        Event(time=datetime.fromisoformat(time), type=type_, reason=reason, message=text, count=n)
        for time, type_, reason, text, n in rows
    ]


def ensure_fact(db: sqlite3.Connection, name: str, value: str) -> str:
    """Return the stored fact; store `value` if there is none."""
    db.execute("INSERT OR IGNORE INTO facts VALUES (?, ?)", (name, value))
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return str(row[0])


def forget_owner(db: sqlite3.Connection, owner: str) -> None:
    """Remove secrets and events of an object that is gone; its operations stay readable."""
    db.execute("DELETE FROM secrets WHERE owner = ?", (owner,))
    db.execute("DELETE FROM events WHERE owner = ?", (owner,))


def prune(
    db: sqlite3.Connection, *, requests_before: datetime, operations_before: datetime
) -> None:
    """Remove idempotency keys and operations that are older than these moments."""
    db.execute("DELETE FROM requests WHERE created < ?", (requests_before.timestamp(),))
    db.execute("DELETE FROM operations WHERE created < ?", (operations_before.timestamp(),))
