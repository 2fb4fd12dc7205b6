"""A gated model that kubectl applied, with its token in a Secret: a real API server, Helm and Hub protocol."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from exo_inference.controller.cluster.routing import ClusterRouting
from exo_inference.controller.context import Context
from exo_inference.controller.reconcile.cluster_model import ClusterModelReconciler
from exo_inference.controller.secret_box import SecretBox
from exo_inference.controller.settings import read_settings
from exo_inference.controller.stores.kubernetes import KubernetesStore
from exo_inference.hub import source_for
from exo_inference.hub.base import ModelSource
from exo_inference.platforms.kubernetes.names import model_release_name
from exo_inference.resources import InferenceModel, find_condition, is_true, model_object_name
from tests.controller.control_plane_processes import environment
from tests.controller.stores.conftest import install_crds, open_kubernetes_store
from tests.hub.hub_server import GOOD_TOKEN, HubServer, Repo, safetensors
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import Running, running, set_job_status

SOURCE = "acme/gated"
NAME = model_object_name(SOURCE)


class Tokens:
    """One model, its reconciler, and what it runs with."""

    def __init__(
        self, api: KubernetesApi, hub: HubServer, store: KubernetesStore, process: Running
    ) -> None:
        def find_source(name: str) -> ModelSource:
            return source_for(name, endpoint=hub.url)

        self.api, self.hub, self.store, self.process = api, hub, store, process
        self.reconciler = ClusterModelReconciler(
            store,
            process.models,
            find_source,
            SecretBox(bytes(32)),
            lambda uid: None,
            first_retry_seconds=0.05,
        )

    async def kubectl(self, *words: str, stdin: str | None = None) -> str:
        return (await asyncio.to_thread(self.api.kubectl, *words, stdin=stdin)).stdout

    async def apply(self, **spec: Any) -> None:
        body = {
            "apiVersion": "inference.exo.dev/v1alpha1",
            "kind": "InferenceModel",
            "metadata": {"name": NAME},
            "spec": {"source": SOURCE, **spec},
        }
        await self.kubectl("apply", "-f", "-", stdin=json.dumps(body))

    async def until(self, type_: str, reason: str) -> InferenceModel:
        """Reconcile, as the reconciler's queue would, until a condition has a reason."""
        async with asyncio.timeout(60):
            while True:
                await asyncio.sleep(0.02)
                for model in await self.store.list(InferenceModel):
                    await self.reconciler.reconcile(model.metadata.uid)
                for model in await self.store.list(InferenceModel):
                    found = find_condition(model.status.conditions, type_)
                    is_new = model.status.observed_generation == model.metadata.generation
                    if found is not None and found.reason == reason and is_new:
                        return model

    async def messages(self) -> Sequence[str]:
        raw = json.loads(await self.kubectl("get", "im", NAME, "-o", "json"))
        return [entry.get("message", "") for entry in raw["status"]["conditions"]]


@pytest.fixture
async def tokens(
    kubernetes_api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tokens]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    huggingface_hub.close_session()
    install_crds(kubernetes_api.server)
    hub = HubServer()
    await hub.start()
    files = {"config.json": b'{"model_type": "llama"}', "model.safetensors": safetensors(5000)}
    hub.repos[SOURCE] = Repo(files, gated=True)
    store = await open_kubernetes_store(kubernetes_api)
    try:
        async with running(kubernetes_api, tmp_path) as process:
            yield Tokens(kubernetes_api, hub, store, process)
    finally:
        await store.close()
        huggingface_hub.close_session()
        await hub.stop()


