"""Which deployments are looked at again when a node comes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from exo_inference.controller.cluster.routing import ClusterRouting
from exo_inference.controller.reconcile.deployment import DeploymentReconciler
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import (
    DeploymentSpec,
    InferenceDeployment,
    InferenceModel,
    ModelSpec,
    ObjectMeta,
    model_object_name,
)
from tests.controller.builders import ready_model
from tests.controller.fakes import FakePlatform

SOURCE = "org/m1"


class FakeStarts:
    """Records nothing."""

    def notice(self, *_: object) -> None: ...

    def forget(self, uid: str) -> None: ...


class FakeJudge:
    """Refuses what it is told to, and notes who was held while it judged."""

    def __init__(self) -> None:
        self.refusal = ""
        self.reconciler: DeploymentReconciler | None = None
        self.held_meanwhile: frozenset[str] = frozenset()

    async def find_refusal(self, deployment: InferenceDeployment) -> str:
        assert self.reconciler is not None, "it is set"
        self.held_meanwhile = self.reconciler.held
        return self.refusal

    def admitted_spec(self, deployment: InferenceDeployment) -> str:
        return ""

    def forget(self, uid: str) -> None: ...


class Waiting:
    """One deployment and its reconciler."""

    def __init__(self, store: SqliteStore) -> None:
        self.store, self.platform, self.judge = store, FakePlatform(), FakeJudge()
        parts: Any = (store, self.platform, ClusterRouting(), SecretBox(bytes(32)))
        starts: Any = FakeStarts()
        judge: Any = self.judge
        self.reconciler = DeploymentReconciler(*parts, "http://gateway", starts, judge)
        self.judge.reconciler = self.reconciler
        self.uid = ""

    async def create(self) -> None:
        spec = DeploymentSpec(model=SOURCE, gpu_type="cpu")
        made = await self.store.create(
            InferenceDeployment(metadata=ObjectMeta(name="chat"), spec=spec)
        )
        self.uid = made.metadata.uid

    async def create_model(self) -> None:
        metadata = ObjectMeta(name=model_object_name(SOURCE))
        made = await self.store.create(
            InferenceModel(metadata=metadata, spec=ModelSpec(source=SOURCE))
        )
        status = ready_model().status
        await self.store.update_status(made.model_copy(update={"status": status}))

    async def look(self) -> frozenset[str]:
        """Reconcile until nothing is to be adopted any more; return who is held."""
        while (await self.reconciler.reconcile(self.uid)).again_after_seconds == 0.0:
            continue
        return self.reconciler.held


@pytest.fixture
async def waiting(tmp_path: Path) -> AsyncIterator[Waiting]:
    store = await SqliteStore.open(tmp_path / "store.sqlite")
    found = Waiting(store)
    await found.create()
    yield found
    await store.close()


async def test_what_is_refused_or_not_placed_is_held_until_it_is_found_good(
    waiting: Waiting,
) -> None:
    await waiting.create_model()
    waiting.judge.refusal = "no such GPU"
    assert await waiting.look() == {waiting.uid}
    waiting.judge.refusal, waiting.platform.refuses = "", "no node has the GPUs"
    assert await waiting.look() == {waiting.uid}
    waiting.platform.refuses = None
    assert await waiting.look() == set()


async def test_a_node_that_comes_while_it_is_judged_is_not_missed(waiting: Waiting) -> None:
    await waiting.create_model()
    for refusal in ("no such GPU", "no such GPU", ""):
        waiting.judge.refusal = refusal
        await waiting.look()
        assert waiting.judge.held_meanwhile == {waiting.uid}


async def test_what_names_no_engine_runs_with_that_of_its_gpus(waiting: Waiting) -> None:
    waiting.platform.families = (InstanceTypeInfo("cpu", 1, 1, engine="vllm"),)
    await waiting.create_model()
    await waiting.look()
    assert [desired.engine for desired in waiting.platform.applied] == ["vllm"]
    stored = await waiting.store.get(InferenceDeployment, waiting.uid)
    assert stored.spec.engine.name == "vllm"


async def test_what_names_no_engine_is_not_started_before_one_is_chosen(waiting: Waiting) -> None:
    waiting.platform.families = ()  # the judge finds it good: its GPUs come in between
    await waiting.create_model()
    assert (await waiting.reconciler.reconcile(waiting.uid)).failed
    assert waiting.platform.applied == []


async def test_what_waits_for_its_model_waits_for_no_node(waiting: Waiting) -> None:
    assert await waiting.look() == set()
