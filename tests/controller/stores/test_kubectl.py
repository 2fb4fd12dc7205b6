"""The same YAML by kubectl as by `exo … apply`, and who owns which field of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from exo_inference.controller.cluster.leader import LeaderElection
from exo_inference.controller.reconcile.adoption import adopt_deployment, choose_engine
from exo_inference.controller.reconcile.key_scope_conditions import report_scopes
from exo_inference.controller.secret_box import KEY_SECRET, SecretBox
from exo_inference.controller.stores.base import (
    ChangeType,
    NameTaken,
    NewEvent,
    ObjectNotFound,
    Recording,
    StoreTooNew,
)
from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import (
    API_VERSION,
    DEPLOYMENT_FINALIZER,
    ApiKeySpec,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    ObjectMeta,
    model_object_name,
)
from exo_inference.resources.yaml import parse_manifests
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.stores.conftest import open_kubernetes_store
from tests.controller.stores.objects import (
    deployment,
    with_replicas,
    with_status,
    without_finalizers,
)
from tests.controller.stores.test_kubernetes_crashes import UID, create, recording
from tests.kubernetes_api import KubernetesApi as Cluster

DEPLOYMENT = """\
apiVersion: inference.exo.dev/v1alpha1
kind: InferenceDeployment
metadata: {name: chat, labels: {team: ml}}
spec:
  model: exo/tiny-chat
  gpuType: cpu
  gpuCount: 1
  replicas: 2
  engine: {name: exo, version: "0.25.0"}
  engineParameters: ["--max-model-len=512", '--x={"a": 1}']
