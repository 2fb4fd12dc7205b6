"""Seals of uids in a real API server: who gets one when, and that an upgrade changes no identity."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from exo_inference.controller.reconcile.adoption import adopt_deployment
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore
from exo_inference.kubernetes_api.client import object_path
from exo_inference.kubernetes_api.identity import (
    SEAL_ANNOTATION,
    SUCCESSOR_ANNOTATION,
    sealed_annotation,
)
from exo_inference.resources import API_VERSION, DEPLOYMENT_FINALIZER, InferenceDeployment
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.stores.conftest import open_kubernetes_store
from tests.controller.stores.objects import deployment
from tests.kubernetes_api import KubernetesApi as Cluster

BOX = SecretBox(b"k" * 32)
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
UID = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"


async def open_sealing(cluster: Cluster) -> KubernetesStore:
    api = await KubernetesApi.connect(kubeconfig_of("controller", cluster))
    return await KubernetesStore.open(api, seal=BOX.uid_seal)


def sealed(name: str, uid: str) -> str:
    return sealed_annotation("InferenceDeployment", name, uid, BOX.uid_seal)


async def read_raw(store: KubernetesStore, name: str) -> dict[str, Any]:
    path = object_path(store._api, "inferencedeployments", name, group=API_VERSION)
    return await store._api.get(path)


def with_uid(item: InferenceDeployment, uid: str) -> InferenceDeployment:
    status = item.status.model_copy(update={"uid": uid})
    return item.model_copy(update={"status": status})


def asking_for(uid: str, *finalizers: str) -> InferenceDeployment:
    made = deployment(finalizers=finalizers)
    metadata = made.metadata.model_copy(update={"uid": uid})
    return made.model_copy(update={"metadata": metadata})


async def test_what_the_version_before_took_over_is_sealed_and_stays_as_it_is(
    cluster: Cluster,
) -> None:
    before = await open_kubernetes_store(cluster)
    made = await before.create(asking_for(UID))
    await before.update_status(with_uid(made, UID))
    old = await read_raw(before, "chat")
    await before.close()
    assert SEAL_ANNOTATION not in old["metadata"]["annotations"]

    store = await open_sealing(cluster)
    assert (await store.get(InferenceDeployment, UID)).metadata.uid_problem is None
    await store.prune(requests_before=LONG_AGO, operations_before=LONG_AGO)
    new = await read_raw(store, "chat")
    assert new["metadata"]["annotations"].pop(SEAL_ANNOTATION) == sealed("chat", UID)
    for part in ("generation", "annotations", "labels", "finalizers"):
        assert new["metadata"].get(part) == old["metadata"].get(part)
    assert (new["spec"], new["status"]) == (old["spec"], old["status"])
    shown = await store.get(InferenceDeployment, UID)
    assert SEAL_ANNOTATION not in shown.metadata.annotations
    await store.close()


async def test_an_object_of_the_api_is_sealed_when_it_is_made_and_one_of_kubectl_when_it_is_adopted(
    cluster: Cluster,
) -> None:
    store = await open_sealing(cluster)
    await store.create(asking_for(UID))
    found = await read_raw(store, "chat")
    assert found["metadata"]["annotations"][SEAL_ANNOTATION] == sealed("chat", UID)
    manifest = {
        "apiVersion": API_VERSION,
        "kind": "InferenceDeployment",
        "metadata": {"name": "applied"},
        "spec": {"model": "org/m1", "gpuType": "cpu"},
    }
    path = object_path(store._api, "inferencedeployments", group=API_VERSION)
    own = (await store._api.create(path, manifest))["metadata"]["uid"]
    await adopt_deployment(store, BOX, await store.get(InferenceDeployment, own))
    found = await read_raw(store, "applied")
    assert found["metadata"]["annotations"][SEAL_ANNOTATION] == sealed("applied", own)
    await store.close()


async def end(store: KubernetesStore, uid: str, *, left: tuple[str, ...] = ()) -> None:
    """Delete a deployment as the reconciler does: marked first, then let go of."""
    await store.delete(InferenceDeployment, uid)
    item = await store.get(InferenceDeployment, uid)
    metadata = item.metadata.model_copy(update={"finalizers": left})
    await store.update(item.model_copy(update={"metadata": metadata}))


async def departed(store: KubernetesStore) -> dict[str, str]:
    return {each.uid: each.name for each in await store._records.list_departed()}


async def test_of_several_objects_that_had_a_uid_the_last_says_whose_it_is_next(
    cluster: Cluster,
) -> None:
    store = await open_sealing(cluster)
    for heir in ("", "talk"):
        await store.create(asking_for(UID, DEPLOYMENT_FINALIZER))
        path = object_path(store._api, "inferencedeployments", "chat", group=API_VERSION)
        annotations = {SUCCESSOR_ANNOTATION: heir or None}
        await store._api.merge(path, {"metadata": {"annotations": annotations}})
        await store._look_up(store._caches["InferenceDeployment"], "chat")
        await end(store, UID)
        assert await departed(store) == {UID: heir or "chat"}
    await store.close()


async def test_whose_a_uid_was_is_written_down_where_another_finalizer_is_the_last(
    cluster: Cluster,
) -> None:
    store = await open_sealing(cluster)
    await store.create(asking_for(UID, DEPLOYMENT_FINALIZER, "example.com/backup"))
    path = object_path(store._api, "inferencedeployments", "chat", group=API_VERSION)
    await end(store, UID, left=("example.com/backup",))
    assert await departed(store) == {UID: "chat"}
    await store._api.merge(path, {"metadata": {"finalizers": None}})
    await store.close()
