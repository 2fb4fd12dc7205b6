"""Objects that came past the API are looked after like all others."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from starlette.requests import Request

from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.context import Context
from exo_inference.controller.http.routes.deployments import reveal_api_key
from exo_inference.controller.reconcile.adoption import adopt_deployment, adopt_model, choose_engine
from exo_inference.controller.secret_box import KEY_SECRET, SecretBox, hash_api_key
from exo_inference.controller.stores.base import VersionConflict
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import (
    DEPLOYMENT_FINALIZER,
    MODEL_FINALIZER,
    EngineRef,
    InferenceModel,
    ModelSpec,
    ObjectMeta,
    Resource,
)
from exo_inference.resources.base import UidProblem
from tests.controller.conftest import Controller
from tests.controller.stores.objects import deployment, with_replicas

BOX = SecretBox(b"k" * 32)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(tmp_path / "controller.db")
    yield opened
    await opened.close()


async def test_a_deployment_gets_a_finalizer_and_a_key_once(store: SqliteStore) -> None:
    made = await store.create(deployment(finalizers=("someone.else/holds",)))
    uid = made.metadata.uid
    adopted = await adopt_deployment(store, BOX, made)
    assert adopted.metadata.finalizers == ("someone.else/holds", DEPLOYMENT_FINALIZER)
    sealed = await store.get_secret(uid, KEY_SECRET)
    assert sealed is not None
    assert BOX.decrypt(sealed, owner=uid, name=KEY_SECRET).startswith("exo-")
    assert await adopt_deployment(store, BOX, adopted) == adopted
    assert await store.get_secret(uid, KEY_SECRET) == sealed
    assert [event.reason for event in await store.list_events(uid)] == ["Adopted"]


@pytest.mark.parametrize("problem", [None, UidProblem("UidTaken", "its uid is another's")])
async def test_the_key_of_one_that_is_not_adopted_is_refused_in_words(
    store: SqliteStore, problem: UidProblem | None
) -> None:
    made = await store.create(deployment())
    # The store of one machine has no such objects, so that of a cluster is stood in for.
    found = made.model_copy(update={"metadata": made.metadata.known_as(made.metadata.uid, problem)})

    class Given:
        async def get(self, kind: type[Resource], uid: str) -> Resource:
            assert uid == made.metadata.uid
            return found

        get_secret = store.get_secret

    context = Mock(spec=Context)
    context.store, context.secret_box = Given(), BOX
    parts = {"path_params": {"id": made.metadata.uid}, "state": {"context": context}}
    scope = {"type": "http", **parts}
    with pytest.raises(Refused) as caught:
        await reveal_api_key(Request(scope))
    assert caught.value.status_code == 412
    words = "not taken over yet" if problem is None else "its uid is another's"
    assert words in str(caught.value)


async def test_a_deployment_applied_with_our_finalizer_still_gets_its_key(
    store: SqliteStore,
) -> None:
    made = await store.create(deployment(finalizers=(DEPLOYMENT_FINALIZER,)))
    assert await adopt_deployment(store, BOX, made) == made
    assert await store.get_secret(made.metadata.uid, KEY_SECRET) is not None


def test_a_key_that_was_deleted_opens_on_and_nobody_says_that_it_comes(
    stopped_controller: Controller,
) -> None:
    controller = stopped_controller
    with controller.running():
        controller.create_model()
        uid = controller.create_deployment()
        path = f"/v2/ai/deployment/{uid}/api-key"
        key = controller.call("GET", path).json()["api-key"]
    # The store of one machine loses no single secret, so what a hand does on a cluster is stood in for.
    with contextlib.closing(sqlite3.connect(controller.state.database_file)) as db, db:
        assert db.execute("DELETE FROM secrets WHERE owner = ?", (uid,)).rowcount == 1
    with controller.running():
        controller.client().scale_deployment(id=uid, replicas=2)
        found = controller.wait_for(
            lambda: (
                seen := controller.call("GET", f"/v2/ai/deployment/{uid}").json()
            )["ready-replicas"] == 2 and seen
        )  # fmt: skip
        assert found["state"] == "ready"
        answer = controller.call("GET", path)
        assert answer.status_code == 412
        assert "nothing else has it" in answer.text
        assert "api-key create <name> --deployment chat" in answer.text
        assert hash_api_key(key) in controller.state.routes_file.read_text()


async def test_a_deployment_without_an_engine_gets_that_of_its_gpus_for_good(
    store: SqliteStore,
) -> None:
    made = await store.create(deployment())
    others = [InstanceTypeInfo("gpua5000", 1, 1, engine="vllm")]
    assert await choose_engine(store, made, others) is made  # no such GPUs yet
    chosen = await choose_engine(store, made, [InstanceTypeInfo("cpu", 1, 1, engine="vllm")])
    assert chosen.spec.engine == EngineRef(name="vllm")
    assert await store.get(type(made), made.metadata.uid) == chosen
    assert await choose_engine(store, chosen, [InstanceTypeInfo("cpu", 1, 1)]) is chosen


async def test_a_model_gets_a_finalizer_once(store: SqliteStore) -> None:
    model = InferenceModel(metadata=ObjectMeta(name="m"), spec=ModelSpec(source="a/b"))
    adopted = await adopt_model(store, await store.create(model))
    assert adopted.metadata.finalizers == (MODEL_FINALIZER,)
    assert await adopt_model(store, adopted) is adopted


async def test_what_changed_meanwhile_is_not_adopted_as_it_was(store: SqliteStore) -> None:
    made = await store.create(deployment())
    await store.update(with_replicas(made, 2))
    with pytest.raises(VersionConflict):
        await adopt_deployment(store, BOX, made)