"""
MODEL = """\
apiVersion: inference.exo.dev/v1alpha1
kind: InferenceModel
metadata: {name: tiny}
spec: {source: exo/tiny-chat}
"""
WITHOUT_REPLICAS = DEPLOYMENT.replace("  replicas: 2\n", "")


@pytest.fixture
async def store(cluster: Cluster) -> AsyncIterator[KubernetesStore]:
    opened = await open_kubernetes_store(cluster)
    yield opened
    await opened.close()


async def kubectl(cluster: Cluster, *words: str, stdin: str | None = None) -> str:
    """Run kubectl and wait until its change has come through the watch."""
    done = await asyncio.to_thread(cluster.kubectl, *words, stdin=stdin)
    return done.stdout


async def apply(cluster: Cluster, text: str, manager: str | None = None) -> str:
    server_side = ["--server-side", f"--field-manager={manager}"] if manager else []
    return await kubectl(cluster, "apply", *server_side, "-f", "-", stdin=text)


async def refusal(cluster: Cluster, text: str, *words: str) -> str:
    done = await asyncio.to_thread(
        cluster.kubectl, "apply", *words, "-f", "-", stdin=text, check=False
    )
    assert done.returncode != 0, done.stdout
    return done.stderr


async def current(cluster: Cluster, store: KubernetesStore) -> InferenceDeployment:
    """Return the deployment once the store has seen its newest version."""
    raw = json.loads(await kubectl(cluster, "get", "idep", "chat", "-o", "json"))
    async with asyncio.timeout(60):
        while True:
            present = await store.get_by_name(InferenceDeployment, "chat")
            if int(present.metadata.resource_version) >= int(raw["metadata"]["resourceVersion"]):
                return present
            await asyncio.sleep(0.01)


async def managers(cluster: Cluster) -> dict[str, list[str]]:
    """Return the fields of the spec that each field manager owns."""
    words = ["get", "idep", "chat", "-o", "json", "--show-managed-fields"]
    raw = json.loads(await kubectl(cluster, *words))
    found: dict[str, list[str]] = {}
    for entry in raw["metadata"]["managedFields"]:
        fields = entry["fieldsV1"].get("f:spec", {})
        owned = [name.removeprefix("f:") for name in fields if name.startswith("f:")]
        found.setdefault(entry["manager"], []).extend(owned)
    return found


async def test_kubectl_apply_stores_what_exo_apply_would(
    cluster: Cluster, store: KubernetesStore
) -> None:
    changes = store.watch(InferenceDeployment)
    await apply(cluster, DEPLOYMENT + "---\n" + MODEL)
    manifests, problems = parse_manifests(DEPLOYMENT + "---\n" + MODEL, "f.yaml")
    assert problems == []
    change = await asyncio.wait_for(anext(changes), 60)
    assert change.type == ChangeType.ADDED
    seen = change.object
    assert isinstance(seen, InferenceDeployment)
    assert seen.spec == manifests[0].resource.spec
    assert seen.metadata.labels == {"team": "ml"}
    assert seen.metadata.annotations == {}
    assert await store.get(InferenceDeployment, seen.metadata.uid) == seen
    model = await store.get_by_name(InferenceModel, model_object_name("exo/tiny-chat"))
    assert model.spec == manifests[1].resource.spec


async def test_what_is_left_out_is_as_in_exo_apply(
    cluster: Cluster, store: KubernetesStore
) -> None:
    text = f"{DEPLOYMENT.partition('spec:')[0]}spec: {{model: a/b, gpuType: cpu}}\n"
    await apply(cluster, text)
    manifests, _ = parse_manifests(text, "f.yaml")
    found = await store.get_by_name(InferenceDeployment, "chat")
    assert found.spec == manifests[0].resource.spec


async def test_kubectl_delete_waits_for_our_finalizers(
    cluster: Cluster, store: KubernetesStore
) -> None:
    made = await store.create(deployment(finalizers=("inference.exo.dev/replicas",)))
    await kubectl(cluster, "delete", "idep", "chat", "--wait=false")
    marked = await current(cluster, store)
    assert marked.metadata.deletion_timestamp is not None
    released = marked.metadata.model_copy(update={"finalizers": ()})
    await store.update(marked.model_copy(update={"metadata": released}))
    with pytest.raises(ObjectNotFound):
        await store.get(InferenceDeployment, made.metadata.uid)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(DEPLOYMENT.replace("gpuType", "gpuTyp"), "gpuTyp", id="unknown-field"),
        pytest.param(DEPLOYMENT.replace("name: chat", "name: chat.x"), "metadata.name must be 1 to 63", id="no-dns-label"),
        pytest.param(DEPLOYMENT.replace("name: chat", f"name: {'c' * 64}"), "metadata.name must be 1 to 63", id="long-name"),
        pytest.param(DEPLOYMENT.replace("replicas: 2", "replicas: 101"), "less than or equal to 100", id="too-many"),
        pytest.param(DEPLOYMENT.replace("replicas: 2", "replicas: -1"), "greater than or equal to 0", id="negative"),
        pytest.param(DEPLOYMENT.replace("replicas: 2", 'replicas: "2"'), "must be of type integer", id="text"),
        pytest.param(DEPLOYMENT.replace("gpuCount: 1", "gpuCount: 0"), "greater than or equal to 1", id="no-gpu"),
        pytest.param(DEPLOYMENT.replace("  model: exo/tiny-chat\n", ""), "spec.model: Required", id="missing"),
        pytest.param(DEPLOYMENT.replace("model: exo/tiny-chat", 'model: ""'), "at least 1 chars", id="empty"),
        pytest.param(DEPLOYMENT.replace('["--max-model-len=512", \'--x={"a": 1}\']', '"--a"'), "must be of type array", id="string-of-flags"),
        pytest.param(MODEL.replace("chat}", "chat, tokenSecret: {name: My_Secret}}"), "spec.tokenSecret.name in body should match", id="no-secret-name"),
        pytest.param(MODEL.replace("chat}", "chat, tokenSecret: {name: hub, key: a b}}"), "spec.tokenSecret.key in body should match", id="no-secret-key"),
        pytest.param(MODEL.replace("chat}", "chat, tokenSecret: {key: token}}"), "spec.tokenSecret.name: Required", id="no-secret"),
        pytest.param(MODEL.replace("chat}", "chat, tokenSecret: {name: hub, vault: x}}"), "tokenSecret.vault", id="unknown-field-of-secret"),
        pytest.param(DEPLOYMENT.replace("v1alpha1", "v9"), 'no matches for kind "InferenceDeployment" in version "inference.exo.dev/v9"', id="newer-version"),
    ],
)  # fmt: skip
async def test_bad_manifests_are_refused_and_say_why(
    cluster: Cluster, text: str, problem: str
) -> None:
    assert problem in await refusal(cluster, text)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("model: exo/tiny-chat", "model: exo/other"),
        ("gpuType: cpu", "gpuType: gpua30"),
        ("gpuCount: 1", "gpuCount: 2"),
        ("{name: exo, version", "{name: vllm, version"),
        ("gpuCount: 1", "gpuCount: 1\n  productName: p"),
    ],
)
async def test_what_the_api_replaces_kubectl_changes_under_the_same_uid(
    cluster: Cluster, store: KubernetesStore, before: str, after: str
) -> None:
    await apply(cluster, DEPLOYMENT)
    old = await current(cluster, store)
    await apply(cluster, DEPLOYMENT.replace(before, after))
    new = await current(cluster, store)
    assert new.spec != old.spec
    assert new.metadata.uid == old.metadata.uid
    assert new.metadata.generation == old.metadata.generation + 1


async def test_the_engine_that_was_chosen_cannot_be_taken_away(cluster: Cluster) -> None:
    await apply(cluster, DEPLOYMENT)
    replaced = DEPLOYMENT.replace("{name: exo, version", "{version")
    assert replaced != DEPLOYMENT
    assert "engine.name cannot be taken away" in await refusal(cluster, replaced)


async def test_an_autoscalers_replicas_are_not_fought(
    cluster: Cluster, store: KubernetesStore
) -> None:
    """A GitOps tool applies without replicas, an autoscaler scales, the API changes flags."""
    await apply(cluster, WITHOUT_REPLICAS, "argocd-controller")
    await kubectl(cluster, "scale", "idep", "chat", "--replicas=5")
    present = await current(cluster, store)
    assert present.spec.replicas == 5
    told = await store.update_status(with_status(present, 5))
    spec = told.spec.model_copy(update={"engine_parameters": ("--seed=2",)})
    changed = await store.update(told.model_copy(update={"spec": spec}))
    assert changed.spec.replicas == 5
    owners = await managers(cluster)
    assert owners["exo-inference"] == ["engineParameters"]
    assert "replicas" not in owners["argocd-controller"]
    # The tool meets the one field that was changed past it, and no other.
    text = await refusal(
        cluster, WITHOUT_REPLICAS, "--server-side", "--field-manager=argocd-controller"
    )
    assert ".spec.engineParameters" in text
    assert ".spec.replicas" not in text
    forced = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"]
    await kubectl(cluster, *forced, "-f", "-", stdin=WITHOUT_REPLICAS)
    found = await current(cluster, store)
    assert found.spec.engine_parameters == ("--max-model-len=512", '--x={"a": 1}')
    assert found.spec.replicas == 5


async def test_scaling_by_the_api_and_applying_again_agree(
    cluster: Cluster, store: KubernetesStore
) -> None:
    await apply(cluster, WITHOUT_REPLICAS)
    present = await current(cluster, store)
    await store.update(with_replicas(present, 4))
    await apply(cluster, WITHOUT_REPLICAS)
    assert (await current(cluster, store)).spec.replicas == 4


async def test_the_scale_subresource_tells_an_autoscaler_what_it_asks(
    cluster: Cluster, store: KubernetesStore
) -> None:
    made = await store.create(with_replicas(deployment(), 3))
    status = made.status.model_copy(update={"current_replicas": 2, "selector": "app=chat"})
    await store.update_status(made.model_copy(update={"status": status}))
    path = f"/apis/{API_VERSION}/namespaces/{cluster.namespace}/inferencedeployments/chat/scale"
    scale: dict[str, Any] = json.loads(await kubectl(cluster, "get", "--raw", path))
    assert scale["spec"] == {"replicas": 3}
    assert scale["status"] == {"replicas": 2, "selector": "app=chat"}


async def test_a_status_in_a_manifest_is_ignored(cluster: Cluster, store: KubernetesStore) -> None:
    await apply(cluster, DEPLOYMENT + "status: {readyReplicas: 9}\n")
    assert (await current(cluster, store)).status.ready_replicas == 0


async def test_a_copy_under_another_name_is_another_deployment(
    cluster: Cluster, store: KubernetesStore
) -> None:
    made = await store.create(deployment())
    raw = json.loads(await kubectl(cluster, "get", "idep", "chat", "-o", "json"))
    raw["metadata"] = {
        key: raw["metadata"][key] for key in ("labels", "annotations")
    } | {"name": "copy"}  # fmt: skip
    await apply(cluster, json.dumps(raw))
    copy = await store.get_by_name(InferenceDeployment, "copy")
    assert copy.metadata.uid != made.metadata.uid
    assert (await store.get(InferenceDeployment, made.metadata.uid)).metadata.name == "chat"


async def test_a_deployment_made_by_kubectl_gets_what_the_api_would_have_given_it(
    cluster: Cluster, store: KubernetesStore
) -> None:
    await apply(cluster, DEPLOYMENT)
    box = SecretBox(b"k" * 32)
    applied = await current(cluster, store)
    adopted = await adopt_deployment(store, box, applied)
    assert adopted.metadata.finalizers == (DEPLOYMENT_FINALIZER,)
    uid = applied.metadata.uid
    sealed = await store.get_secret(uid, KEY_SECRET)
    assert sealed is not None
    assert box.decrypt(sealed, owner=uid, name=KEY_SECRET).startswith("exo-")
    assert await adopt_deployment(store, box, adopted) == adopted
    assert await store.get_secret(uid, KEY_SECRET) == sealed
    await apply(cluster, DEPLOYMENT)
    assert (await current(cluster, store)).metadata.finalizers == (DEPLOYMENT_FINALIZER,)


@pytest.mark.parametrize(
    "engine", ["", "  engine: {name: null}\n", '  engine: {version: "0.25.0"}\n']
)
async def test_the_engine_of_a_manifest_that_names_none_is_chosen_once_and_stays(
    cluster: Cluster, store: KubernetesStore, engine: str
) -> None:
    text = "".join(line for line in DEPLOYMENT.splitlines(True) if "engine:" not in line) + engine
    await apply(cluster, text)
    applied = await current(cluster, store)
    assert applied.spec.engine.name is None
    chosen = await choose_engine(store, applied, [InstanceTypeInfo("cpu", 1, 1, engine="vllm")])
    assert chosen.spec.engine.name == "vllm"
    assert "unchanged" in await apply(cluster, text)
    assert (await current(cluster, store)).spec == chosen.spec
    other = DEPLOYMENT.replace('  engine: {name: exo, version: "0.25.0"}', "  engine: {name: exo}")
    await apply(cluster, other)
    assert (await current(cluster, store)).spec.engine.name == "exo"


async def test_an_object_that_newer_crds_made_unreadable_is_not_written(
    cluster: Cluster, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Newer CRDs give an object a default, which the watch does not tell of."""
    await apply(cluster, DEPLOYMENT)
    present = await current(cluster, store)
    get = store._api.get

    async def get_of_the_future(*words: Any) -> Any:
        raw = await get(*words)
        raw["spec"]["fieldOfTheFuture"] = True
        return raw

    with monkeypatch.context() as patch:
        patch.setattr(store._api, "get", get_of_the_future)
        with pytest.raises(StoreTooNew, match="fieldOfTheFuture"):
            await store.update(with_replicas(present, 7))
    assert (await current(cluster, store)).spec.replicas == 2


