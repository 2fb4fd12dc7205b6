"""Releases that are installed without a Helm process, on a real API server: Helm takes them for its own."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from exo_inference.errors import StoreUnreachable
from exo_inference.kubernetes_api.client import KubernetesApi as Client
from exo_inference.platforms.kubernetes import Cluster, KubernetesSettings, PlatformValues
from exo_inference.platforms.kubernetes.direct_install import Installer
from exo_inference.platforms.kubernetes.helm import HelmFailed
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART
from exo_inference.platforms.kubernetes.release_pattern import read_words
from exo_inference.platforms.kubernetes.release_values import Release, build_release
from tests.charts.rendering import helm
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import CHARTS, DESIRED

KINDS = "deployments,services,networkpolicies,poddisruptionbudgets"
_SERVERS_OWN = ("uid", "resourceVersion", "creationTimestamp", "generation", "managedFields")


def release(name: str, **changes: Any) -> Release:
    while True:
        desired = altered(DESIRED, uid=str(uuid.uuid4()), name=name, **changes)
        found = build_release(desired, PlatformValues())
        if read_words(found.name, found.values) is not None:
            return found


def uid_of(wanted: Release) -> str:
    return str(wanted.values["deployment"]["uid"])


class Plane:
    """A cluster object on the API server, whose Helm processes are counted."""

    def __init__(self, cluster: Cluster, api: KubernetesApi) -> None:
        self.cluster = cluster
        self.api = api
        self.helms = 0
        upgrade = cluster.helm.upgrade

        async def counted(*words: Any, **options: Any) -> None:
            self.helms += 1
            await upgrade(*words, **options)

        cluster.helm.upgrade = counted  # type: ignore[method-assign]

    async def install(self, wanted: Release) -> int:
        """Install or upgrade a release; return how many Helm processes that took."""
        before = self.helms
        await self.cluster.upgrade(wanted.name, uid_of(wanted), DEPLOYMENT_CHART, wanted.values)
        return self.helms - before

    def helm(self, *words: str) -> str:
        """Return what Helm says, as a person would run it."""
        options = [f"--namespace={self.api.namespace}", f"--kubeconfig={self.api.kubeconfig}"]
        return helm(*words, *options)

    def objects(self, wanted: Release) -> list[dict[str, Any]]:
        """Return the objects of a release, without what the server adds and with words that are the same for all."""
        words = read_words(wanted.name, wanted.values)
        assert words is not None
        selector = f"--selector=app.kubernetes.io/instance={wanted.name}"
        text = self.api.kubectl("get", KINDS, selector, "--output=json").stdout
        for field, word in words._asdict().items():
            text = text.replace(word, f"the-{field}")
        items = json.loads(text)["items"]
        for item in items:
            for key in _SERVERS_OWN:
                item["metadata"].pop(key, None)
            item.pop("status", None)
            item["spec"].pop("clusterIP", None)
            item["spec"].pop("clusterIPs", None)
        return sorted(items, key=lambda item: str(item["kind"]))


@asynccontextmanager
async def new_plane(api: KubernetesApi, directory: Path) -> AsyncIterator[Plane]:
    """Return the cluster as a new process sees it."""
    settings = KubernetesSettings(CHARTS, directory, kubeconfig=api.kubeconfig)
    client = await Client.connect(api.kubeconfig)
    found = Plane(Cluster(client, settings), api)
    yield found
    await found.cluster.close()
    await client.close()


@pytest.fixture
async def plane(kubernetes_api: KubernetesApi, tmp_path: Path) -> AsyncIterator[Plane]:
    """Two releases were installed by Helm: their form is known."""
    async with new_plane(kubernetes_api, tmp_path) as found:
        assert [await found.install(release(f"{word}-animal")) for word in ("first", "other")] == [
            1,
            1,
        ]
        yield found


async def test_the_third_of_a_form_takes_no_helm_and_is_what_helm_makes(plane: Plane) -> None:
    by_helm, third = release("wombat", replicas=1), release("kestrel")
    assert await plane.install(third) == 0
    plane.cluster.installer = Installer(plane.cluster.api)  # which has learnt nothing
    assert await plane.install(by_helm) == 1
    assert plane.objects(third) == plane.objects(by_helm)


async def test_helm_reads_upgrades_rolls_back_and_removes_it(plane: Plane) -> None:
    wanted = release("kestrel")
    assert await plane.install(wanted) == 0
    (entry,) = json.loads(plane.helm("history", wanted.name, "--output=json"))
    assert (entry["revision"], entry["status"]) == (1, "deployed")
    assert json.loads(plane.helm("get", "values", wanted.name, "--output=json")) == wanted.values
    assert "Deployment kestrel" in plane.helm("get", "notes", wanted.name)
    plane.helm(
        "upgrade", wanted.name, str(CHARTS / DEPLOYMENT_CHART), "--reuse-values", "--set=replicas=3"
    )
    assert plane.objects(wanted)[0]["spec"]["replicas"] == 3
    plane.helm("rollback", wanted.name, "1")
    assert plane.objects(wanted)[0]["spec"]["replicas"] == 1
    changed = build_release(
        altered(DESIRED, uid=uid_of(wanted), name="kestrel", replicas=2), PlatformValues()
    )
    assert await plane.install(changed) == 1
    plane.helm("uninstall", wanted.name)
    assert plane.objects(wanted) == []
    assert plane.api.kubectl("get", "secrets", f"--selector=name={wanted.name}").stdout == ""


async def test_values_of_another_form_are_helms(plane: Plane) -> None:
    assert await plane.install(release("kestrel", replicas=2)) == 1
    assert await plane.install(release("a-name-that-is-longer-than-any-seen")) == 1
    assert await plane.install(release("kestrel", engine_parameters=("--max-num-seqs=1",))) == 1


@pytest.mark.parametrize("before", range(6))
async def test_a_controller_killed_between_two_writes_is_made_good(
    plane: Plane, tmp_path: Path, before: int
) -> None:
    """What is left is what a killed Helm leaves; the next process finds it, and the release becomes whole."""
    wanted, installer = release("kestrel"), plane.cluster.installer
    writes = 0
    send = installer._api._repeat

    async def dying(*words: Any, **options: Any) -> dict[str, Any]:
        nonlocal writes
        writes += 1
        if writes > before:
            raise asyncio.CancelledError
        return await send(*words, **options)

    installer._api._repeat = dying  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await installer.try_install(wanted.name, DEPLOYMENT_CHART, wanted.values)
    installer._api._repeat = send  # type: ignore[method-assign]
    async with new_plane(plane.api, tmp_path) as plane:
        assert await plane.install(wanted) == 1
        other = release("wombat")
        assert await plane.install(other) == 1
        assert plane.objects(wanted) == plane.objects(other)
        history = json.loads(plane.helm("history", wanted.name, "--output=json"))
        assert history[-1]["status"] == "deployed"


async def test_what_is_in_the_way_is_told_by_helm_and_stays(plane: Plane) -> None:
    """A Service of this name is somebody's: Helm refuses, and there is no record that says otherwise."""
    wanted = release("kestrel")
    plane.api.kubectl("create", "service", "clusterip", wanted.name, "--tcp=80")
    with pytest.raises(Exception, match="cannot be imported"):
        await plane.install(wanted)
    kept = json.loads(plane.api.kubectl("get", "service", wanted.name, "--output=json").stdout)
    assert "meta.helm.sh/release-name" not in kept["metadata"].get("annotations", {})
    records = plane.api.kubectl("get", "secrets", f"--selector=name={wanted.name},status=deployed")
    assert records.stdout == ""


