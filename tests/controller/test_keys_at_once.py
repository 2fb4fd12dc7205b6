"""Keys on a cluster say what they open as soon as a deployment comes or goes, not at the next sweep."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from exo_inference.controller.cluster.routing import ClusterRouting
from exo_inference.controller.context import Context
from exo_inference.controller.reconcile.reconciler import Reconciler
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.settings import read_settings
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.hub import source_for
from exo_inference.resources import (
    ApiKeySpec,
    DeploymentSpec,
    InferenceApiKey,
    InferenceDeployment,
    ObjectMeta,
)
from tests.controller.control_plane_processes import environment
from tests.controller.fakes import FakePlatform


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """A store that a cluster's reconciler works on, which sweeps once a day."""
    store = await SqliteStore.open(tmp_path / "store.sqlite")
    settings = read_settings(["--platform=kubernetes"], environment("pod-1", tmp_path))
    context = Context(
        settings=replace(settings, resync_seconds=86400.0),
        store=store,
        platform=FakePlatform(),
        models=AsyncMock(**{"models.return_value": set()}),
        find_source=source_for,
        secret_box=SecretBox(bytes(32)),
        routing=ClusterRouting(),
        org_uuid="",
    )
    running = asyncio.create_task(Reconciler(context).run())
    yield store
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await store.close()


async def until_said(store: SqliteStore, *reasons: str) -> None:
    """Wait until the keys, by name, say these reasons."""
    async with asyncio.timeout(20):
        while True:
            keys = sorted(await store.list(InferenceApiKey), key=lambda key: key.metadata.name)
            said = [[found.reason for found in key.status.conditions] for key in keys]
            if said == [[reason] for reason in reasons]:
                return
            await asyncio.sleep(0.01)


async def make_key(store: SqliteStore, name: str, scope: str) -> None:
    spec = ApiKeySpec(display_name=name, scope=scope, sha256="0" * 64)
    await store.create(InferenceApiKey(metadata=ObjectMeta(name=name), spec=spec))


async def make_deployment(store: SqliteStore) -> InferenceDeployment:
    spec = DeploymentSpec(model="org/m", gpu_type="cpu")
    return await store.create(InferenceDeployment(metadata=ObjectMeta(name="chat"), spec=spec))


async def test_a_key_says_what_it_opens_when_its_deployment_comes_and_goes(
    store: SqliteStore,
) -> None:
    await make_key(store, "a", "chat")
    await until_said(store, "UnknownScope")
    chat = await make_deployment(store)
    await make_key(store, "b", chat.metadata.uid)
    await until_said(store, "OpensOne", "OpensOne")
    await store.delete(InferenceDeployment, chat.metadata.uid)
    await until_said(store, "UnknownScope")  # the one that its id opened went with it
    await make_deployment(store)
    await until_said(store, "OpensOne")
