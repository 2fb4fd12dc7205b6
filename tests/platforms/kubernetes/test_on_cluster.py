"""The platform on a whole cluster: real scheduler and controllers, simulated nodes with GPUs (KWOK).

Pods on simulated nodes become ready without a process, so what is shown here is who is placed,
replaced and removed, and when; not that an engine answers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import exo_inference
from exo_inference.errors import PlatformError
from exo_inference.hub import source_for
from exo_inference.platforms.base import (
    DesiredDeployment,
    DesiredModel,
    LogQuery,
    ModelPhase,
    ObservedDeployment,
    ObservedModel,
    ReplicaPhase,
)
from exo_inference.platforms.kubernetes import PlatformValues
from exo_inference.platforms.kubernetes.release_values import merged
from scripts.kubernetes.nodes import FAKE_NODE_ANNOTATION, create_fake_node
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesCluster
from tests.platforms.kubernetes.on_api_server import DESIRED, RELEASE, UID, Running, running

A5000 = {"nvidia.com/gpu.product": "NVIDIA-RTX-A5000", "nvidia.com/gpu.memory": "24564"}
VALUES = PlatformValues(
    deployment={
        "tolerations": [{"key": FAKE_NODE_ANNOTATION, "operator": "Exists"}],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    }
)
ENGINE = PlatformValues(
    deployment={
        "engine": {"image": {"registry": "localhost", "tag": "0.1.0"}},
        "resources": {"requests": {"cpu": "100m"}},
        "memory": {"baseMebibytes": 1024},
        "shm": {"perGpuMebibytes": 64},
        "drain": {"preStopSeconds": 1, "timeoutSeconds": 5},
    }
)
MODEL = Path(exo_inference.__file__).parent / "hub" / "builtin_models" / "tiny-chat"
WANTED = altered(DESIRED, gpu_type="gpua5000", gpu_count=2, replicas=2)


class Gpus:
    """Simulated nodes with four GPUs each, and the volume that the pods mount."""

    def __init__(self, cluster: KubernetesCluster) -> None:
        self.cluster = cluster
        self.nodes: list[str] = []

    def add_node(self) -> str:
        name = f"{self.cluster.namespace}-{len(self.nodes)}"
        create_fake_node(self.cluster.client, name, 4, A5000)
        self.nodes.append(name)
        return name

    def remove_node(self, name: str) -> None:
        self.cluster.kubectl("delete", "node", name, "--ignore-not-found")

    def make_free_volume(self, path: Path) -> None:
        """Make a volume without a class that the next claim without one gets."""
        volume = {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": str(path)},
        }
        metadata = {"name": f"{self.cluster.namespace}-free"}
        item = {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": metadata,
            "spec": volume,
        }
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(item))

    def make_volume(self, path: str) -> None:
        """Make the claim `tiny`, bound, as a model's download would leave it."""
        name = f"{self.cluster.namespace}-tiny"
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}},
        }
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": path},
        }
        items = [
            {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume},
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "tiny"}, "spec": spec},
        ]  # fmt: skip
        for item in items:
            self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(item))


@pytest.fixture
def gpus(kubernetes_cluster: KubernetesCluster) -> Iterator[Gpus]:
    found = Gpus(kubernetes_cluster)
    found.make_volume(str(MODEL))
    yield found
    for name in found.nodes:
        found.remove_node(name)


def count_ready(observed: ObservedDeployment) -> int:
    return sum(replica.phase is ReplicaPhase.READY for replica in observed.replicas)


def names_of(observed: ObservedDeployment) -> set[str]:
    return {replica.name for replica in observed.replicas}


def is_settled(observed: ObservedDeployment, wanted: int) -> bool:
    current = [r for r in observed.replicas if r.current and r.phase is ReplicaPhase.READY]
    return len(current) == len(observed.replicas) == wanted


GONE_NODE_SECONDS = 300.0
"""A hang guard. Kubernetes looks every 20 s for pods of nodes that are gone, and lets them be for 40 s
more; neither can be set. Beside other work 120 s were too few."""


