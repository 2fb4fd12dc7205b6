"""A platform on a real API server, and the fake kubelet that its tests run pods with.

`FakeKubelet` makes and changes pods of a Deployment as its controllers would. The charts, Helm, its records,
the watches and the API are real.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from exo_inference.errors import PlatformError
from exo_inference.kubernetes_api.client import KubernetesApi as Client
from exo_inference.platforms.base import (
    DesiredDeployment,
    DesiredModel,
    ModelPhase,
    ObservedDeployment,
    ObservedModel,
)
from exo_inference.platforms.kubernetes import (
    Cluster,
    KubernetesModels,
    KubernetesPlatform,
    KubernetesSettings,
    PlatformValues,
)
from exo_inference.platforms.kubernetes.names import release_name
from exo_inference.platforms.kubernetes.records import list_revisions
from tests.charts.service_accounts import kubeconfig_of
from tests.desired_deployments import desired_deployment
from tests.kubernetes_api import KubernetesApi, KubernetesCluster

CHARTS = Path(__file__).parents[3] / "charts"
UID = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
RELEASE = release_name(UID)
DESIRED = desired_deployment(
    uid=UID,
    name="chat",
    model="exo/tiny-chat",
    model_path="pvc:tiny",
    gpu_type="cpu",
    gpu_count=1,
    replicas=1,
    model_size_bytes=1000,
)
_ADDRESSES = itertools.count(1)


class FakeKubelet:
    """Makes pods of a Deployment and runs them, as controllers and kubelet would."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        self.number = itertools.count(1)

    def deployment(self) -> dict[str, Any]:
        path = f"/apis/apps/v1/namespaces/{self.api.namespace}/deployments/{RELEASE}"
        found: dict[str, Any] = self.api.request("GET", path)
        return found

    def make_pod(self) -> str:
        """Make a pod of the Deployment's present template; it has no node yet."""
        template = self.deployment()["spec"]["template"]
        name = f"{RELEASE}-{next(self.number)}"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": name},
            "spec": {**template["spec"], "nodeName": "node-of-the-test"},
        }
        self.api.request("POST", f"/api/v1/namespaces/{self.api.namespace}/pods", pod)
        return name

    def set_state(self, name: str, *, ready: bool = False, restarts: int = 0, **state: Any) -> None:
        status = {
            "phase": "Running",
            "podIP": f"127.8.0.{next(_ADDRESSES)}",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": "engine",
                    "image": "engine",
                    "imageID": "",
                    "ready": ready,
                    "restartCount": restarts,
                    "state": {"running": {"startedAt": "2026-11-21T20:00:00Z"}},
                    **state,
                }
            ],
        }
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}/status"
        self.api.client.request(
            "PATCH", path, {"status": status}, content_type="application/strategic-merge-patch+json"
        )

    def remove_pod(self, name: str) -> None:
        path = f"/api/v1/namespaces/{self.api.namespace}/pods/{name}"
        self.api.request("DELETE", path, {"gracePeriodSeconds": 0})


class Running:
    """One process of the platform."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.platform = KubernetesPlatform(cluster)
        self.models = KubernetesModels(cluster)

    async def until(
        self,
        desired: DesiredDeployment,
        condition: Callable[[ObservedDeployment], bool],
        seconds: float = 60,
    ) -> ObservedDeployment:
        """Apply until the condition holds, as the reconciler would."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    observed = await self.platform.apply(desired)
                except PlatformError:  # Helm was killed, and is started again soon
                    await asyncio.sleep(0.1)
                    continue
                if condition(observed) and not self.cluster.jobs.running(RELEASE):
                    return observed
                await asyncio.sleep(0.05)

    async def settle(self, desired: DesiredDeployment, kubelet: FakeKubelet) -> str:
        """Install and have one replica ready; return its pod."""
        await self.applied(desired, kubelet)
        pod = kubelet.make_pod()
        kubelet.set_state(pod, ready=True)
        await self.until(desired, lambda _: is_settled(kubelet))
        return pod

    async def applied(self, desired: DesiredDeployment, kubelet: FakeKubelet) -> None:
        """Apply until the Deployment is that of the desired state, and Helm has ended."""

        def is_applied(_: ObservedDeployment) -> bool:
            found = self.cluster.workloads.find(UID)
            flags = json.dumps(list(desired.spec.engine_parameters), separators=(",", ":"))
            return found is not None and (
                found["spec"]["template"]["metadata"]["annotations"][
                    "inference.exo.dev/engine-parameters"
                ]
                == flags
                and found["spec"]["replicas"] == desired.spec.replicas
            )

        await self.until(desired, is_applied)


def is_settled(kubelet: FakeKubelet) -> bool:
    annotations = kubelet.deployment()["metadata"].get("annotations", {})
    labels = kubelet.deployment()["metadata"]["labels"]
    return (
        annotations.get("inference.exo.dev/settled-spec-hash")
        == labels["inference.exo.dev/spec-hash"]
    )


@asynccontextmanager
async def running(
    api: KubernetesApi | KubernetesCluster,
    tmp_path: Path,
    values: PlatformValues | None = None,
) -> AsyncIterator[Running]:
    """Run the platform as the controller, with the rights that the chart gives it."""
    kubeconfig = kubeconfig_of("controller", api)
    client = await Client.connect(kubeconfig)
    settings = KubernetesSettings(
        charts_dir=CHARTS,
        work_dir=tmp_path / "helm",
        kubeconfig=kubeconfig,
        values=values or PlatformValues(),
    )
    cluster = Cluster(client, settings)
    try:
        await cluster.start()
        yield Running(cluster)
    finally:
        await cluster.close()
        await client.close()


async def revisions(process: Running) -> list[tuple[int, str]]:
    found = await list_revisions(process.cluster.api, RELEASE)
    return [(entry.number, entry.status) for entry in found]


MODEL = DesiredModel(
    uid=UID, name="tiny", source="org/tiny", revision="abc", size_bytes=1000, token="hf_secret"
)


async def install_model(process: Running, model: DesiredModel) -> str:
    async with asyncio.timeout(60):
        while True:
            observed = await process.models.apply_model(model)
            jobs = process.cluster.downloads.by_key(UID)
            if observed.details.startswith("waiting for the download's pod") and jobs:
                return str(jobs[-1]["metadata"]["name"])
            await asyncio.sleep(0.05)


async def until_model(process: Running, model: DesiredModel, phase: ModelPhase) -> ObservedModel:
    async with asyncio.timeout(30):
        while True:
            observed = await process.models.apply_model(model)
            if observed.phase is phase:
                return observed
            await asyncio.sleep(0.05)


def set_job_status(api: KubernetesApi, job: str, type_: str, reason: str = "") -> None:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    first = {"Complete": "SuccessCriteriaMet", "Failed": "FailureTarget"}[type_]
    conditions = [
        {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now}
        for kind in (first, type_)
    ]
    status: dict[str, Any] = {"conditions": conditions, "startTime": now}
    if type_ == "Complete":
        status["completionTime"] = now
    path = f"/apis/batch/v1/namespaces/{api.namespace}/jobs/{job}/status"
    api.client.request(
        "PATCH", path, {"status": status}, content_type="application/merge-patch+json"
    )
