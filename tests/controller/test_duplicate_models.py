"""Two InferenceModels of one source, which kubectl can make: the older one is used, the younger refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from exo_inference.controller.admission import admit_model_deletion
from exo_inference.controller.admission.world import World, find_model
from exo_inference.controller.http.views import view_model
from exo_inference.controller.reconcile.cluster_model import ClusterModelReconciler
from exo_inference.controller.reconcile.model_status import refuse_uid
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.stores.base import ObjectNotFound
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.hub import source_for
from exo_inference.hub.base import ModelSource
from exo_inference.platforms.base import DesiredModel, ModelPhase, ObservedModel
from exo_inference.resources import (
    DeploymentSpec,
    InferenceDeployment,
    InferenceModel,
    ModelSpec,
    ObjectMeta,
    UidProblem,
    find_condition,
    is_true,
)
from exo_inference.resources.states import model_state
from exo_inference.wire import ModelRef, ModelState
from tests.controller.fakes import FakeSource

SOURCE = "exo/tiny-chat"


class Volumes:
    """Brings every model at once."""

    def __init__(self) -> None:
        self.brought: list[str] = []
        self.loss = ""

    async def apply_model(self, desired: DesiredModel) -> ObservedModel:
        self.brought.append(desired.name)
        return ObservedModel(ModelPhase.READY, path=f"pvc:models/{desired.name}")

    async def find_loss(self, path: str) -> str:
        return self.loss

    async def delete_model(self, uid: str) -> bool:
        return True


class Pair:
    """An older and a younger model of one source, a deployment of it, and their reconciler."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.volumes = store, Volumes()
        self.due: set[str] = set()
        models: Any = self.volumes
        self.reconciler = ClusterModelReconciler(
            store, models, self.find, SecretBox(bytes(32)), self.due.add, first_retry_seconds=0.05
        )

    def find(self, name: str) -> ModelSource:
        return source_for(name) if name == SOURCE else FakeSource()

    async def create(self, name: str, source: str = SOURCE) -> str:
        made = InferenceModel(metadata=ObjectMeta(name=name), spec=ModelSpec(source=source))
        return (await self.store.create(made)).metadata.uid

    async def look(self, uid: str) -> InferenceModel:
        self.due.add(uid)
        while uid in self.due:
            self.due.discard(uid)
            if (await self.reconciler.reconcile(uid)).again_after_seconds == 0.0:
                self.due.add(uid)
            elif uid in self.reconciler._resolving:
                await asyncio.wait([self.reconciler._resolving[uid][1]])
        return await self.store.get(InferenceModel, uid)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    store = await SqliteStore.open(tmp_path / "store.sqlite")
    await store.create(
        InferenceDeployment(
            metadata=ObjectMeta(name="chat"), spec=DeploymentSpec(model=SOURCE, gpu_type="cpu")
        )
    )
    yield Pair(store)
    await store.close()


async def test_the_younger_one_is_refused_and_not_downloaded(pair: Pair) -> None:
    older, younger = await pair.create("older"), await pair.create("younger")
    refused = await pair.look(younger)
    ready = find_condition(refused.status.conditions, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "Duplicate")
    assert f"the id {older} has the source {SOURCE}" in ready.message
    assert is_true((await pair.look(older)).status.conditions, "Ready")
    assert pair.volumes.brought == ["older"]


async def test_by_its_source_the_older_one_is_meant(pair: Pair) -> None:
    older, younger = await pair.create("older"), await pair.create("younger")
    models = await pair.store.list(InferenceModel)
    found = find_model(ModelRef(name=SOURCE), models)
    assert found is not None
    assert found.metadata.uid == older
    refused = await pair.look(younger)
    assert view_model(refused, found).name == "younger"
    assert model_state(refused)[0] == ModelState.ERROR


async def test_the_younger_one_is_deleted_at_once_although_its_source_is_used(pair: Pair) -> None:
    older, younger = await pair.create("older"), await pair.create("younger")
    refused = await pair.look(younger)
    models = tuple(await pair.store.list(InferenceModel))
    deployments = tuple(await pair.store.list(InferenceDeployment))
    admit_model_deletion(refused, World(models, deployments, ()))
    await pair.store.delete(InferenceModel, younger)
    with pytest.raises(ObjectNotFound):
        await pair.look(younger)
    # The older one waits for its deployment.
    await pair.look(older)
    await pair.store.delete(InferenceModel, older)
    assert is_true((await pair.look(older)).status.conditions, "Deleting")


async def test_the_younger_one_is_brought_when_the_older_one_is_gone(pair: Pair) -> None:
    older, younger = await pair.create("older"), await pair.create("younger")
    await pair.look(younger)
    await pair.store.delete(InferenceModel, older)
    assert is_true((await pair.look(younger)).status.conditions, "Ready")
    assert pair.volumes.brought == ["younger"]


async def test_one_that_was_refused_the_id_of_another_goes_by_its_own_and_stays_an_error(
    pair: Pair,
) -> None:
    """Its own id is written down at the first look, and is no sign that something of it runs."""
    uid = await pair.create("m")
    problem = UidProblem("DuplicateUid", "another has it")
    for _ in range(2):
        found = await pair.store.get(InferenceModel, uid)
        asked = found.model_copy(update={"metadata": found.metadata.known_as(uid, problem)})
        await refuse_uid(pair.store, asked)
        found = await pair.store.get(InferenceModel, uid)
        assert found.status.uid == uid
        assert model_state(found) == (ModelState.ERROR, "another has it")
