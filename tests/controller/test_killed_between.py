"""Every verb that deletes or replaces, killed between its halves: no orphan, no lost uid, no lost key."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from exo_inference.controller.http import operations
from exo_inference.controller.reconcile.cluster_model import ClusterModelReconciler
from exo_inference.controller.reconcile.model import ModelReconciler
from exo_inference.controller.secret_box import hash_api_key, new_api_key
from exo_inference.controller.stores.base import (
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
)
from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore, secrets
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.kubernetes_api.client import object_path
from exo_inference.kubernetes_api.objects import UID_LABEL
from exo_inference.platforms.base import DesiredModel, ModelPhase, ObservedModel
from exo_inference.resources import (
    ApiKeySpec,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    ObjectMeta,
    TokenSecretRef,
)
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.fakes import FakeSource
from tests.controller.mortal import Fate, Killed, Plane, spec_of
from tests.controller.stores.conftest import install_crds

T = TypeVar("T")

CYCLES = pytest.mark.parametrize(
    ("plane", "cycles"),
    [
        pytest.param("sqlite", 40, id="40"),
        pytest.param("sqlite", 1000, id="1000", marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param("kubernetes", 40, id="kubernetes-40", marks=pytest.mark.kubernetes),
        pytest.param(
            "kubernetes",
            1000,
            id="kubernetes-1000",
            marks=[pytest.mark.kubernetes, pytest.mark.slow, pytest.mark.timeout(1800)],
        ),
    ],
    indirect=["plane"],
)
MODELS = ("org/m1", "org/m2")


class MortalConnection:
    """A connection whose every statement may be the last."""

    def __init__(self, connection: sqlite3.Connection, fate: Fate) -> None:
        self._connection = connection
        self._fate = fate

    def execute(self, *words: Any) -> sqlite3.Cursor:
        self._fate.step()
        return self._connection.execute(*words)

    def executemany(self, *words: Any) -> sqlite3.Cursor:
        self._fate.step()
        return self._connection.executemany(*words)


class SqlitePlane(Plane):
    """On one machine: every statement of a transaction may be the last."""

    store: SqliteStore
    num_steps = 14
    num_settling = 25

    def __init__(self, store: SqliteStore, root: Path, fate: Fate) -> None:
        super().__init__(fate)
        self.store, self.models_dir = store, root / "models"
        self.start()

    def start(self) -> None:
        self.deployments = self.new_deployments()
        self.models = ModelReconciler(
            self.store,
            FakeSource().find,
            self.box,
            self.models_dir,
            lambda _: None,
            first_retry_seconds=1,
        )

    async def restart(self) -> None:
        self.start()

    def folders(self) -> set[str]:
        if not self.models_dir.is_dir():
            return set()
        return {entry.name for entry in self.models_dir.iterdir()}

    async def place_files(self, uid: str) -> str:
        path = self.models_dir / uid
        path.mkdir(parents=True)
        return str(path)

    async def owners(self, uids: set[str]) -> set[str]:
        def read(db: sqlite3.Connection) -> set[str]:
            found = set()
            for table in ("secrets", "events"):
                found |= {row[0] for row in db.execute(f"SELECT DISTINCT owner FROM {table}")}
            return found

        return await self.store._database.read(read)


class MortalApi(KubernetesApi):
    """The Kubernetes API of a controller that may end at each write, in one of three ways.

    Before it is sent; when its answer is there; and in between, when the answer is on its way: then the
    API server may do what it was asked while the next controller is starting.
    """

    fate: Fate

    async def _repeat(self, method: str, path: str, **parts: Any) -> dict[str, Any]:
        if method == "GET":
            return await super()._repeat(method, path, **parts)
        self.fate.step()
        asking = asyncio.ensure_future(super()._repeat(method, path, **parts))
        await asyncio.sleep(0)
        try:
            self.fate.step()
        except Killed:
            await asyncio.wait([asking], timeout=0.001)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            raise
        found = await asking
        self.fate.step()
        return found


class MortalModels:
    """Brings models on a cluster, which outlives the controller."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.there: set[str] = set()

    async def apply_model(self, desired: DesiredModel) -> ObservedModel:
        self.fate.step()
        self.there.add(desired.uid)
        self.fate.step()
        return ObservedModel(ModelPhase.READY, path=f"pvc:{desired.uid}")

    async def delete_model(self, uid: str) -> bool:
        self.fate.step()
        was_there = uid in self.there
        self.there.discard(uid)
        self.fate.step()
        return not was_there

    async def find_loss(self, path: str) -> str:
        return "" if path.removeprefix("pvc:") in self.there else "the volume is gone"

    async def models(self) -> set[str]:
        return set(self.there)

    async def read_token(self, secret: TokenSecretRef) -> str:
        raise AssertionError(f"no model names {secret}")


