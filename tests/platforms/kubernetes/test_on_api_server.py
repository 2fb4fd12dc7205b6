"""The platform with the real Helm and a real API server; pods are made by hand, as no kubelet does.

`Kubelet` below is the fake: it makes and changes pods of a Deployment as its controllers would. The
charts, Helm, its records, the watches and the API are real.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import itertools
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exo_inference.errors import PlatformError
from exo_inference.kubernetes_api.client import KubernetesApi as Client
from exo_inference.platforms.base import (
    DesiredDeployment,
    DesiredModel,
    ModelPhase,
    ObservedDeployment,
    ObservedModel,
    ReplicaPhase,
)
from exo_inference.platforms.kubernetes import (
    Cluster,
    KubernetesModels,
    KubernetesPlatform,
    KubernetesSettings,
    PlatformValues,
)
from exo_inference.platforms.kubernetes.names import model_release_name, release_name
from exo_inference.platforms.kubernetes.records import list_revisions
from tests.charts.rendering import helm
from tests.charts.service_accounts import kubeconfig_of
from tests.kubernetes_api import KubernetesApi, KubernetesCluster

CHARTS = Path(__file__).parents[3] / "charts"
UID = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
RELEASE = release_name(UID)
DESIRED = DesiredDeployment(
    uid=UID,
    name="chat",
    model_name="exo/tiny-chat",
    model_path="pvc:tiny",
    gpu_type="cpu",
    gpu_count=1,
    replicas=1,
    model_size_bytes=1000,
)
_ADDRESSES = itertools.count(1)


class Kubelet:
    """Named fake of what makes pods of a Deployment and runs them."""

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

    async def settle(self, desired: DesiredDeployment, kubelet: Kubelet) -> str:
        """Install and have one replica ready; return its pod."""
        await self.applied(desired, kubelet)
        pod = kubelet.make_pod()
        kubelet.set_state(pod, ready=True)
        await self.until(desired, lambda _: is_settled(kubelet))
        return pod

    async def applied(self, desired: DesiredDeployment, kubelet: Kubelet) -> None:
        """Apply until the Deployment is that of the desired state, and Helm has ended."""

        def is_applied(_: ObservedDeployment) -> bool:
            found = self.cluster.workloads.find(UID)
            flags = json.dumps(list(desired.engine_parameters), separators=(",", ":"))
            return found is not None and (
                found["spec"]["template"]["metadata"]["annotations"][
                    "inference.exo.dev/engine-parameters"
                ]
                == flags
                and found["spec"]["replicas"] == desired.replicas
            )

        await self.until(desired, is_applied)


def is_settled(kubelet: Kubelet) -> bool:
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


@pytest.fixture
def kubelet(kubernetes_api: KubernetesApi) -> Kubelet:
    kubernetes_api.kubectl("create", "serviceaccount", "default")  # no controller makes it here
    return Kubelet(kubernetes_api)


async def revisions(process: Running) -> list[tuple[int, str]]:
    found = await list_revisions(process.cluster.api, RELEASE)
    return [(entry.number, entry.status) for entry in found]


async def test_a_deployment_is_installed_once_and_then_left_alone(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        first = await process.platform.apply(DESIRED)
        assert first.replicas == ()  # Helm goes on in the background
        pod = await process.settle(DESIRED, kubelet)
        observed = await process.platform.apply(DESIRED)
        assert [(r.name, r.phase, r.current) for r in observed.replicas] == [
            (pod, ReplicaPhase.READY, True)
        ]
        assert observed.replicas[0].address.endswith(":8000")
        assert observed.next_check_seconds >= 10
        assert await revisions(process) == [(1, "deployed")]
    async with running(kubelet.api, tmp_path) as process:  # another process adopts it
        observed = await process.platform.apply(DESIRED)
        assert [r.phase for r in observed.replicas] == [ReplicaPhase.READY]
        assert process.cluster.jobs.running(RELEASE) == ""
        assert await process.platform.deployments() == {UID}


async def test_scaling_to_zero_and_back_keeps_the_pods_of_the_version(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        template = kubelet.deployment()["spec"]["template"]
        for replicas in (0, 2):
            await process.applied(replace(DESIRED, replicas=replicas), kubelet)
            assert kubelet.deployment()["spec"]["replicas"] == replicas
            assert kubelet.deployment()["spec"]["template"] == template


async def test_an_update_whose_replica_fails_is_rolled_back_and_says_why(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    bad = replace(DESIRED, engine_parameters=("--max-model-len=1",))
    async with running(kubelet.api, tmp_path) as process:
        old = await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
        message = "exo-adapter: error: --max-model-len is too small"
        ended = {"terminated": {"exitCode": 78, "message": message}}
        kubelet.set_state(new, restarts=1, state=waiting, lastState=ended)
        observed = await process.until(bad, lambda seen: "rolled back" in seen.failure)
        assert "--max-model-len is too small" in observed.failure
        await process.until(
            bad, lambda _: kubelet.deployment()["spec"]["template"]["metadata"]["annotations"][
                "inference.exo.dev/engine-parameters"] == "[]",
        )  # fmt: skip
        kubelet.remove_pod(new)
        await process.until(bad, lambda seen: [r.name for r in seen.replicas] == [old])
        count = len(await revisions(process))
        # The version that serves is scaled meanwhile, and the refused one is not tried again.
        scaled = replace(bad, replicas=3)
        await process.until(scaled, lambda _: kubelet.deployment()["spec"]["replicas"] == 3)
        observed = await process.until(scaled, lambda _: True)
        assert "rolled back" in observed.failure
        assert len(await revisions(process)) == count + 1
        # Scaled to nothing and back, it still is the one before; nothing is said to serve.
        kubelet.remove_pod(old)
        for replicas, words in ((0, "starts when it is scaled up"), (1, "is being started")):
            scaled = replace(bad, replicas=replicas)
            await process.until(
                scaled, lambda _, n=replicas: kubelet.deployment()["spec"]["replicas"] == n
            )
            observed = await process.until(scaled, lambda _: True)
            assert words in observed.failure
            assert "serves on" not in observed.failure
            assert "max-model-len" not in json.dumps(kubelet.deployment()["spec"]["template"])
        # Asked again, it is tried again.
        again = replace(bad, restarted_at=datetime.now(UTC))
        await process.applied(again, kubelet)
        assert "max-model-len" in json.dumps(kubelet.deployment()["spec"]["template"])


@pytest.mark.parametrize("state", ["pending-install", "pending-upgrade", "pending-rollback"])
async def test_a_release_that_a_killed_helm_left_pending_is_repaired(
    kubelet: Kubelet, tmp_path: Path, state: str
) -> None:
    changed = replace(DESIRED, engine_parameters=("--seed=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        if state != "pending-install":
            await process.applied(changed, kubelet)
        newest = (await list_revisions(process.cluster.api, RELEASE))[-1]
    # A Helm that is killed leaves its record in this state; the objects may be there already.
    kubelet.api.kubectl("label", "secret", newest.secret, f"status={state}", "--overwrite")
    rewrite_status(kubelet.api, newest.secret, state)
    desired = DESIRED if state == "pending-install" else changed
    async with running(kubelet.api, tmp_path) as process:
        async with asyncio.timeout(30):
            while [status for _, status in await revisions(process)][-1:] != ["deployed"]:
                await process.platform.apply(desired)
                await asyncio.sleep(0.05)
        await process.applied(desired, kubelet)
        assert {status for _, status in await revisions(process)} <= {"deployed", "superseded"}
        pod = await process.settle(desired, kubelet)
        assert pod


async def test_a_roll_back_that_was_killed_does_not_bring_the_refused_version_back(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    """Its objects are the old ones again, while the newest values that Helm knows are the refused."""
    bad = replace(DESIRED, engine_parameters=("--max-model-len=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        ended = {"terminated": {"exitCode": 78, "message": "exo-engine: error: too small"}}
        kubelet.set_state(kubelet.make_pod(), restarts=1, state=ended)
        await process.until(bad, lambda seen: "rolled back" in seen.failure)
        refused, rolled_back = (await list_revisions(process.cluster.api, RELEASE))[-2:]
    for revision, status in ((refused, "deployed"), (rolled_back, "pending-rollback")):
        kubelet.api.kubectl("label", "secret", revision.secret, f"status={status}", "--overwrite")
        rewrite_status(kubelet.api, revision.secret, status)
    settled = f"inference.exo.dev/settled-revision={refused.number - 1}"
    kubelet.api.kubectl("annotate", "deployment", RELEASE, settled, "--overwrite")
    async with running(kubelet.api, tmp_path) as process:
        scaled = replace(bad, replicas=2)
        await process.until(scaled, lambda _: kubelet.deployment()["spec"]["replicas"] == 2)
        assert "max-model-len" not in json.dumps(kubelet.deployment()["spec"]["template"])
        states = [status for _, status in await revisions(process)]
        assert states[-1] == "deployed"
        assert set(states) <= {"deployed", "superseded"}
        count = len(states)
        await process.until(scaled, lambda _: True)
        assert len(await revisions(process)) == count


def rewrite_status(api: KubernetesApi, secret: str, status: str) -> None:
    """Set the status inside Helm's record, as the label alone is not what Helm reads."""
    path = f"/api/v1/namespaces/{api.namespace}/secrets/{secret}"
    found = api.request("GET", path)
    packed = base64.b64decode(base64.b64decode(found["data"]["release"]))
    record = json.loads(gzip.decompress(packed))
    record["info"]["status"] = status
    packed = base64.b64encode(gzip.compress(json.dumps(record).encode()))
    found["data"]["release"] = base64.b64encode(packed).decode()
    api.request("PUT", path, found)


