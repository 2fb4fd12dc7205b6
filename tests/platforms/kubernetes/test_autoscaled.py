"""Deployments of which an autoscaler sets the number of replicas, with Helm and a real API server."""

from __future__ import annotations

from pathlib import Path

from exo_inference.platforms.kubernetes import PlatformValues
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import (
    DESIRED,
    RELEASE,
    UID,
    FakeKubelet,
    is_settled,
    running,
)

AUTOSCALED = PlatformValues(deployment={"autoscaling": {"enabled": True, "type": "hpa"}})


async def test_the_number_is_that_of_the_autoscaler_and_what_is_desired_does_not_fight_it(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    kubernetes_api.kubectl("create", "serviceaccount", "default")  # no controller makes it here
    kubelet = FakeKubelet(kubernetes_api)
    async with running(kubernetes_api, tmp_path, AUTOSCALED) as process:
        await process.settle(DESIRED, kubelet)
        assert (await process.platform.apply(DESIRED)).autoscaled == 1
        kubernetes_api.kubectl("scale", "deployment", RELEASE, "--replicas=3")
        await process.until(DESIRED, lambda observed: observed.autoscaled == 3)
        hash_before = kubelet.deployment()["metadata"]["labels"]["inference.exo.dev/spec-hash"]

        more = altered(DESIRED, replicas=5)
        await process.until(
            more,
            lambda _: (
                kubelet.deployment()["metadata"]["labels"]["inference.exo.dev/spec-hash"]
                != hash_before
            ),
        )
        observed = await process.until(more, lambda _: is_settled(kubelet))
        assert observed.autoscaled == 3
        assert kubelet.deployment()["spec"]["replicas"] == 3


async def test_without_an_autoscaler_no_number_of_one_is_reported(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    kubernetes_api.kubectl("create", "serviceaccount", "default")
    kubelet = FakeKubelet(kubernetes_api)
    async with running(kubernetes_api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        assert (await process.platform.apply(DESIRED)).autoscaled is None
        assert process.cluster.workloads.find(UID) is not None
