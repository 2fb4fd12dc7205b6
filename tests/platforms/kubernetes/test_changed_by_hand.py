"""What a hand changes or takes away of a release comes back, with the real Helm on a real API server."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from exo_inference.platforms.base import ObservedDeployment
from exo_inference.platforms.kubernetes.names import REFUSED_PODS, REFUSED_REASON, annotation
from tests.charts.rendering import helm
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import (
    CHARTS,
    DESIRED,
    RELEASE,
    UID,
    FakeKubelet,
    Running,
    is_settled,
    revisions,
    running,
)


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
    kubelet: FakeKubelet, tmp_path: Path, words: tuple[str, ...]
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
    kubelet: FakeKubelet, tmp_path: Path, words: tuple[str, ...]
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
    kubelet: FakeKubelet, tmp_path: Path
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
    kubelet: FakeKubelet, tmp_path: Path
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
    kubelet: FakeKubelet, tmp_path: Path, words: tuple[str, ...]
) -> None:
    wanted = altered(DESIRED, engine_parameters=("--seed=1",))
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
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    bad = altered(DESIRED, engine_parameters=("--bad",))
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


@pytest.mark.parametrize("gone", ["the Deployment", "the release", "what was written on it"])
async def test_what_served_comes_back_while_an_update_is_refused(
    kubelet: FakeKubelet, tmp_path: Path, gone: str
) -> None:
    bad = altered(DESIRED, engine_parameters=("--bad",), before=DESIRED)
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(new, state={"terminated": {"exitCode": 78, "message": "no"}})
        seen = await process.until(bad, lambda seen: bool(seen.refusal))
        kubelet.remove_pod(new)
        refused = altered(bad, refusal=seen.refusal)
        if gone == "the Deployment":
            await asyncio.to_thread(kubelet.api.kubectl, "delete", "deployment", RELEASE)
        elif gone == "the release":
            await asyncio.to_thread(by_hand, kubelet.api, "uninstall", RELEASE)
        else:
            names = ("settled-revision", "refused-pods-hash", "refused-at")
            words = [f"inference.exo.dev/{name}-" for name in names]
            await asyncio.to_thread(kubelet.api.kubectl, "annotate", "deployment", RELEASE, *words)
        async with asyncio.timeout(10):
            while refused_pods(process):
                await asyncio.sleep(0.01)
        told = []

        def is_back(seen: ObservedDeployment) -> bool:
            told.append(seen.refusal)
            return bool(refused_pods(process))

        observed = await process.until(refused, is_back)
        assert set(told) == {seen.refusal}
        assert f"rolled back: {seen.refusal}. The version before it" in observed.failure
        assert "--bad" not in json.dumps(kubelet.deployment()["spec"])
    # Another leader knows all of it from the Deployment, and can go on from there.
    async with running(kubelet.api, tmp_path) as process:
        count = len(await revisions(process))
        for _ in range(3):
            assert (await process.platform.apply(bad)).refusal == seen.refusal
            await process.cluster.jobs.wait(RELEASE)
        assert len(await revisions(process)) == count
        scaled = altered(bad, replicas=2)
        await process.until(scaled, lambda _: kubelet.deployment()["spec"]["replicas"] == 2)
        assert "--bad" not in json.dumps(kubelet.deployment()["spec"])
        again = altered(bad, restarted_at=datetime.now(UTC))
        await process.applied(again, kubelet)


def refused_pods(process: Running) -> str:
    """Return what the platform sees written down of a refused update; empty without a Deployment."""
    found = process.cluster.workloads.find(UID)
    return "" if found is None else annotation(found, REFUSED_PODS)


async def test_a_deployment_deleted_during_an_update_that_fails_comes_back_as_it_was_before(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    bad = altered(DESIRED, engine_parameters=("--bad",), before=DESIRED)
    async with running(kubelet.api, tmp_path) as process:
        await process.settle(DESIRED, kubelet)
        await process.applied(bad, kubelet)
        await asyncio.to_thread(kubelet.api.kubectl, "delete", "deployment", RELEASE)
        async with asyncio.timeout(10):
            while process.cluster.workloads.find(UID) is not None:
                await asyncio.sleep(0.01)
        await process.applied(bad, kubelet)
        new = kubelet.make_pod()
        kubelet.set_state(new, state={"terminated": {"exitCode": 78, "message": "no"}})
        seen = await process.until(bad, lambda _: bool(refused_pods(process)))
        assert seen.refusal == annotation(kubelet.deployment(), REFUSED_REASON)
        assert "--bad" not in json.dumps(kubelet.deployment()["spec"])