class ClusterPlane(Plane):
    """On a real Kubernetes API: every request that changes something may be the last."""

    store: KubernetesStore
    num_steps = 14
    num_settling = 60

    def __init__(self, kubeconfig: Path, fate: Fate) -> None:
        super().__init__(fate)
        self._kubeconfig = kubeconfig
        self._models = MortalModels(fate)
        self._pruned_at = 0.0

    async def start(self) -> None:
        api = await MortalApi.connect(self._kubeconfig)
        assert isinstance(api, MortalApi)
        api.fate = self.fate
        self.store = await KubernetesStore.open(api)
        self.deployments = self.new_deployments()
        self.models = ClusterModelReconciler(
            self.store,
            self._models,
            FakeSource().find,
            self.box,
            lambda uid: None,
            first_retry_seconds=1,
        )

    async def restart(self) -> None:
        self.fate.left = None
        await self.store.close()
        await self.start()

    def folders(self) -> set[str]:
        return set(self._models.there)

    async def place_files(self, uid: str) -> str:
        self._models.there.add(uid)
        return f"pvc:{uid}"

    async def owners(self, uids: set[str]) -> set[str]:
        """Have the store clean up as it does every ten minutes, and then look at all Secrets there are."""
        self.store._next_repair = float("-inf")
        now = datetime.now(UTC)
        await self.store.prune(requests_before=now, operations_before=now)
        secrets = await self.store._api.get(object_path(self.store._api, "secrets"))
        labels = [item["metadata"].get("labels", {}) for item in secrets["items"]]
        return {found[UID_LABEL] for found in labels if UID_LABEL in found}


@pytest.fixture
async def plane(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Plane]:
    if request.param == "kubernetes":
        cluster = request.getfixturevalue("kubernetes_api")
        install_crds(cluster.server)
        monkeypatch.setattr(secrets, "ORPHANED_AFTER", timedelta(0))
        found = ClusterPlane(kubeconfig_of("controller", cluster), Fate())
        await found.start()
        yield found
        await found.store.close()
        return
    store, fate = await SqliteStore.open(tmp_path / "controller.db"), Fate()
    transact = store._database._transact

    def mortal(work: Callable[[Any], T]) -> T:
        result = transact(lambda db: work(MortalConnection(db, fate)))
        fate.step()
        return result

    store._database._transact = mortal  # type: ignore[method-assign]
    # What is killed is this process, not the machine.
    connection = store._database._writer
    connection.executor.submit(
        lambda: connection.live_connection().execute("PRAGMA synchronous = OFF")
    ).result()
    yield SqlitePlane(store, tmp_path, fate)
    await store.close()


async def delete(plane: Plane, kind: Any, uid: str) -> None:
    """What the route does."""
    noun = "model" if kind is InferenceModel else "deployment"
    identity = RecordedRequest(f"signature:{uuid4()}", "fingerprint", "")
    await operations.delete(plane.store, noun, await plane.store.get(kind, uid), identity)


async def is_there(plane: Plane, kind: Any, uid: str) -> bool:
    try:
        return (await plane.store.get(kind, uid)).metadata.deletion_timestamp is None
    except ObjectNotFound:
        return False


async def is_gone(plane: Plane, kind: Any, uid: str) -> bool:
    try:
        await plane.store.get(kind, uid)
    except ObjectNotFound:
        return True
    return False