def kill_helm() -> bool:
    """Kill every Helm that this process has started, with SIGKILL; True when there was one."""
    killed = False
    for directory in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = directory.joinpath("stat").read_text().rpartition(")")[2].split()[1]
            words = directory.joinpath("cmdline").read_bytes().split(b"\0")
            if int(parent) == os.getpid() and words[0].endswith(b"helm"):
                os.kill(int(directory.name), signal.SIGKILL)
                killed = True
    return killed


async def test_a_helm_killed_at_any_moment_is_made_good(kubelet: Kubelet, tmp_path: Path) -> None:
    async with running(kubelet.api, tmp_path) as process:
        num_killed = 0
        for number, delay in enumerate((0.04, 0.07, 0.1, 0.13, 0.16, 0.2, 0.3, 0.5)):
            changed = replace(DESIRED, engine_parameters=(f"--seed={number}",))
            await process.platform.apply(changed)
            await asyncio.sleep(delay)  # somewhere in the middle of Helm's work
            num_killed += kill_helm()
            await process.applied(changed, kubelet)
            states = [status for _, status in await revisions(process)]
            assert states[-1] == "deployed"
            assert set(states) <= {"deployed", "superseded"}
        assert num_killed >= 3


@pytest.mark.parametrize("delay", [0.0, 0.15, 0.3])
async def test_an_api_server_that_restarts_in_the_middle_delays_and_loses_nothing(
    kubelet: Kubelet, tmp_path: Path, delay: float
) -> None:
    changed = replace(DESIRED, engine_parameters=("--seed=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        await process.platform.apply(changed)
        await asyncio.sleep(delay)
        kubelet.api.server.restart()  # on this thread: a daemon ends with the one that started it
        await process.applied(changed, kubelet)
        states = [status for _, status in await revisions(process)]
        assert states[-1] == "deployed"
        assert "pending" not in "".join(states)


async def test_values_that_the_chart_refuses_are_named_and_the_release_stays_as_it_was(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        before = kubelet.deployment()["spec"]
    misspelled = PlatformValues(gpus={"cpu": {"nodeSelectr": {"a": "b"}}})
    async with running(kubelet.api, tmp_path, values=misspelled) as process:
        observed = await process.until(DESIRED, lambda seen: bool(seen.failure))
        assert "the chart refuses the values" in observed.failure
        assert "nodeSelectr" in observed.failure
        assert "Correct the platform's values" in observed.failure
        assert kubelet.deployment()["spec"] == before


async def test_deletion_leaves_nothing(kubelet: Kubelet, tmp_path: Path) -> None:
    async with running(kubelet.api, tmp_path) as process:
        pod = await process.settle(DESIRED, kubelet)
        async with asyncio.timeout(60):
            while process.cluster.workloads.find(UID):
                assert not await process.platform.delete(UID)
                await asyncio.sleep(0.05)
        await process.cluster.jobs.wait(RELEASE)
        assert not await process.platform.delete(UID)  # its pod still finishes requests
        kubelet.remove_pod(pod)
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.05)
        assert await process.platform.deployments() == set()
    words = "services,networkpolicies,poddisruptionbudgets,deployments,pods,secrets"
    assert kubelet.api.kubectl("get", words, "--output=name").stdout == ""


async def test_objects_whose_record_is_gone_are_removed_too(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        kubelet.api.kubectl("delete", "secret", "--selector=owner=helm")
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.05)
    assert kubelet.api.kubectl("get", "services,deployments", "--output=name").stdout == ""


MODEL = DesiredModel(
    uid=UID, name="tiny", source="org/tiny", revision="abc", size_bytes=1000, token="hf_secret"
)


async def test_a_model_is_brought_by_its_job_and_the_token_goes_when_it_is_there(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    api = kubelet.api
    async with running(api, tmp_path) as process:
        job = await install_model(process, MODEL)
        secret = f"{model_release_name(UID)}-token"
        assert api.kubectl("get", "secret", secret, "--output=name").stdout.strip()
        manifests = api.kubectl("get", "job,pvc", "--output=json").stdout
        assert "hf_secret" not in manifests
        set_job_status(api, job, "Complete")
        observed = await until_model(process, MODEL, ModelPhase.READY)
        assert observed.path == f"pvc:{model_release_name(UID)}"
        assert api.kubectl("get", "secret", secret, check=False).returncode != 0
        assert await process.models.models() == {UID}
        assert await process.platform.deployments() == set()
        async with asyncio.timeout(60):
            while not await process.models.delete_model(UID):
                await asyncio.sleep(0.05)
        assert api.kubectl("get", "job,secret", "--output=name").stdout == ""


async def test_a_failed_download_says_what_the_source_said_and_can_be_tried_again(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        job = await install_model(process, MODEL)
        set_job_status(kubelet.api, job, "Failed", reason="BackoffLimitExceeded")
        observed = await until_model(process, MODEL, ModelPhase.FAILED)
        assert observed.details
        assert await install_model(process, replace(MODEL, attempt=1)) != job


async def test_a_download_that_ended_well_is_no_failure_before_its_job_says_so(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await install_model(process, MODEL)
        template = process.cluster.downloads.by_key(UID)[-1]["spec"]["template"]
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**template["metadata"], "name": "download"},
            "spec": {**template["spec"], "nodeName": "node-of-the-test"},
        }
        kubelet.api.request("POST", f"/api/v1/namespaces/{kubelet.api.namespace}/pods", pod)
        path = f"/api/v1/namespaces/{kubelet.api.namespace}/pods/download/status"
        ended = {
            "name": "download",
            "image": "i",
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": {"terminated": {"exitCode": 0}},
        }
        body = {"status": {"phase": "Succeeded", "containerStatuses": [ended]}}
        kubelet.api.client.request(
            "PATCH", path, body, content_type="application/strategic-merge-patch+json"
        )
        observed = await until_model(process, MODEL, ModelPhase.DOWNLOADING)
        assert (observed.downloaded_bytes, observed.details) == (MODEL.size_bytes, "")


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


async def test_failures_retries_and_models_in_one_life(kubelet: Kubelet, tmp_path: Path) -> None:
    bad = replace(DESIRED, engine_parameters=("--bad",))
    async with running(kubelet.api, tmp_path) as process:
        old = await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(new, state={"terminated": {"exitCode": 78, "message": "no"}})
        await process.until(bad, lambda seen: "rolled back" in seen.failure)
        again = replace(bad, restarted_at=datetime.now(UTC) + timedelta(hours=1))
        await process.until(
            again,
            lambda seen: (
                [r.name for r in seen.replicas if r.phase is ReplicaPhase.DRAINING] == [new]
            ),
        )
        kubelet.remove_pod(new)
        assert {found.family for found in await process.platform.instance_types()} <= {"cpu"}
        await install_model(process, MODEL)
        assert await process.models.models() == {UID}
        kubelet.remove_pod(old)
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.05)
            while not await process.models.delete_model(UID):
                await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "service", RELEASE),
        ("delete", "poddisruptionbudget", RELEASE),
        ("delete", "networkpolicy", RELEASE),
        ("delete", "deployment", RELEASE),
        ("label", "deployment", RELEASE, "inference.exo.dev/deployment-uid-"),
        ("scale", "deployment", RELEASE, "--replicas=5"),
    ],
    ids=lambda words: f"{words[0]} {words[1]}",
)
async def test_what_a_hand_took_away_comes_back(
    kubelet: Kubelet, tmp_path: Path, words: tuple[str, ...]
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        before = objects_of(kubelet.api)
        assert {kind for kind, *_ in before} == {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"}  # fmt: skip
        await asyncio.to_thread(kubelet.api.kubectl, *words)
        assert objects_of(kubelet.api) != before
        await process.until(DESIRED, lambda _: objects_of(kubelet.api) == before)
        await process.until(DESIRED, lambda _: is_settled(kubelet))
        count = len(await revisions(process))
        for _ in range(3):  # and nothing goes on being repaired
            await process.platform.apply(DESIRED)
            await process.cluster.jobs.wait(RELEASE)
        assert len(await revisions(process)) == count


@pytest.mark.parametrize(
    "words",
    [
        ("kubectl", "set", "image", f"deployment/{RELEASE}", "engine=evil/image:1"),
        ("kubectl", "set", "env", f"deployment/{RELEASE}", "MINE=1"),
        ("helm", "upgrade", "--set=engine.image.tag=9.9"),
    ],
    ids=lambda words: " ".join(words[:3]),
)
async def test_pods_that_a_hand_changed_are_put_back_once_and_it_is_told(
    kubelet: Kubelet, tmp_path: Path, words: tuple[str, ...]
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        before = kubelet.deployment()["spec"]["template"]["spec"]
        change = kubelet.api.kubectl
        if words[0] == "helm":
            chart = (RELEASE, str(CHARTS / "inference-deployment"), "--reuse-values")
            words, change = (*words, *chart), partial(by_hand, kubelet.api)
        await asyncio.to_thread(change, *words[1:])
        assert kubelet.deployment()["spec"]["template"]["spec"] != before
        async with asyncio.timeout(30):
            while "changed by hand" not in (await process.platform.apply(DESIRED)).notice:
                await asyncio.sleep(0.05)
        await process.cluster.jobs.wait(RELEASE)
        assert kubelet.deployment()["spec"]["template"]["spec"] == before
        await assert_left_alone(process)


async def test_a_rollout_that_a_hand_restarted_is_left_alone(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        restart = ("rollout", "restart", f"deployment/{RELEASE}")
        await asyncio.to_thread(kubelet.api.kubectl, *restart)
        await process.cluster.workloads.refresh(RELEASE, {})
        await assert_left_alone(process)
        assert "restartedAt" in json.dumps(kubelet.deployment()["spec"]["template"])


async def assert_left_alone(process: Running) -> None:
    count = len(await revisions(process))
    for _ in range(3):
        assert not (await process.platform.apply(DESIRED)).notice
        await process.cluster.jobs.wait(RELEASE)
    assert len(await revisions(process)) == count


def objects_of(api: KubernetesApi) -> set[tuple[str, ...]]:
    """Return kind, deployment and replicas of what the release has."""
    kinds = "deployments,services,poddisruptionbudgets,networkpolicies"
    found = json.loads(api.kubectl("get", kinds, "--output=json").stdout)["items"]
    return {
        (
            item["kind"],
            item["metadata"]["labels"].get("inference.exo.dev/deployment-uid", ""),
            str(item["spec"].get("replicas", "")),
        )
        for item in found
    }


async def test_a_release_uninstalled_by_hand_is_installed_again(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        before = objects_of(kubelet.api)
        await asyncio.to_thread(by_hand, kubelet.api, "uninstall", RELEASE)
        assert objects_of(kubelet.api) == set()
        await process.until(DESIRED, lambda _: objects_of(kubelet.api) == before)
        assert await revisions(process) == [(1, "deployed")]


@pytest.mark.parametrize(
    "words", [("rollback", RELEASE, "1"), ("upgrade", RELEASE, "--set=deployment.specHash=mine")]
)
async def test_a_release_changed_by_hand_is_brought_back(
    kubelet: Kubelet, tmp_path: Path, words: tuple[str, ...]
) -> None:
    wanted = replace(DESIRED, engine_parameters=("--seed=1",))
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(wanted, kubelet)
        before = kubelet.deployment()["metadata"]["labels"]["inference.exo.dev/spec-hash"]
        if words[0] == "upgrade":
            words = (*words, str(CHARTS / "inference-deployment"), "--reuse-values")
        await asyncio.to_thread(by_hand, kubelet.api, *words)
        labels = kubelet.deployment()["metadata"]["labels"]
        assert labels["inference.exo.dev/spec-hash"] != before
        await process.applied(wanted, kubelet)
        labels = kubelet.deployment()["metadata"]["labels"]
        assert labels["inference.exo.dev/spec-hash"] == before


def by_hand(api: KubernetesApi, *words: str) -> None:
    helm(f"--kubeconfig={api.kubeconfig}", f"--namespace={api.namespace}", *words)


async def test_a_deleted_service_comes_back_while_an_update_is_refused(
    kubelet: Kubelet, tmp_path: Path
) -> None:
    bad = replace(DESIRED, engine_parameters=("--bad",))
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(new, state={"terminated": {"exitCode": 78, "message": "no"}})
        await process.until(bad, lambda seen: "rolled back" in seen.failure)
        kubelet.remove_pod(new)
        before = objects_of(kubelet.api)
        await asyncio.to_thread(kubelet.api.kubectl, "delete", "service", RELEASE)
        observed = await process.until(bad, lambda _: objects_of(kubelet.api) == before)
        assert "rolled back" in observed.failure