async def test_the_download_reads_the_secret_and_nothing_of_ours_holds_the_token(
    tokens: Tokens,
) -> None:
    await tokens.apply(tokenSecret={"name": "hub"})
    model = await tokens.until("Resolved", "TokenSecretUnusable")
    assert not is_true(model.status.conditions, "Failed")  # the Secret may come later
    (text, *_) = [text for text in await tokens.messages() if text]
    assert f"there is no Secret hub in namespace {tokens.api.namespace}" in text
    assert "create secret generic hub --from-file=token=FILE" in text
    assert tokens.hub.requests == []

    await tokens.kubectl("create", "secret", "generic", "hub", f"--from-literal=other={GOOD_TOKEN}")
    async with asyncio.timeout(30):
        while not any("has no key 'token'" in text for text in await tokens.messages()):
            await tokens.until("Resolved", "TokenSecretUnusable")

    await tokens.apply(tokenSecret={"name": "hub", "key": "other"})
    model = await tokens.until("Resolved", "Resolved")
    assert ("GET", f"Bearer {GOOD_TOKEN}") in {(m, token) for m, _, token in tokens.hub.requests}
    async with asyncio.timeout(60):
        while not tokens.process.cluster.downloads.by_key(model.metadata.uid):
            await tokens.reconciler.reconcile(model.metadata.uid)
            await asyncio.sleep(0.05)
    (job,) = tokens.process.cluster.downloads.by_key(model.metadata.uid)
    (volume,) = [
        volume["secret"]
        for volume in job["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert volume["secretName"] == "hub"
    assert volume["items"] == [{"key": "other", "path": "token"}]

    set_job_status(tokens.api, job["metadata"]["name"], "Complete")
    await tokens.until("Ready", "Ready")
    secrets = json.loads(await tokens.kubectl("get", "secrets", "-o", "json"))["items"]
    names = {secret["metadata"]["name"] for secret in secrets}
    assert "hub" in names  # it is the user's
    assert f"{model_release_name(model.metadata.uid)}-token" not in names
    told = await tokens.kubectl("get", "im,events,jobs,configmaps", "-o", "json")
    assert GOOD_TOKEN not in told

    # It changes nothing about files that are there.
    await tokens.apply(tokenSecret={"name": "another"})
    await tokens.until("Ready", "Ready")


async def test_a_model_that_was_refused_is_asked_for_again_when_it_names_a_secret(
    tokens: Tokens,
) -> None:
    await tokens.apply()
    model = await tokens.until("Resolved", "ModelGated")
    assert is_true(model.status.conditions, "Failed")
    assert any("spec.tokenSecret" in text for text in await tokens.messages())
    await tokens.kubectl("create", "secret", "generic", "hub", f"--from-literal=token={GOOD_TOKEN}")
    await tokens.apply(tokenSecret={"name": "hub"})
    model = await tokens.until("Resolved", "Resolved")
    assert not is_true(model.status.conditions, "Failed")


async def test_a_secret_of_the_control_plane_is_not_sent_to_the_hub(tokens: Tokens) -> None:
    await tokens.kubectl("create", "secret", "generic", "own", f"--from-literal=token={GOOD_TOKEN}")
    await tokens.kubectl("label", "secret", "own", "app.kubernetes.io/part-of=exo-inference")
    await tokens.apply(tokenSecret={"name": "own"})
    await tokens.until("Resolved", "TokenSecretUnusable")
    assert any("is the control plane's own" in text for text in await tokens.messages())
    assert tokens.hub.requests == []


async def test_a_secret_that_is_named_later_is_judged_before_a_download_reads_it(
    tokens: Tokens,
) -> None:
    """The Hub has answered by then, so nothing else reads the Secret but the download's pod."""
    cluster = tokens.process.cluster
    cluster.settings = replace(cluster.settings, own_secrets=frozenset({"credentials"}))
    for name in ("hub", "own", "credentials"):
        told = f"--from-literal=token={GOOD_TOKEN}"
        await tokens.kubectl("create", "secret", "generic", name, told)
    await tokens.kubectl("label", "secret", "own", "app.kubernetes.io/part-of=exo-inference")
    await tokens.apply(tokenSecret={"name": "hub"})
    uid = (await tokens.until("Resolved", "Resolved")).metadata.uid
    for name in ("own", "credentials"):
        await tokens.apply(tokenSecret={"name": name})
        async with asyncio.timeout(30):
            while not any(f"the Secret {name}, " in text for text in await tokens.messages()):
                await tokens.reconciler.reconcile(uid)
                await asyncio.sleep(0.05)
        assert any("is the control plane's own" in text for text in await tokens.messages())
    named = [
        volume["secret"]["secretName"]
        for job in cluster.downloads.by_key(uid)
        for volume in job["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    ]
    assert set(named) <= {"hub"}


async def test_the_hub_is_asked_about_a_model_with_its_secret_and_without_where_that_is_gone(
    tokens: Tokens, tmp_path: Path
) -> None:
    """As for a plan, or for judging a deployment: neither fails for want of a Secret."""
    settings = read_settings(["--platform=kubernetes"], environment("pod-1", tmp_path))
    context = Context(
        settings=settings,
        store=tokens.store,
        platform=tokens.process.platform,
        models=tokens.process.models,
        find_source=source_for,
        secret_box=SecretBox(bytes(32)),
        routing=ClusterRouting(),
        org_uuid="",
    )
    await tokens.kubectl("create", "secret", "generic", "hub", f"--from-literal=token={GOOD_TOKEN}")
    await tokens.apply(tokenSecret={"name": "hub"})
    model = await tokens.until("Resolved", "Resolved")
    assert await context.hub_token(model) == GOOD_TOKEN
    await tokens.kubectl("delete", "secret", "hub")
    assert await context.hub_token(model) is None