async def test_the_api_does_not_create_a_model_that_kubectl_made(
    cluster: Cluster, store: KubernetesStore
) -> None:
    await apply(cluster, MODEL)
    model = await store.get_by_name(InferenceModel, model_object_name("exo/tiny-chat"))
    made = InferenceModel(
        metadata=ObjectMeta(name=model_object_name("exo/tiny-chat")), spec=model.spec
    )
    with pytest.raises(NameTaken):
        await store.create(made)


async def test_an_object_with_fields_of_a_newer_version_is_left_alone(
    cluster: Cluster, store: KubernetesStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program is older than the CRDs: here, it does not know a field that they have."""
    await apply(cluster, MODEL)
    model = await store.get_by_name(InferenceModel, model_object_name("exo/tiny-chat"))
    raw = await store._api.get(
        f"/apis/{API_VERSION}/namespaces/{cluster.namespace}/inferencemodels/tiny"
    )
    raw["spec"]["fieldOfTheFuture"] = True
    raw["metadata"]["resourceVersion"] = str(int(raw["metadata"]["resourceVersion"]) + 10**6)
    store._caches[InferenceModel.KIND].observe(raw)
    with pytest.raises(StoreTooNew, match="fieldOfTheFuture"):
        await store.get(InferenceModel, model.metadata.uid)
    assert await store.list(InferenceModel) == []


async def test_the_controllers_role_suffices_for_the_store_and_the_lease(
    cluster: Cluster,
) -> None:
    """The whole life of an object, and everything that is kept beside it."""
    api = await KubernetesApi.connect(kubeconfig_of("controller", cluster))
    store = await KubernetesStore.open(api)
    await create(store, "first")
    made = await store.get(InferenceDeployment, UID)
    told = await store.update_status(with_status(made, 1))
    event = Recording(events=[NewEvent("Normal", "Same", "same")] * 2)
    changed = await store.update(with_replicas(told, 2), event)
    await store.update(changed, recording("second"))
    reasons = [(e.reason, e.count) for e in await store.list_events(UID)]
    assert reasons == [("Created", 1), ("Same", 2), ("Created", 1)]
    assert await store.ensure_fact("a", "1") == "1"
    assert await store.ensure_fact("b", "2") == "2"
    now = datetime.now(UTC) + timedelta(hours=1)
    await store.prune(requests_before=now, operations_before=now)
    marked = await store.delete(InferenceDeployment, UID)
    assert marked is not None
    await store.update(without_finalizers(marked))
    assert await store.get_secret(UID, "api-key") is None
    spec = ApiKeySpec(display_name="k", scope="public", sha256="0" * 64)
    key = await store.create(InferenceApiKey(metadata=ObjectMeta(name="k"), spec=spec))
    rotated = spec.model_copy(update={"sha256": "1" * 64})
    await store.update(key.model_copy(update={"spec": rotated}))
    await report_scopes(store)
    assert (await store.list(InferenceApiKey))[0].status.conditions[0].reason == "OpensAll"
    election = LeaderElection(api, "exo-controller", "me")
    assert await election.try_acquire()
    assert await election.try_acquire()
    await store.close()
