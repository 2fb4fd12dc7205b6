"""A controller killed at any request of a write: nothing is lost, doubled or told that is not so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from exo_inference.controller.stores.base import (
    ChangeSuperseded,
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
    RequestRepeated,
    Store,
    VersionConflict,
)
from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore, secrets
from exo_inference.controller.stores.kubernetes.records import Effect
from exo_inference.resources import InferenceDeployment, OperationSubject
from exo_inference.wire import Operation, OperationState, Reference
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.stores.conftest import open_kubernetes_store
from tests.controller.stores.objects import deployment, with_replicas, without_finalizers
from tests.kubernetes_api import KubernetesApi as Cluster

KIND = InferenceDeployment
UID = "5f6f1c9e-0f0e-4f4e-9c9c-1b1b1b1b1b1b"
MAX_WRITES = 8


class Killed(BaseException):
    """The process ended here."""


class MortalApi(KubernetesApi):
    """Ends the process at its n-th write: before it is sent, or before its answer is there."""

    def die_at(self, number: int, *, answered: bool) -> None:
        self._left: int | None = number
        self._answered = answered

    async def _repeat(self, method: str, path: str, **parts: Any) -> dict[str, Any]:
        left = getattr(self, "_left", None)
        if method == "GET" or left is None:
            return await super()._repeat(method, path, **parts)
        self._left = left - 1
        if left == 1 and not self._answered:
            raise Killed
        found = await super()._repeat(method, path, **parts)
        if left == 1:
            raise Killed
        return found


Write = Callable[[Store, str], Awaitable[object]]


def recording(attempt: str, *, with_key: bool = False) -> Recording:
    """What belongs to a write; each attempt has another operation and another sealed secret."""
    operation = Operation(
        id=f"op-{attempt}", state=OperationState.SUCCESS, reference=Reference(id=UID)
    )
    request = RecordedRequest("the-key", "fingerprint", operation.id) if with_key else None
    sealed = {"api-key": attempt.encode()}
    return Recording(operation, request, sealed, [NewEvent("Normal", "Created", "it was")])


def new_deployment() -> InferenceDeployment:
    made = deployment(finalizers=("inference.exo.dev/replicas",))
    return made.model_copy(update={"metadata": made.metadata.model_copy(update={"uid": UID})})


async def create(store: Store, attempt: str) -> object:
    """What the route does: look whether it was done before, and else do it."""
    if done := await store.find_request("the-key"):
        return await store.get_operation(done.result_id)
    return await store.create(new_deployment(), recording(attempt, with_key=True))


@pytest.fixture
async def mortal(cluster: Cluster) -> AsyncIterator[Callable[[], Awaitable[KubernetesStore]]]:
    opened: list[KubernetesStore] = []

    async def open_one() -> KubernetesStore:
        opened.append(
            await KubernetesStore.open(
                await MortalApi.connect(kubeconfig_of("controller", cluster))
            )
        )
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


async def kill_at(store: KubernetesStore, number: int, answered: bool, write: Write) -> bool:
    """Make a write that is killed; return False if it needs fewer requests than that."""
    api = store._api
    assert isinstance(api, MortalApi)
    api.die_at(number, answered=answered)
    try:
        await write(store, f"killed-{number}-{answered}".lower())
    except Killed:
        return True
    finally:
        await store.close()
    return False


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, MAX_WRITES))
async def test_a_repeat_of_a_killed_create_makes_exactly_one(
    mortal: Callable[[], Awaitable[KubernetesStore]], number: int, answered: bool
) -> None:
    was_killed = await kill_at(await mortal(), number, answered, create)
    store = await mortal()
    existed = len(await store.list(KIND))
    assert (await store.find_request("the-key") is not None) == bool(existed)
    for attempt in ("again", "once-more"):
        await create(store, attempt)
    (made,) = await store.list(KIND)
    assert made.metadata.uid == UID
    assert await store.get_secret(UID, "api-key") is not None
    request = await store.find_request("the-key")
    assert request is not None
    assert (await store.get_operation(request.result_id)).state == OperationState.SUCCESS
    found = await store._api.get(f"/api/v1/namespaces/{store._api.namespace}/secrets")
    assert len(found["items"]) == 1
    if number == MAX_WRITES - 1:
        assert not was_killed, "a create needs more requests than are tried here"


async def test_an_answered_create_is_remembered_after_its_object_is_gone(
    mortal: Callable[[], Awaitable[KubernetesStore]],
) -> None:
    store = await mortal()
    await create(store, "first")
    marked = await store.delete(KIND, UID)
    assert marked is not None
    await store.update(without_finalizers(marked))
    answer = await create(store, "again")
    assert isinstance(answer, Operation)
    assert answer.id == "op-first"
    assert await store.list(KIND) == []


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_killed_change_happened_or_did_not_and_can_be_repeated(
    mortal: Callable[[], Awaitable[KubernetesStore]], number: int, answered: bool
) -> None:
    store = await mortal()
    await create(store, "first")

    async def scale(store: Store, attempt: str) -> object:
        present = await store.get(KIND, UID)
        return await store.update(with_replicas(present, 5), recording(attempt))

    await kill_at(store, number, answered, scale)
    store = await mortal()
    before = await store.get(KIND, UID)
    assert (before.spec.replicas, before.metadata.generation) in ((1, 1), (5, 2))
    await scale(store, "again")
    after = await store.get(KIND, UID)
    assert (after.spec.replicas, after.metadata.generation) == (5, 2)
    assert (await store.get_operation("op-again")).id == "op-again"


async def scale_with_key(store: Store, attempt: str) -> object:
    """Scale to 5, as the write of `the-key`."""
    present = await store.get(KIND, UID)
    return await store.update(with_replicas(present, 5), recording(attempt, with_key=True))


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_killed_change_is_not_taken_for_one_that_happened(
    mortal: Callable[[], Awaitable[KubernetesStore]], number: int, answered: bool
) -> None:
    store = await mortal()
    await store.create(new_deployment())

    await kill_at(store, number, answered, scale_with_key)
    store = await mortal()
    was_changed = (await store.get(KIND, UID)).spec.replicas == 5
    assert was_changed or await store.find_request("the-key") is None
    await scale_with_key(store, "again")
    assert await store.find_request("the-key") is not None
    assert (await store.get(KIND, UID)).spec.replicas == 5


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_killed_change_is_not_made_over_another_that_came_since(
    mortal: Callable[[], Awaitable[KubernetesStore]], number: int, answered: bool
) -> None:
    store = await mortal()
    await store.create(new_deployment())

    assert await kill_at(store, number, answered, scale_with_key)
    store = await mortal()
    await store.update(with_replicas(await store.get(KIND, UID), 2))
    assert await store.find_request("the-key") is None
    if (number, answered) == (1, False):  # nobody knows that it was begun
        await scale_with_key(store, "again")
    else:
        for attempt in ("again", "once-more"):
            with pytest.raises(ChangeSuperseded, match="begun before and cut off"):
                await scale_with_key(store, attempt)
    wanted = 5 if (number, answered) == (1, False) else 2
    assert (await store.get(KIND, UID)).spec.replicas == wanted
    secret = await store.get_secret(UID, "api-key")
    assert secret in (None, b"again", f"killed-{number}-{answered}".lower().encode())


async def test_a_refused_change_leaves_the_secret_as_it_was(
    mortal: Callable[[], Awaitable[KubernetesStore]],
) -> None:
    store = await mortal()
    await create(store, "first")
    subject = OperationSubject(kind=KIND.KIND, name="chat", uid=UID)

    async def change() -> None:
        async with store._companions.before(recording("other"), subject, Effect.CHANGE):
            assert await store.get_secret(UID, "api-key") == b"other"
            raise VersionConflict("it changed meanwhile")

    with pytest.raises(VersionConflict):
        await change()
    assert await store.get_secret(UID, "api-key") == b"first"


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 6))
async def test_a_killed_deletion_leaves_no_secret_without_its_object(
    mortal: Callable[[], Awaitable[KubernetesStore]],
    number: int,
    answered: bool,
) -> None:
    store = await mortal()
    await create(store, "first")

    async def remove(store: Store, attempt: str) -> object:
        try:
            marked = await store.delete(KIND, UID)
            assert marked is not None
            return await store.update(without_finalizers(marked))
        except ObjectNotFound:
            return None

    await kill_at(store, number, answered, remove)
    store = await mortal()
    await remove(store, "again")
    assert await store.list(KIND) == []
    made = (await store.find_request("the-key")) is not None
    assert made, "it was created, so its repeat must be answered"
    assert await store.get_secret(UID, "api-key") is None


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(1, 6))
@pytest.mark.parametrize(
    "finalizers", [(), ("inference.exo.dev/replicas",)], ids=["gone", "marked"]
)
async def test_a_killed_deletion_is_known_exactly_if_it_happened(
    mortal: Callable[[], Awaitable[KubernetesStore]],
    number: int,
    answered: bool,
    finalizers: tuple[str, ...],
) -> None:
    store = await mortal()
    meta = new_deployment().metadata.model_copy(update={"finalizers": finalizers})
    await store.create(new_deployment().model_copy(update={"metadata": meta}))

    async def remove(store: Store, attempt: str) -> object:
        return await store.delete(KIND, UID, recording(attempt, with_key=True))

    await kill_at(store, number, answered, remove)
    store = await mortal()
    left = [each for each in await store.list(KIND) if each.metadata.deletion_timestamp is None]
    assert (await store.find_request("the-key") is None) == bool(left)


async def test_secrets_of_a_create_that_was_cut_off_are_removed(
    mortal: Callable[[], Awaitable[KubernetesStore]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secrets, "ORPHANED_AFTER", secrets.ORPHANED_AFTER * 0)
    assert await kill_at(await mortal(), 4, False, create)
    store = await mortal()
    assert await store.get_secret(UID, "api-key") is not None
    assert await store.list(KIND) == []
    await _prune(store)
    assert await store.get_secret(UID, "api-key") is None


async def test_secrets_of_objects_are_not_removed(cluster: Cluster) -> None:
    store = await open_kubernetes_store(cluster)
    await create(store, "first")
    cluster.kubectl("create", "secret", "generic", "of-someone-else")
    await _prune(store)
    assert await store.get_secret(UID, "api-key") == b"first"
    assert "of-someone-else" in cluster.kubectl("get", "secrets").stdout
    await store.close()


async def test_two_controllers_do_not_both_begin_the_same_create(
    mortal: Callable[[], Awaitable[KubernetesStore]],
) -> None:
    """One that chose another uid for the same request must wait, for the other may be at work."""
    await kill_at(await mortal(), 3, False, create)
    store = await mortal()
    other = deployment("other")
    with pytest.raises(RequestRepeated, match="another controller"):
        await store.create(other, recording("other", with_key=True))
    assert await store.list(KIND) == []
    await create(store, "again")
    with pytest.raises(RequestRepeated, match="recorded the same create"):
        await store.create(other, recording("other", with_key=True))


async def _prune(store: KubernetesStore) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    await store.prune(requests_before=long_ago, operations_before=long_ago)
