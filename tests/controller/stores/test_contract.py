"""What every store promises (`stores/base.py`), whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from exo_inference.controller.http import versions
from exo_inference.controller.stores.base import (
    Change,
    ChangeType,
    NameTaken,
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
    Store,
    VersionConflict,
)
from exo_inference.errors import StoreError
from exo_inference.resources import InferenceDeployment, InferenceModel, ModelSpec, ObjectMeta
from exo_inference.resources.model import model_object_name
from exo_inference.wire import Operation, OperationState, Reference
from tests.controller.stores.conftest import OpenStore
from tests.controller.stores.objects import (
    deployment,
    with_replicas,
    with_status,
    without_finalizers,
)

KIND = InferenceDeployment


def operation(uid: str = "op-1") -> Operation:
    return Operation(id=uid, state=OperationState.SUCCESS, reference=Reference(id="x"))


async def test_a_created_object_gets_its_identity(store: Store) -> None:
    made = await store.create(deployment())
    meta = made.metadata
    assert len(meta.uid) == 36
    assert (meta.generation, meta.deletion_timestamp) == (1, None)
    assert meta.resource_version
    assert meta.creation_timestamp is not None
    assert meta.creation_timestamp.tzinfo is not None
    assert await store.get(KIND, meta.uid) == made == await store.get_by_name(KIND, "chat")


async def test_what_was_acknowledged_is_there_after_reopening(open_store: OpenStore) -> None:
    first = await open_store()
    made = await first.create(deployment(), Recording(operation(), secrets={"key": b"\0sealed"}))
    await first.close()
    second = await open_store()
    assert await second.get(KIND, made.metadata.uid) == made
    assert await second.get_operation("op-1") == operation()
    assert await second.get_secret(made.metadata.uid, "key") == b"\0sealed"


async def stop_following(store: Store) -> None:
    """Keep a store from being told what others write, as where the watch lags behind."""
    followers = getattr(store, "_tasks", [])  # a store without a cache has none
    for task in followers:
        task.cancel()
    await asyncio.gather(*followers, return_exceptions=True)


async def test_the_present_object_is_read_past_what_was_known(open_store: OpenStore) -> None:
    store, other = await open_store(), await open_store()
    made = await store.create(deployment())
    uid = made.metadata.uid
    seen = await other.get_current(KIND, uid)
    assert seen == made
    await stop_following(store)
    changed = await other.update(with_replicas(seen, 7))
    assert await store.get_current(KIND, uid) == changed
    assert await store.get(KIND, uid) == changed
    await other.update(without_finalizers(changed))
    await other.delete(KIND, uid)
    with pytest.raises(ObjectNotFound):
        await store.get_current(KIND, uid)
    with pytest.raises(ObjectNotFound):
        await store.get_current(KIND, "no-such-uid")


async def test_a_change_that_met_another_one_is_made_on_the_second_try(
    open_store: OpenStore,
) -> None:
    """So that who tries again five times, as a change of a key does, does not meet the same object each time."""
    store, other = await open_store(), await open_store()
    made = await store.create(deployment())
    stale = await store.get(KIND, made.metadata.uid)
    await stop_following(store)
    theirs = await other.get(KIND, made.metadata.uid)
    for replicas in (5, 6):
        theirs = await other.update(with_replicas(theirs, replicas))
    with pytest.raises(VersionConflict):
        await store.update(with_replicas(stale, 2))
    present = await store.get(KIND, made.metadata.uid)
    assert present.spec.replicas == 6
    after = await store.update(with_replicas(present, 2))
    assert (await other.get_current(KIND, made.metadata.uid)) == after


async def test_names_are_unique_per_kind(store: Store) -> None:
    name = model_object_name("a/b")
    await store.create(deployment(name))
    with pytest.raises(NameTaken, match=name):
        await store.create(deployment(name))
    model = InferenceModel(metadata=ObjectMeta(name=name), spec=ModelSpec(source="a/b"))
    assert (await store.create(model)).metadata.name == name


async def test_a_refused_create_records_nothing(store: Store) -> None:
    await store.create(deployment())
    with pytest.raises(NameTaken):
        await store.create(deployment(), Recording(operation()))
    with pytest.raises(ObjectNotFound):
        await store.get_operation("op-1")


async def test_a_failed_recording_leaves_no_object(store: Store) -> None:
    """Operation ids are unique, so the second recording fails after its object was inserted."""
    await store.create(deployment("one"), Recording(operation()))
    with pytest.raises(StoreError):
        await store.create(deployment("two"), Recording(operation()))
    assert [d.metadata.name for d in await store.list(KIND)] == ["one"]


async def test_lists_are_oldest_first(store: Store) -> None:
    for name in ("c", "a", "b"):
        await store.create(deployment(name))
    assert [d.metadata.name for d in await store.list(KIND)] == ["c", "a", "b"]
    assert await store.list(InferenceModel) == []


async def test_missing_objects_are_said_to_be_missing(store: Store) -> None:
    ghost = deployment().model_copy(update={"metadata": ObjectMeta(name="g", uid="nobody")})
    for call in (
        store.get(KIND, "nobody"),
        store.get_by_name(KIND, "nobody"),
        store.delete(KIND, "nobody"),
        store.update(ghost),
        store.update_status(ghost),
        store.get_operation("nobody"),
    ):
        with pytest.raises(ObjectNotFound):
            await call


async def test_the_version_after_a_change_is_the_one_that_its_answer_told(store: Store) -> None:
    """The answer is stored with the change, so its version is known before the store has given it."""
    made = await store.create(deployment())
    other = made.spec.model_copy(
        update={"model": "org/other", "gpu_type": "gpua30", "gpu_count": 2}
    )
    renamed = made.metadata.model_copy(update={"name": "renamed"})
    for metadata, spec in ((made.metadata, other), (renamed, made.spec), (renamed, made.spec)):
        present = await store.get(InferenceDeployment, made.metadata.uid)
        metadata = present.metadata.model_copy(update={"name": metadata.name})
        told = versions.after_change(present, metadata, spec)
        noted = versions.note_change(present, metadata, spec, by="EXOkey")
        after = await store.update(present.model_copy(update={"metadata": noted, "spec": spec}))
        assert versions.version_of(after.metadata) == versions.version_of(told)
        change = versions.last_change(after)
        assert change is not None
        assert (change.by, change.generation) == ("EXOkey", after.metadata.generation)
        assert after.metadata.uid == made.metadata.uid


async def test_generation_grows_with_the_spec_alone(store: Store) -> None:
    made = await store.create(deployment())
    scaled = await store.update(with_replicas(made, 3))
    assert scaled.metadata.generation == 2
    renamed = await store.update(
        scaled.model_copy(update={"metadata": scaled.metadata.model_copy(update={"name": "new"})})
    )
    assert renamed.metadata.generation == 2
    assert renamed.metadata.resource_version != scaled.metadata.resource_version
    told = await store.update_status(with_status(renamed, 1))
    assert told.metadata.generation == 2
    assert told.metadata.update_timestamp == renamed.metadata.update_timestamp


async def test_an_update_that_changes_nothing_is_no_write(store: Store) -> None:
    made = await store.create(deployment())
    assert await store.update(made) == made
    told = await store.update_status(with_status(made, 1))
    assert await store.update_status(told) == told


async def test_an_update_leaves_the_status_and_a_status_the_spec(store: Store) -> None:
    made = await store.create(deployment())
    told = await store.update_status(with_status(with_replicas(made, 9), 1))
    assert told.spec.replicas == 1
    changed = await store.update(with_replicas(with_status(told, 7), 2))
    assert (changed.spec.replicas, changed.status.ready_replicas) == (2, 1)
    assert await store.get(KIND, made.metadata.uid) == changed


async def test_who_read_an_old_version_cannot_write(store: Store) -> None:
    made = await store.create(deployment())
    await store.update(with_replicas(made, 2))
    with pytest.raises(VersionConflict):
        await store.update(with_replicas(made, 3), Recording(operation()))
    with pytest.raises(VersionConflict):
        await store.update_status(with_status(made, 1))
    with pytest.raises(ObjectNotFound):
        await store.get_operation("op-1")


async def test_renaming_onto_a_taken_name_is_refused(store: Store) -> None:
    await store.create(deployment("one"))
    two = await store.create(deployment("two"))
    with pytest.raises(NameTaken, match="one"):
        await store.update(
            two.model_copy(update={"metadata": two.metadata.model_copy(update={"name": "one"})})
        )


async def test_without_finalizers_a_delete_removes(store: Store) -> None:
    made = await store.create(deployment(), Recording(secrets={"key": b"x"}))
    assert await store.delete(KIND, made.metadata.uid, Recording(operation())) is None
    assert await store.list(KIND) == []
    assert await store.get_secret(made.metadata.uid, "key") is None
    assert await store.list_events(made.metadata.uid) == []
    assert (await store.get_operation("op-1")).state == OperationState.SUCCESS


async def test_finalizers_hold_a_deleted_object_until_they_are_gone(store: Store) -> None:
    made = await store.create(deployment(finalizers=("a", "b")))
    marked = await store.delete(KIND, made.metadata.uid)
    assert marked is not None
    assert marked.metadata.deletion_timestamp is not None
    again = await store.delete(KIND, made.metadata.uid)
    assert again == marked
    with pytest.raises(NameTaken):
        await store.create(deployment())
    await store.update(without_finalizers(marked))
    assert await store.list(KIND) == []
    await store.create(deployment())


async def test_an_update_cannot_undo_a_deletion(store: Store) -> None:
    made = await store.create(deployment(finalizers=("a",)))
    marked = await store.delete(KIND, made.metadata.uid)
    assert marked is not None
    hopeful = marked.metadata.model_copy(update={"deletion_timestamp": None, "labels": {}})
    updated = await store.update(marked.model_copy(update={"metadata": hopeful}))
    assert updated.metadata.deletion_timestamp == marked.metadata.deletion_timestamp


async def test_watchers_see_every_change_in_order(store: Store) -> None:
    changes = store.watch(KIND)
    made = await store.create(deployment(finalizers=("a",)))
    await store.create(InferenceModel(metadata=ObjectMeta(name="m"), spec=ModelSpec(source="a/b")))
    scaled = await store.update(with_replicas(made, 2))
    told = await store.update_status(with_status(scaled, 1))
    await store.update_status(told)
    marked = await store.delete(KIND, made.metadata.uid)
    assert marked is not None
    await store.update(without_finalizers(marked))
    seen = [await asyncio.wait_for(anext(changes), 30) for _ in range(5)]
    assert [change.type for change in seen] == [
        ChangeType.ADDED,
        ChangeType.MODIFIED,
        ChangeType.MODIFIED,
        ChangeType.MODIFIED,
        ChangeType.DELETED,
    ]
    assert [c.object for c in seen][:3] == [made, scaled, told]
    await _expect_silence(changes)


async def _expect_silence(changes: AsyncIterator[Change]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(changes), 0.05)


async def test_equal_events_are_counted_and_old_ones_go(store: Store) -> None:
    made = await store.create(deployment())
    uid = made.metadata.uid
    for _ in range(3):
        await store.update(made, Recording(events=(NewEvent("Warning", "Crashed", "exit 1"),)))
    assert [(e.reason, e.count) for e in await store.list_events(uid)] == [("Crashed", 3)]
    many = [NewEvent("Normal", "Step", f"number {n}") for n in range(250)]
    await store.update(made, Recording(events=many))
    events = await store.list_events(uid)
    assert len(events) == 200
    assert events[-1].message == "number 249"


async def test_idempotency_keys_are_remembered_until_pruned(store: Store) -> None:
    request = RecordedRequest("key-1", "fingerprint", "op-1")
    await store.create(deployment(), Recording(operation(), request))
    assert await store.find_request("key-1") == request
    assert await store.find_request("key-2") is None
    long_ago, later = datetime(2020, 1, 1, tzinfo=UTC), datetime.now(UTC) + timedelta(hours=1)
    await store.prune(requests_before=later, operations_before=long_ago)
    assert await store.find_request("key-1") is None
    assert await store.get_operation("op-1") == operation()


async def test_a_create_is_known_under_its_signature_as_well(store: Store) -> None:
    request = RecordedRequest("key-1", "fingerprint", "op-1", "signature:s")
    await store.create(deployment(), Recording(operation(), request))
    for key in request.keys:
        assert await store.find_request(key) == RecordedRequest(key, "fingerprint", "op-1")
    later = datetime.now(UTC) + timedelta(hours=1)
    await store.prune(requests_before=later, operations_before=datetime(2020, 1, 1, tzinfo=UTC))
    assert [await store.find_request(key) for key in request.keys] == [None, None]


async def test_a_change_is_remembered_as_a_create_is(store: Store) -> None:
    made = await store.create(deployment())
    request = RecordedRequest("key-1", "fingerprint", "result")
    changed = made.model_copy(update={"spec": made.spec.model_copy(update={"replicas": 5})})
    await store.update(changed, Recording(request=request))
    assert await store.find_request("key-1") == request


async def test_a_fact_stays_as_it_was_first_stored(store: Store) -> None:
    assert await store.ensure_fact("org", "a") == "a"
    assert await store.ensure_fact("org", "b") == "a"


async def test_concurrent_writers_lose_nothing(store: Store) -> None:
    made = await store.create(deployment())

    async def add_one() -> None:
        while True:
            present = await store.get(KIND, made.metadata.uid)
            try:
                await store.update(with_replicas(present, present.spec.replicas + 1))
            except VersionConflict:
                continue
            return

    await asyncio.gather(*(add_one() for _ in range(20)))
    final = await store.get(KIND, made.metadata.uid)
    assert (final.spec.replicas, final.metadata.generation) == (21, 21)


async def test_the_end_of_a_deletion_can_be_waited_for(store: Store) -> None:
    uid = (await store.create(deployment(finalizers=("exo.dev/x",)))).metadata.uid
    going = await store.delete(KIND, uid)
    assert going is not None
    assert not await store.wait_until_gone(KIND, uid, timeout_seconds=0.05)
    waiting = [
        asyncio.create_task(store.wait_until_gone(KIND, uid, timeout_seconds=30)) for _ in range(3)
    ]
    await asyncio.sleep(0)
    await store.update(without_finalizers(going))
    assert await asyncio.gather(*waiting) == [True, True, True]
    assert await store.wait_until_gone(KIND, uid, timeout_seconds=30)
    with pytest.raises(ObjectNotFound):
        await store.get(KIND, uid)
