"""The SQLite schema, as the list of steps that lead to it.

A step is never changed once released; a new version appends one. `PRAGMA user_version` counts the
steps a file has taken. Called by `database.py` alone.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from exo_inference.controller.stores.base import StoreDamaged, StoreTooNew

APPLICATION_ID = 0x65786F69
"""`exoi`: tells our database from any other SQLite file (`PRAGMA application_id`)."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID""",
        """INSERT INTO facts VALUES ('resource-version', '0')""",
        """CREATE TABLE objects (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            kind TEXT NOT NULL,
            uid TEXT NOT NULL,
            name TEXT NOT NULL,
            metadata TEXT NOT NULL,
            spec TEXT NOT NULL,
            status TEXT NOT NULL,
            UNIQUE (kind, uid),
            UNIQUE (kind, name)
        )""",
        """CREATE TABLE operations (
            uid TEXT PRIMARY KEY, created REAL NOT NULL, body TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE requests (
            key TEXT PRIMARY KEY, created REAL NOT NULL,
            fingerprint TEXT NOT NULL, result_id TEXT NOT NULL
        ) WITHOUT ROWID""",
        """CREATE TABLE secrets (
            owner TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL,
            PRIMARY KEY (owner, name)
        ) WITHOUT ROWID""",
        """CREATE TABLE events (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            owner TEXT NOT NULL, time TEXT NOT NULL, type TEXT NOT NULL,
            reason TEXT NOT NULL, message TEXT NOT NULL, count INTEGER NOT NULL
        )""",
        """CREATE INDEX events_by_owner ON events (owner, number)""",
    ),
    (  # the hash of an API key is part of what is wanted
        """UPDATE objects SET
            spec = json_set(spec, '$.sha256', json_extract(status, '$.sha256')),
            status = json_remove(status, '$.sha256')
        WHERE kind = 'InferenceApiKey'""",
    ),
)


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the file to the newest schema, one transaction per step. Idempotent.

    Raises:
        StoreTooNew: the file has steps that this program does not know.
        StoreDamaged: the file is a database of something else.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if application != APPLICATION_ID and (version or tables):
        raise StoreDamaged(
            f"{path} is a database of another program (application id {application:#x})",
            hint="Move it away, or choose another state directory with --state-dir.",
        )
    if version > len(MIGRATIONS):
        raise StoreTooNew(
            f"{path} has schema version {version}; this program knows up to {len(MIGRATIONS)}",
            hint="Start the newer exo-inference that wrote it. Nothing was changed.",
        )
    for number, statements in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            connection.execute("ROLLBACK")
            raise