@CYCLES
async def test_a_replacement_that_is_killed_is_made_or_not_made(plane: Plane, cycles: int) -> None:
    for source in MODELS:
        await plane.create_model(source)
    uid, key = await plane.create_deployment("chat")
    chance, tallies = random.Random(7), {True: 0, False: 0}
    for number in range(cycles):
        before = await plane.store.get(InferenceDeployment, uid)
        after = spec_of(MODELS[number % 2], replicas=1 + number % 3, gpu_count=1)

        async def replace(present: Any = before, spec: Any = after) -> None:
            recording = Recording(
                operations.succeeded("deployment", uid),
                events=(NewEvent("Normal", "Replaced", f"{number}"),),  # noqa: B023
            )
            await plane.store.update(present.model_copy(update={"spec": spec}), recording)

        answered = await plane.attempt(replace, chance.randrange(plane.num_steps))
        tallies[answered] += 1
        found = await plane.store.get(InferenceDeployment, uid)
        assert found.spec in ((after,) if answered else (before.spec, after))
        if number % 5 == 0:
            await plane.settle_deployment(uid, chance)
            assert plane.platform.applied[-1].spec.model == found.spec.model
        assert await plane.key_of(uid) == key
        await plane.check()
    assert min(tallies.values()) > cycles / 10, tallies
    assert [d.metadata.uid for d in await plane.store.list(InferenceDeployment)] == [uid]


@CYCLES
async def test_a_deployment_whose_deletion_is_killed_is_there_or_goes_and_can_be_made_again(
    plane: Plane, cycles: int
) -> None:
    await plane.create_model("org/m1")
    chance = random.Random(8)
    uid, key = await plane.create_deployment("chat")
    for _ in range(cycles):
        await plane.settle_deployment(uid, chance)
        answered = await plane.attempt(
            lambda: delete(plane, InferenceDeployment, uid),  # noqa: B023
            chance.randrange(8),
        )
        if await is_there(plane, InferenceDeployment, uid):
            assert not answered
            assert await plane.key_of(uid) == key
            continue
        while not await is_gone(plane, InferenceDeployment, uid):
            await plane.settle_deployment(uid, chance)
        await plane.check()
        assert await plane.platform.deployments() == set()
        uid, key = await plane.create_deployment("chat")  # the name is free again
    assert plane.fate.kills > cycles / 2


@CYCLES
async def test_a_model_whose_deletion_is_killed_is_there_or_goes_with_its_files(
    plane: Plane, cycles: int
) -> None:
    chance = random.Random(9)
    uid = await plane.create_model("org/m1")
    for _ in range(cycles):
        answered = await plane.attempt(
            lambda: delete(plane, InferenceModel, uid),  # noqa: B023
            chance.randrange(8),
        )
        if await is_there(plane, InferenceModel, uid):
            assert not answered
            assert uid in plane.folders()
            continue
        while not await is_gone(plane, InferenceModel, uid):
            await plane.settle_model(uid, chance)
        await plane.check()
        uid = await plane.create_model("org/m1")
    assert plane.fate.kills > cycles / 2


@CYCLES
async def test_a_key_that_is_changed_or_deleted_while_killed_is_the_old_or_the_new_one(
    plane: Plane, cycles: int
) -> None:
    chance, value = random.Random(10), new_api_key()
    metadata = ObjectMeta(name="ci", uid=str(uuid4()))
    spec = ApiKeySpec(display_name="ci", scope="public", sha256=hash_api_key(value))
    stored = await plane.store.create(InferenceApiKey(metadata=metadata, spec=spec))
    for number in range(cycles):
        uid, old = stored.metadata.uid, stored.spec.sha256
        if number % 2:
            new = hash_api_key(new_api_key())
            changed = stored.model_copy(
                update={"spec": stored.spec.model_copy(update={"sha256": new})}
            )
            answered = await plane.attempt(
                lambda: plane.store.update(changed),  # noqa: B023
                chance.randrange(7),
            )
            stored = await plane.store.get(InferenceApiKey, uid)
            assert stored.spec.sha256 in ((new,) if answered else (old, new))
            continue
        operation = Recording(operations.succeeded("api-key", uid))
        answered = await plane.attempt(
            lambda: plane.store.delete(InferenceApiKey, uid, operation),  # noqa: B023
            chance.randrange(8),
        )
        if await is_gone(plane, InferenceApiKey, uid):
            fresh = metadata.model_copy(update={"uid": str(uuid4())})
            stored = await plane.store.create(InferenceApiKey(metadata=fresh, spec=spec))
        else:
            assert not answered
        await plane.check()
    assert plane.fate.kills > cycles / 10