async def test_a_record_that_another_leader_wrote_is_not_overwritten(plane: Plane) -> None:
    wanted, installer = release("kestrel"), plane.cluster.installer
    replace_record = installer._api.replace

    async def late(path: str, body: Any) -> dict[str, Any]:
        label = {"metadata": {"labels": {"of": "the-next-leader"}}}
        await installer._api.merge(path, label)
        return await replace_record(path, body)

    installer._api.replace = late  # type: ignore[method-assign]
    with pytest.raises(HelmFailed, match="modified") as failed:
        await installer.try_install(wanted.name, DEPLOYMENT_CHART, wanted.values)
    assert failed.value.transient
    found = plane.api.kubectl(
        "get", "secrets", "--selector=of=the-next-leader,status=pending-install"
    )
    assert wanted.name in found.stdout


async def test_a_leader_that_was_paused_writes_nothing_when_it_goes_on(plane: Plane) -> None:
    """Another has led meanwhile, found the release half done, and made it whole."""
    wanted, installer = release("kestrel"), plane.cluster.installer
    create, clock = installer._api.create, [0.0]
    installer._clock = lambda: clock[0]

    async def paused(path: str, body: Any) -> dict[str, Any]:
        answer = await create(path, body)
        if path.endswith("/services"):
            clock[0] += 60.0
        return answer

    installer._api.create = paused  # type: ignore[method-assign]
    with pytest.raises(HelmFailed, match="took longer") as failed:
        await installer.try_install(wanted.name, DEPLOYMENT_CHART, wanted.values)
    assert failed.value.transient
    assert "Deployment" not in [item["kind"] for item in plane.objects(wanted)]


async def test_the_record_of_the_next_leader_stays_when_objects_are_refused(
    plane: Plane, tmp_path: Path
) -> None:
    wanted, installer = release("kestrel"), plane.cluster.installer
    create = installer._api.create
    async with new_plane(plane.api, tmp_path / "next") as other:

        async def paused(path: str, body: Any) -> dict[str, Any]:
            answer = await create(path, body)
            if path.endswith("/secrets"):
                await other.install(wanted)  # which removes the pending record first
            return answer

        installer._api.create = paused  # type: ignore[method-assign]
        assert not await installer.try_install(wanted.name, DEPLOYMENT_CHART, wanted.values)
    (entry,) = json.loads(plane.helm("history", wanted.name, "--output=json"))
    assert entry["status"] == "deployed"


async def test_an_api_that_is_away_is_told_and_tried_again(plane: Plane) -> None:
    wanted, installer = release("kestrel"), plane.cluster.installer
    create = installer._api.create

    async def away(path: str, body: Any) -> dict[str, Any]:
        if path.endswith("/deployments"):
            raise StoreUnreachable("the API is away")
        return await create(path, body)

    installer._api.create = away  # type: ignore[method-assign]
    with pytest.raises(StoreUnreachable):
        await plane.install(wanted)
    installer._api.create = create  # type: ignore[method-assign]
    assert await plane.install(wanted) >= 1
    assert next(item["kind"] for item in plane.objects(wanted)) == "Deployment"
