"""Replicas that span nodes: LeaderWorkerSets on a real API server; their pods are made by hand.

The definition below is the least that the API server needs to keep such objects; what their own
controller would do, make a leader and its workers, is done by the fake.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from exo_inference.errors import ConfigurationError, PlatformError
from exo_inference.platforms.base import ReplicaPhase
from exo_inference.platforms.kubernetes import PlatformValues
from exo_inference.platforms.kubernetes.names import SPEC_LABEL
from exo_inference.platforms.kubernetes.nodes import GpuNode, gpu_nodes
from exo_inference.platforms.kubernetes.placement import choose_nodes
from exo_inference.platforms.kubernetes.step import Live, read_live
from exo_inference.platforms.kubernetes.workloads import as_deployment
from scripts.kubernetes.client import ApiError
from tests.charts.rendering import only, render
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import RELEASE, UID, FakeKubelet, revisions, running
from tests.platforms.kubernetes.recorded import node
from tests.platforms.kubernetes.test_release_values import DESIRED as ON_ONE_NODE

GROUP = "leaderworkerset.x-k8s.io"
A5000 = {"nvidia.com/gpu.product": "NVIDIA-RTX-A5000", "nvidia.com/gpu.memory": "24564"}
NODES = gpu_nodes([node(name, gpus=4, labels=A5000) for name in ("n1", "n2", "n3")], [])
DESIRED = altered(ON_ONE_NODE, gpu_count=8, replicas=1, engine_parameters=("--seed=1",))
SPANNING = PlatformValues(spans_nodes=True)


def find_nodes() -> list[GpuNode]:
    return NODES


@pytest.mark.parametrize(("count", "nodes"), [(1, 1), (4, 1), (8, 2), (12, 3)])
def test_a_replica_has_all_gpus_of_as_many_nodes_as_it_needs(count: int, nodes: int) -> None:
    desired = altered(DESIRED, gpu_count=count)
    assert choose_nodes(desired, SPANNING, None, find_nodes) == nodes


def test_what_runs_stays_on_as_many_nodes_whatever_comes() -> None:
    larger = gpu_nodes([node("big", gpus=8, labels=A5000)], [])
    assert choose_nodes(DESIRED, SPANNING, Live(nodes=2), lambda: larger) == 2
    assert choose_nodes(DESIRED, SPANNING, None, lambda: larger) == 1


@pytest.mark.parametrize(("given", "count"), [(PlatformValues(), 8), (SPANNING, 6)])
def test_gpus_that_no_node_has_are_refused_with_the_way_out(
    given: PlatformValues, count: int
) -> None:
    with pytest.raises(PlatformError) as refused:
        choose_nodes(altered(DESIRED, gpu_count=count), given, None, find_nodes)
    assert refused.value.message.startswith(f"no node has {count} gpua5000; the largest has 4")
    assert "features.leaderWorkerSet" in (refused.value.hint or "")


def test_the_charts_object_reads_as_a_deployment() -> None:
    group = only(render("inference-deployment", scenario="multi-node"), "LeaderWorkerSet")
    live = read_live(as_deployment(group))
    assert live is not None
    assert (live.nodes, live.replicas, live.name) == (2, 2, "giant")
    assert (live.strategy.max_surge, live.strategy.max_unavailable) == (1, 0)


# -- on an API server


def install_definition(api: KubernetesApi) -> None:
    names = {
        "plural": "leaderworkersets",
        "singular": "leaderworkerset",
        "kind": "LeaderWorkerSet",
        "listKind": "LeaderWorkerSetList",
    }
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": anything},
    }
    body = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"leaderworkersets.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }
    with contextlib.suppress(ApiError):  # it is there from another test
        api.client.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", body)
    deadline = time.monotonic() + 20
    while True:
        with contextlib.suppress(ApiError):
            api.client.request("GET", f"/apis/{GROUP}/v1/leaderworkersets")
            return
        assert time.monotonic() < deadline, "the definition is not served"
        time.sleep(0.05)


class FakeGroupKubelet(FakeKubelet):
    """Makes pods of a LeaderWorkerSet as its controller would."""

    groups = itertools.count()

    @property
    def path(self) -> str:
        return f"/apis/{GROUP}/v1/namespaces/{self.api.namespace}/leaderworkersets/{RELEASE}"

    def group(self) -> dict[str, Any]:
        found: dict[str, Any] = self.api.request("GET", self.path)
        return found

    def change(self, body: dict[str, Any]) -> None:
        self.api.client.request("PATCH", self.path, body, "application/merge-patch+json")

    def deployment(self) -> dict[str, Any]:
        return self.group()

    def make_pod(self) -> str:
        """Make a leader, which is returned, and its worker."""
        number = next(self.groups)
        template = self.group()["spec"]["leaderWorkerTemplate"]
        for index, role in enumerate(("leaderTemplate", "workerTemplate")):
            pod = template[role]
            labels = {**pod["metadata"]["labels"], f"{GROUP}/worker-index": str(index)}
            body = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    **pod["metadata"],
                    "labels": labels,
                    "name": f"{RELEASE}-{number}-{index}",
                },
                "spec": {**pod["spec"], "nodeName": "node-of-the-test"},
            }
            self.api.request("POST", f"/api/v1/namespaces/{self.api.namespace}/pods", body)
        return f"{RELEASE}-{number}-0"


@pytest.mark.kubernetes
async def test_a_cluster_that_lacks_leaderworkerset_ends_the_start_with_the_reason(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        async with running(kubernetes_api, tmp_path, values=SPANNING):
            pass
    assert "does not have LeaderWorkerSet" in refused.value.message


@pytest.mark.kubernetes
async def test_a_replica_over_two_nodes_is_installed_updated_rolled_back_and_removed(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    install_definition(kubernetes_api)
    kubernetes_api.kubectl("create", "serviceaccount", "default")
    for name in ("n1", "n2"):
        body = node(name, gpus=4, labels=A5000)
        client = kubernetes_api.client
        client.request("POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": A5000}})
        path, merge = f"/api/v1/nodes/{name}/status", "application/merge-patch+json"
        client.request("PATCH", path, {"status": body["status"]}, merge)
    kubelet = FakeGroupKubelet(kubernetes_api)
    async with running(kubernetes_api, tmp_path, values=SPANNING) as process:
        (gpus, _) = await process.platform.instance_types()
        assert (gpus.total_gpus, gpus.gpus_of_one_node, gpus.spans_nodes) == (8, 4, True)
        leader = await process.settle(DESIRED, kubelet)
        spec = kubelet.group()["spec"]
        assert (spec["replicas"], spec["leaderWorkerTemplate"]["size"]) == (1, 2)
        observed = await process.platform.apply(DESIRED)
        assert [(r.name, r.phase, r.current) for r in observed.replicas] == [
            (leader, ReplicaPhase.READY, True)  # the worker is no replica
        ]
        num_revisions = len(await revisions(process))
        kubelet.change({"metadata": {"labels": {SPEC_LABEL: None}}, "spec": {"replicas": 3}})
        await process.until(DESIRED, lambda _: kubelet.group()["spec"]["replicas"] == 1)
        for _ in range(3):
            await process.cluster.jobs.wait(RELEASE)
            await process.platform.apply(DESIRED)
        assert SPEC_LABEL in kubelet.group()["metadata"]["labels"]
        assert len(await revisions(process)) <= num_revisions + 2, "not again and again"
        bad = altered(DESIRED, engine_parameters=("--seed=2",))
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(
            new,
            state={"terminated": {"exitCode": 78, "reason": "Error", "message": "no such flag"}},
        )
        seen = await process.until(bad, lambda seen: "rolled back" in seen.failure)
        assert "no such flag" in seen.failure
        template = kubelet.group()["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
        assert template["metadata"]["annotations"]["inference.exo.dev/engine-parameters"] == (
            '["--seed=1"]'
        )
        for pod in (leader, new):
            kubelet.remove_pod(pod)
        while not await process.platform.delete(UID):
            await process.cluster.jobs.wait(RELEASE)
        with pytest.raises(ApiError, match="not found"):
            kubelet.group()
        assert await process.platform.deployments() == set()
