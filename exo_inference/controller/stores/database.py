"""One SQLite file behind threads: the event loop never waits on a disk, writes never overlap.

`sqlite.py` is the only caller. Every write is one transaction that is on disk (WAL, synchronous
FULL) when it returns. Errors of sqlite3 end here and become errors of the store contract.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from exo_inference.controller.stores.base import StoreDamaged, StoreUnwritable
from exo_inference.controller.stores.schema import migrate
from exo_inference.errors import StoreError

T = TypeVar("T")

_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_FORMAT")


class Database:
    """Two connections, each in its own thread. Open it with `await Database.open(path)`.

    Reads have a connection of their own: they see all that was committed when they begin, and do
    not wait for a disk that is busy with a write.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = _ConnectionThread("store-writes")
        self._reader = _ConnectionThread("store-reads")
        self._is_closed = False

    @classmethod
    async def open(cls, path: Path, *, in_use: bool = False) -> Database:
        """Open or create the file (mode 0600), check it, and bring it to the newest schema.

        Args:
            path: the file.
            in_use: it has been written to before, so it is not empty unless somebody emptied it.

        Raises:
            StoreError: the file cannot be used; nothing was changed.
        """
        database = cls(path)
        try:
            if in_use:
                await asyncio.to_thread(database._refuse_emptied)
            await database._run(database._writer, database._prepare)
            await database._run(database._reader, database._connect_reader)
        except BaseException:
            await database.close()
            raise
        return database

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`, which must only read, on what is committed."""
        return await self._run(self._reader, lambda: work(self._reader.live_connection()))

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in one transaction; when this returns it is on disk, if it raises nothing is."""
        return await self._run(self._writer, lambda: self._transact(work))

    async def close(self) -> None:
        """Finish what was begun and close the file. Idempotent."""
        self._is_closed = True
        await asyncio.to_thread(self._reader.close)
        await asyncio.to_thread(self._writer.close)

    async def _run(self, thread: _ConnectionThread, work: Callable[[], T]) -> T:
        if self._is_closed:
            raise StoreError(f"the database {self.path} is closed")
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(thread.executor, self._guard, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The write goes on in its thread; its outcome, if an error, has no one to go to.
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    def _guard(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except sqlite3.Error as exc:
            raise self._explain(exc) from exc

    def _prepare(self) -> None:
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        except OSError as exc:
            raise StoreUnwritable(
                f"cannot open the database {self.path}: {exc.strerror}",
                hint="Check that the state directory exists and belongs to you.",
            ) from exc
        connection = self._writer.connect(self.path)
        problems = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if problems != "ok":
            raise self._damaged(" ".join(str(problems).split()))
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        migrate(connection, self.path)

    def _refuse_emptied(self) -> None:
        """SQLite would make an empty file a new database, and remove the -wal that belongs to it."""
        if self.path.exists() and not self.path.stat().st_size:
            raise self._damaged("it is empty")

    def _connect_reader(self) -> None:
        self._reader.connect(self.path).execute("PRAGMA query_only = ON")

    def _transact(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._writer.live_connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # some errors, like a full disk, roll back by themselves
                connection.execute("ROLLBACK")
            raise
        return result

    def _explain(self, exc: sqlite3.Error) -> StoreError:
        name = getattr(exc, "sqlite_errorname", "") or ""
        if name.startswith(_DAMAGED):
            return self._damaged(str(exc))
        reasons = {
            "SQLITE_FULL": ("the disk is full", "Free some space and repeat."),
            "SQLITE_READONLY": ("it is read-only", "Make the state directory writable and repeat."),
            "SQLITE_BUSY": ("another process holds it", "Run one controller per state directory."),
            "SQLITE_IOERR": (f"the disk failed ({exc})", "Check the disk and repeat."),
            "SQLITE_CANTOPEN": ("it cannot be opened", "Check the state directory."),
        }
        for prefix, (reason, hint) in reasons.items():
            if name.startswith(prefix):
                text = f"cannot write to {self.path}: {reason}; nothing was changed"
                return StoreUnwritable(text, hint=hint)
        return StoreError(f"the database {self.path} failed: {exc}")

    def _damaged(self, found: str) -> StoreDamaged:
        return StoreDamaged(
            f"the database {self.path} is damaged: {found}; nothing was changed",
            hint=(
                f"Restore a copy, or move {self.path.name} and its -wal file away to begin anew; "
                "running engines are then stopped."
            ),
        )


class _ConnectionThread:
    """One thread and the connection that only it uses."""

    def __init__(self, name: str) -> None:
        self.executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._connection: sqlite3.Connection | None = None

    def connect(self, path: Path) -> sqlite3.Connection:
        self._connection = sqlite3.connect(path, timeout=5, isolation_level=None)
        return self._connection

    def live_connection(self) -> sqlite3.Connection:
        assert self._connection is not None, "open() connects, and nothing runs after close()"
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self.executor.submit(connection.close).result()
        self.executor.shutdown(wait=True)
