"""What the scope of a key opens, and what is said on one that opens nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from exo_inference.controller.reconcile.key_scope_conditions import report_scopes, scope_condition
from exo_inference.controller.stores.kubernetes.cache import Cache
from exo_inference.controller.stores.sqlite import SqliteStore
from exo_inference.kubernetes_api.objects import NAME_ANNOTATION
from exo_inference.resources import (
    API_VERSION,
    ApiKeySpec,
    DeploymentSpec,
    InferenceApiKey,
    InferenceDeployment,
    ObjectMeta,
)

OWN_UID = "5f1f7a3c-8c0e-4a3b-9f3d-0d1f6c1d2a11"


@pytest.mark.parametrize(
    ("object_name", "scope", "reason"),
    [
        pytest.param("old", "old", "OpensOne", id="its object's name"),
        pytest.param("old", "chat", "UnknownScope", id="the name that it was given later"),
        pytest.param("old", OWN_UID, "OpensOne", id="its id"),
        pytest.param("5" * 8 + OWN_UID[8:], "5" * 8 + OWN_UID[8:], "UnknownScope", id="like an id"),
    ],
)
def test_a_scope_is_judged_by_the_name_that_gateways_go_by(
    object_name: str, scope: str, reason: str
) -> None:
    raw = {
        "apiVersion": API_VERSION,
        "metadata": {
            "name": object_name,
            "uid": OWN_UID,
            "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {NAME_ANNOTATION: "chat"},
        },
        "spec": {"model": "org/m", "gpuType": "cpu"},
    }
    cache: Cache = Cache(InferenceDeployment)
    renamed = cache.present(cache.observe(raw))
    assert isinstance(renamed, InferenceDeployment)
    assert renamed.metadata.name == "chat"
    assert scope_condition(scope, [renamed]).reason == reason


async def test_every_key_says_what_it_opens_and_one_that_opens_nothing_why(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "store.sqlite")
    spec = DeploymentSpec(model="org/m", gpu_type="cpu")
    made = await store.create(InferenceDeployment(metadata=ObjectMeta(name="chat"), spec=spec))
    scopes = {"a": "public", "b": made.metadata.uid, "c": "chat", "d": "inference"}
    for name, scope in scopes.items():
        key = ApiKeySpec(display_name=name, scope=scope, sha256="0" * 64)
        await store.create(InferenceApiKey(metadata=ObjectMeta(name=name), spec=key))
    await report_scopes(store)
    keys = {key.metadata.name: key for key in await store.list(InferenceApiKey)}
    found = {name: key.status.conditions[0] for name, key in keys.items()}
    assert {name: (c.type, c.status, c.reason) for name, c in found.items()} == {
        "a": ("Ready", "True", "OpensAll"),
        "b": ("Ready", "True", "OpensOne"),
        "c": ("Ready", "True", "OpensOne"),
        "d": ("Ready", "False", "UnknownScope"),
    }
    assert "no deployment with the id or the name 'inference'" in found["d"].message
    (event,) = await store.list_events(keys["d"].metadata.uid)
    assert (event.type, event.reason) == ("Warning", "UnknownScope")
    await report_scopes(store)
    assert {key.metadata.resource_version for key in await store.list(InferenceApiKey)} == {
        key.metadata.resource_version for key in keys.values()
    }
    await store.close()