async def watch(
    process: Running,
    desired: DesiredDeployment,
    until: Callable[[ObservedDeployment], Any],
    seconds: float = 120.0,
) -> tuple[int, set[str]]:
    """Apply until it is so; return the least that was ready on the way, and all that was said."""
    least, said = 10**6, set()

    def look(observed: ObservedDeployment) -> bool:
        nonlocal least
        least = min(least, count_ready(observed))
        said.update(replica.details for replica in observed.replicas)
        return bool(until(observed))

    await process.until(desired, look, seconds=seconds)
    return least, said


async def install(process: Running, desired: DesiredDeployment) -> None:
    await watch(process, desired, lambda seen: is_settled(seen, desired.spec.replicas))
    await process.until(desired, lambda _: not process.cluster.jobs.running(RELEASE))


async def test_with_a_gpu_to_spare_an_update_never_has_fewer_ready_than_wanted(
    gpus: Gpus, tmp_path: Path
) -> None:
    gpus.add_node()
    gpus.add_node()
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        await install(process, WANTED)
        (family, *_) = await process.platform.instance_types()
        assert (family.family, family.total_gpus, family.free_gpus) == ("gpua5000", 8, 4)
        changed = altered(WANTED, engine_parameters=("--seed=1",))
        least, _ = await watch(process, changed, lambda seen: is_settled(seen, 2))
        assert least >= 2


async def test_without_one_replicas_are_replaced_one_at_a_time_and_that_is_said(
    gpus: Gpus, tmp_path: Path
) -> None:
    gpus.add_node()
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        await install(process, WANTED)
        changed = altered(WANTED, engine_parameters=("--seed=1",))
        least, _ = await watch(process, changed, lambda seen: is_settled(seen, 2))
        assert least >= 1
        found = process.cluster.workloads.find(UID)
        assert found is not None
        strategy = found["spec"]["strategy"]
        assert strategy["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


async def test_a_replica_without_a_gpu_says_so_and_starts_when_a_node_comes(
    gpus: Gpus, tmp_path: Path
) -> None:
    gpus.add_node()
    three = altered(WANTED, replicas=3)
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        waiting = "waiting for a free GPU"
        await watch(
            process, three, lambda seen: any(r.details.startswith(waiting) for r in seen.replicas)
        )
        gpus.add_node()
        await install(process, three)


async def test_a_node_that_is_deleted_costs_its_replicas_and_nothing_else(
    gpus: Gpus, tmp_path: Path
) -> None:
    lost = gpus.add_node()
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        await install(process, WANTED)
        placed: set[str] = set()
        await watch(process, WANTED, lambda seen: placed.update(names_of(seen)) or placed)
        gpus.add_node()
        gpus.remove_node(lost)
        # Not until fewer are ready: simulated pods take their place sooner than it can be seen.
        await watch(
            process, WANTED, lambda seen: placed.isdisjoint(names_of(seen)), GONE_NODE_SECONDS
        )
        await install(process, WANTED)


async def test_what_a_quota_refuses_is_said_by_name(gpus: Gpus, tmp_path: Path) -> None:
    gpus.add_node()
    gpus.cluster.kubectl("create", "quota", "few", "--hard=requests.nvidia.com/gpu=2")
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        observed = await process.until(WANTED, lambda seen: bool(seen.failure), seconds=60)
        assert "the namespace's quota few has no room" in observed.failure
        assert count_ready(observed) <= 1


async def test_an_unknown_family_is_said_at_once(gpus: Gpus, tmp_path: Path) -> None:
    gpus.add_node()
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        with pytest.raises(PlatformError, match="they have: gpua5000"):
            await process.platform.apply(altered(WANTED, gpu_type="gpub300"))


async def test_deletion_takes_the_pods_with_it(gpus: Gpus, tmp_path: Path) -> None:
    gpus.add_node()
    async with running(gpus.cluster, tmp_path, values=VALUES) as process:
        await install(process, WANTED)
        async with asyncio.timeout(120):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.1)
        assert await process.platform.deployments() == set()
    left = gpus.cluster.kubectl("get", "pods,deployments,services", "--output=name").stdout
    assert left == ""


