"""What can be wrong with the file: each a clear refusal, and nothing lost."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from pathlib import Path

import pytest

from exo_inference.controller.stores import schema
from exo_inference.controller.stores.base import (
    ObjectNotFound,
    Recording,
    StoreDamaged,
    StoreTooNew,
    StoreUnwritable,
)
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.errors import StoreError
from exo_inference.resources import (
    ApiKeySpec,
    DeploymentStatus,
    InferenceApiKey,
    InferenceDeployment,
    ObjectMeta,
)
from exo_inference.wire import Operation, OperationState
from tests.controller.stores.objects import deployment, with_replicas, with_status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "controller.db"


async def fill(path: Path, count: int) -> None:
    store = await SqliteStore.open(path)
    for number in range(count):
        await store.create(deployment(f"d{number}"))
    await store.close()


async def refuse_writes(store: SqliteStore, refuse: bool) -> None:
    writer = store._database._writer
    await asyncio.get_running_loop().run_in_executor(
        writer.executor,
        lambda: writer.live_connection().execute(f"PRAGMA query_only = {int(refuse)}"),
    )


async def test_the_file_is_readable_by_its_owner_alone(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create(deployment())
    for file in path.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    await store.close()


async def test_a_list_reads_what_changed_and_nothing_else_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_read = 0
    right = InferenceDeployment.model_validate_json

    def count(text: str) -> InferenceDeployment:
        nonlocal num_read
        num_read += 1
        return right(text)

    await fill(path, 20)
    store = await SqliteStore.open(path)
    monkeypatch.setattr(InferenceDeployment, "model_validate_json", count)
    before = await store.list(InferenceDeployment)
    assert num_read == 20
    await store.update(with_replicas(before[3], 2))
    await store.update_status(with_status(before[4], 1))
    await store.delete(InferenceDeployment, before[5].metadata.uid)
    num_read = 0  # the writes themselves read what they change
    after = await store.list(InferenceDeployment)
    assert num_read <= 2
    assert [each.metadata.uid for each in after] == [
        each.metadata.uid for each in before if each is not before[5]
    ]
    assert after[3].spec.replicas == 2
    assert after[4].status.ready_replicas == 1
    assert after == [await store.get(InferenceDeployment, each.metadata.uid) for each in after]
    await store.close()


async def test_every_write_is_durable(path: Path) -> None:
    store = await SqliteStore.open(path)
    connection = await store._database.write(lambda db: db)
    run = connection.execute
    mode, level = await asyncio.get_running_loop().run_in_executor(
        store._database._writer.executor,
        lambda: (run("PRAGMA journal_mode").fetchone()[0], run("PRAGMA synchronous").fetchone()[0]),
    )
    assert (mode, level) == ("wal", 2)
    await store.close()


async def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    await fill(path, 1)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreTooNew, match="schema version 99"):
        await SqliteStore.open(path)
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (99,)
        assert db.execute("SELECT count(*) FROM objects").fetchone() == (1,)
    db.close()


async def test_a_database_of_something_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE cats (name TEXT)")
    db.close()
    with pytest.raises(StoreDamaged, match="another program"):
        await SqliteStore.open(path)


async def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("this is not a database, but it is long enough to look like a header" * 20)
    before = path.read_bytes()
    with pytest.raises(StoreDamaged, match="damaged"):
        await SqliteStore.open(path)
    assert path.read_bytes() == before


async def test_damaged_pages_are_found_at_the_start(path: Path) -> None:
    await fill(path, 50)
    data = bytearray(path.read_bytes())
    data[4096:12288] = b"\xff" * 8192
    path.write_bytes(data)
    with pytest.raises(StoreDamaged) as refused:
        await SqliteStore.open(path)
    assert refused.value.hint is not None
    assert "Restore a copy" in refused.value.hint
    assert str(path) in refused.value.message.splitlines()[-1]  # logs and `up` show the last line


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnwritable, match="no/where"):
        await SqliteStore.open(tmp_path / "no/where/controller.db")


async def test_a_full_disk_refuses_the_write_and_keeps_the_rest(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create(deployment("before"))
    await store._database.write(lambda db: db.execute("PRAGMA max_page_count = 1"))

    async def fill_up() -> None:
        for number in range(500):
            operation = Operation(id=f"op-{number}", state=OperationState.SUCCESS)
            await store.create(deployment(f"d{number}"), Recording(operation))

    with pytest.raises(StoreUnwritable, match="the disk is full; nothing was changed"):
        await fill_up()
    stored = len(await store.list(InferenceDeployment))
    assert (await store.get_operation(f"op-{stored - 2}")).state == OperationState.SUCCESS
    with pytest.raises(ObjectNotFound):
        await store.get_operation(f"op-{stored - 1}")
    await store._database.write(lambda db: db.execute("PRAGMA max_page_count = 100000"))
    await store.create(deployment("after"))
    assert len(await store.list(InferenceDeployment)) == stored + 1
    await store.close()


async def test_a_status_that_the_disk_has_no_room_for_is_read_all_the_same(path: Path) -> None:
    """A replica that cannot start on a full disk must not go on being called ready."""
    store = await SqliteStore.open(path)
    stored = await store.create(deployment())
    seen = stored.model_copy(update={"status": DeploymentStatus(ready_replicas=3)})
    await refuse_writes(store, True)
    with pytest.raises(StoreUnwritable):
        await store.update_status(seen)
    uid = stored.metadata.uid
    for read in (
        await store.get(InferenceDeployment, uid),
        await store.get_by_name(InferenceDeployment, stored.metadata.name),
        *await store.list(InferenceDeployment),
    ):
        assert read.status.ready_replicas == 3
        assert read.metadata == stored.metadata
    await refuse_writes(store, False)
    await store.update_status(stored)  # it is as it was stored again
    assert (await store.get(InferenceDeployment, uid)).status == stored.status
    await store.close()


async def test_what_was_found_out_before_a_change_is_not_read_after_it(path: Path) -> None:
    store = await SqliteStore.open(path)
    stored = await store.create(deployment())
    seen = stored.model_copy(update={"status": DeploymentStatus(ready_replicas=3)})
    await refuse_writes(store, True)
    with pytest.raises(StoreUnwritable):
        await store.update_status(seen)
    await refuse_writes(store, False)
    spec = stored.spec.model_copy(update={"replicas": 2})
    await store.update(stored.model_copy(update={"spec": spec}))
    assert (await store.list(InferenceDeployment))[0].status == stored.status
    await store.close()


async def test_a_read_only_database_refuses_writes_and_still_reads(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.create(deployment())
    await store._database.write(lambda db: db.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreUnwritable, match="read-only"):
        await store.create(deployment("other"))
    assert len(await store.list(InferenceDeployment)) == 1
    await store.close()


async def test_a_lock_of_another_process_is_said_to_be_one(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store._database.write(lambda db: db.execute("PRAGMA busy_timeout = 10"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnwritable, match="another process"):
        await store.create(deployment())
    other.execute("ROLLBACK")
    other.close()
    await store.create(deployment())
    await store.close()


async def test_a_closed_store_says_so(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="closed"):
        await store.list(InferenceDeployment)


async def test_hashes_of_api_keys_written_by_an_older_version_are_kept(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        store = await SqliteStore.open(path)
    key = InferenceApiKey(
        metadata=ObjectMeta(name="k"),
        spec=ApiKeySpec(display_name="k", scope="public", sha256="ab" * 32),
    )
    made = await store.create(key)
    await store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE objects SET spec = json_remove(spec, '$.sha256')")
        db.execute("UPDATE objects SET status = ?", (f'{{"sha256": "{"ab" * 32}"}}',))
    db.close()
    store = await SqliteStore.open(path)
    assert await store.get(InferenceApiKey, made.metadata.uid) == made
    await store.close()