async def test_a_real_engine_serves_through_an_update_that_fails(
    gpus: Gpus, tmp_path: Path
) -> None:
    """exo-engine in a container of the node: its probes, its logs and its last words."""
    bad = altered(DESIRED, engine_parameters=("--no-such-flag=1",))
    async with running(gpus.cluster, tmp_path, values=ENGINE) as process:
        await watch(process, DESIRED, lambda seen: is_settled(seen, 1))
        await install(process, DESIRED)
        lines = [line async for line in process.platform.logs(UID, LogQuery(tail=5))]
        assert lines
        assert all(line.node and line.message for line in lines)
        observed = await process.platform.apply(DESIRED)
        measured = await process.platform.measurements(observed.replicas[0].name)
        assert measured is not None
        least, said = await watch(process, bad, lambda seen: "rolled back" in seen.failure)
        assert least == 1
        assert any("--no-such-flag" in text for text in said), said
        await watch(process, bad, lambda seen: len(seen.replicas) == 1)
        async with asyncio.timeout(60):
            while not await process.platform.delete(UID):
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        pytest.param(
            {"resources": {"limits": {"memory": "48Mi"}}}, "memory limit of 48Mi", id="memory"
        ),
        pytest.param(
            # With so little of a processor no engine is ready before its probe has failed.
            {
                "startup": {"baseSeconds": 1, "periodSeconds": 1},
                "resources": {"requests": {"cpu": "50m"}, "limits": {"cpu": "50m"}},
            },
            "did not become ready within",
            id="probe too short",
        ),
        pytest.param(
            {"engine": {"image": {"tag": "9.9.9", "pullPolicy": "Never"}}},
            "localhost/exo-engine:9.9.9 does not exist",
            id="no such image",
        ),
        pytest.param(
            {"engine": {"image": {"registry": "127.0.0.1:9"}}},
            "does not reach the registry",
            id="registry away",
        ),
        pytest.param({"runtimeClassName": "nvidia"}, "no RuntimeClass nvidia", id="runtime class"),
        pytest.param({"priorityClassName": "gold"}, "no PriorityClass gold", id="priority class"),
        pytest.param({"nodeSelector": {"no": "node"}}, "no node has the labels", id="no node"),
        pytest.param(
            {"resources": {"requests": {"cpu": "900"}}},
            "no node has enough cpu free",
            id="no cpu",
        ),
    ],
)  # fmt: skip
async def test_the_words_of_a_real_node_are_understood(
    gpus: Gpus, tmp_path: Path, values: dict[str, Any], words: str
) -> None:
    spoiled = PlatformValues(deployment=merged(ENGINE.deployment, values))
    async with running(gpus.cluster, tmp_path, values=spoiled) as process:
        said: set[str] = set()

        def look(observed: ObservedDeployment) -> bool:
            said.update([observed.failure, *(replica.details for replica in observed.replicas)])
            return any(words in text for text in said)

        try:
            await process.until(DESIRED, look, seconds=60)
        except TimeoutError:
            pytest.fail(f"never said {words!r}, but: {said}")


DOWNLOADS = PlatformValues(
    model={
        "storage": {"storageClassName": "-"},
        "download": {"image": {"repository": "localhost/exo-inference", "tag": "0.1.0"}},
    }
)


async def test_a_model_is_brought_onto_its_volume_by_a_real_job(gpus: Gpus, tmp_path: Path) -> None:
    files = tmp_path / "volume"
    files.mkdir()
    files.chmod(0o777)
    gpus.make_free_volume(files)
    resolved = await source_for("exo/tiny-chat").resolve("exo/tiny-chat", revision=None, token=None)
    model = DesiredModel(UID, "tiny", "exo/tiny-chat", resolved.revision, resolved.size_bytes)
    async with running(gpus.cluster, tmp_path, values=DOWNLOADS) as process:
        observed = await until_ended(process, model)
        assert observed.phase is ModelPhase.READY, observed.details
        assert {file.path for file in resolved.files} <= {path.name for path in files.iterdir()}
        again = replace(model, revision="0" * 40)
        observed = await until_ended(process, again)
        assert (observed.phase, observed.final) == (ModelPhase.FAILED, True)
        assert resolved.revision in observed.details


async def until_ended(process: Running, model: DesiredModel) -> ObservedModel:
    async with asyncio.timeout(120):
        while True:
            observed = await process.models.apply_model(model)
            if observed.phase in (ModelPhase.READY, ModelPhase.FAILED):
                return observed
            await asyncio.sleep(0.2)
