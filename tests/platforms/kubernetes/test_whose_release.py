"""Whose a release is: no name makes the platform touch one that is not its own. Real Helm, real API server.

Objects get here with a uid that somebody chose, so a release of the name that it makes may be anybody's:
the control plane's own, a model's, or one of the version before, which goes on under its old name.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from exo_inference.errors import PlatformError
from exo_inference.platforms.kubernetes import platform as platform_module
from exo_inference.platforms.kubernetes import release_values as values_module
from exo_inference.platforms.kubernetes.names import (
    model_release_name,
    model_release_names,
    release_name,
    release_names,
)
from exo_inference.platforms.kubernetes.records import (
    Owner,
    Revision,
    list_revisions,
    owner_of,
    read_record,
)
from tests.desired_deployments import altered
from tests.kubernetes_api import KubernetesApi
from tests.platforms.kubernetes.on_api_server import (
    DESIRED,
    MODEL,
    UID,
    FakeKubelet,
    Running,
    install_model,
    running,
)

OTHER = "0f1e2d3c-4b5a-4678-9abc-def012345678"
OF_BEFORE = f"exo-{UID}"
"""What the version before called the release of this deployment."""


def record(chart: str, values: dict[str, Any], release: str = "x", status: str = "deployed") -> str:
    """Return what Helm would write down of the first revision of a release."""
    written = {
        "name": release,
        "version": 1,
        "info": {"status": status},
        "chart": {"metadata": {"name": chart, "version": "0.1.0", "apiVersion": "v2"}},
        "config": values,
        "manifest": "",
    }
    packed = gzip.compress(json.dumps(written).encode())
    return base64.b64encode(base64.b64encode(packed)).decode()


def revision(packed: str) -> Revision:
    return Revision("sh.helm.release.v1.x.v1", "x", 1, "deployed", packed)


def write_record(
    api: KubernetesApi, release: str, packed: str, status: str, number: int = 1
) -> None:
    """Write one of Helm's records by hand."""
    labels = {"owner": "helm", "name": release, "status": status, "version": str(number)}
    body = {
        "metadata": {"name": f"sh.helm.release.v1.{release}.v{number}", "labels": labels},
        "type": "helm.sh/release.v1",
        "data": {"release": packed},
    }
    api.request("POST", f"/api/v1/namespaces/{api.namespace}/secrets", body)


def names_of(api: KubernetesApi, kinds: str) -> str:
    return api.kubectl("get", kinds, "--output=name").stdout


async def gone(process: Running, uid: str) -> None:
    """Delete a deployment until nothing of it is left."""
    async with asyncio.timeout(60):
        while not await process.platform.delete(uid):
            await asyncio.sleep(0.05)


# -- names and records


def test_no_name_of_a_deployments_release_is_one_of_a_models() -> None:
    uids = (UID, OTHER, f"m-{UID}", f"d-{UID}", "X" * 300)
    assert not {release_name(uid) for uid in uids} & {model_release_name(uid) for uid in uids}
    assert all(len(name) <= 53 for uid in uids for name in release_names(uid))
    assert all(len(name) <= 53 for uid in uids for name in model_release_names(uid))


@pytest.mark.parametrize(
    ("packed", "expected"),
    [
        (record("inference-deployment", {"deployment": {"uid": UID}}), Owner("inference-deployment", UID)),
        (record("inference-model", {"model": {"uid": UID}}), Owner("inference-model", UID)),
        (record("exo-inference", {"deployment": {"uid": UID}}), Owner("exo-inference")),
        (record("inference-deployment", {"model": {"uid": UID}}), Owner("inference-deployment")),
        (record("inference-deployment", {"deployment": {"uid": 7}}), Owner("inference-deployment")),
        (record("inference-deployment", {"deployment": UID}), Owner("inference-deployment")),
        ("", Owner("")),
        ("not base64", Owner("")),
        (base64.b64encode(base64.b64encode(b"not gzip")).decode(), Owner("")),
        (base64.b64encode(base64.b64encode(gzip.compress(b"[]"))).decode(), Owner("")),
        (base64.b64encode(base64.b64encode(gzip.compress(b"[" * 100_000))).decode(), Owner("")),
    ],
    # A packed record has the time in it, and a test's name must be the same in every process.
    ids=["deployment", "model", "other chart", "no deployment's", "uid no text", "uid alone",
         "empty", "not base64", "not packed", "a list", "deep"],
)  # fmt: skip
def test_whose_a_release_is_stands_in_its_record(packed: str, expected: Owner) -> None:
    assert owner_of(revision(packed)) == expected


def test_a_record_that_unpacks_without_end_is_not_read_to_its_end() -> None:
    bomb = gzip.compress(b'"' + b"a" * (64 * 1024 * 1024) + b'"')
    with pytest.raises(PlatformError, match="more than 33554432 bytes when it is unpacked"):
        read_record(revision(base64.b64encode(base64.b64encode(bomb)).decode()))


def test_a_record_that_was_cut_says_so() -> None:
    packed = gzip.compress(b'{"chart": {}}')[:-12]
    with pytest.raises(PlatformError, match="cannot be read: it ends too soon"):
        read_record(revision(base64.b64encode(base64.b64encode(packed)).decode()))


# -- releases of others


async def test_a_release_that_is_not_the_deployments_is_neither_changed_nor_removed(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """The attack: a uid so chosen that the release's name is that of the control plane."""
    api = kubelet.api
    attack = altered(DESIRED, uid="inference", release="exo-inference")
    packed = record("exo-inference", {"replicas": 2})
    write_record(api, "exo-inference", packed, "deployed")
    api.kubectl("create", "service", "clusterip", "exo-inference", "--tcp=80:80")
    async with running(api, tmp_path) as process:
        observed = await process.until(attack, lambda seen: bool(seen.failure))
        assert "the Helm release exo-inference is not of" in observed.failure
        assert "'exo-inference'" in observed.failure
        found = await list_revisions(process.cluster.api, "exo-inference")
        assert [(entry.number, entry.packed) for entry in found] == [(1, packed)]
        await gone(process, "inference")
        assert len(await list_revisions(process.cluster.api, "exo-inference")) == 1
    assert names_of(api, "deployments,services").split() == ["service/exo-inference"]


@pytest.mark.parametrize("status", ["deployed", "pending-upgrade", "failed"])
async def test_a_control_plane_is_no_orphan_whatever_state_its_upgrade_is_in(
    kubelet: FakeKubelet, tmp_path: Path, status: str
) -> None:
    packed = record("exo-inference", {})
    write_record(kubelet.api, "exo-inference", packed, "deployed")
    write_record(kubelet.api, "exo-inference", packed, status, number=2)
    async with running(kubelet.api, tmp_path) as process:
        assert await process.platform.deployments() == set()
        assert await process.models.models() == set()
        for uid in ("inference", "exo-inference", ""):
            assert await process.platform.delete(uid)
            assert await process.models.delete_model(uid)
        found = await list_revisions(process.cluster.api, "exo-inference")
        assert [entry.status for entry in found] == ["deployed", status]


async def test_a_models_release_cannot_be_taken_over_by_a_deployment(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """The attack: a uid `model-<uid of the model>`, with what the version before made of both."""
    api = kubelet.api
    of_before = replace(MODEL, release=f"exo-model-{UID}")
    thief = altered(DESIRED, uid=f"model-{UID}", release=f"exo-model-{UID}")
    async with running(api, tmp_path) as process:
        await install_model(process, of_before)
        before = names_of(api, "jobs,persistentvolumeclaims")
        observed = await process.until(thief, lambda seen: bool(seen.failure))
        assert "'inference-model'" in observed.failure
        await gone(process, thief.uid)
        assert names_of(api, "jobs,persistentvolumeclaims") == before
        claims = json.loads(api.kubectl("get", "persistentvolumeclaims", "--output=json").stdout)
        assert all("deletionTimestamp" not in claim["metadata"] for claim in claims["items"])
        assert names_of(api, "deployments") == ""


async def test_a_chart_that_was_installed_by_hand_is_left_alone(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    """It says a uid among its values, and so on its objects; its release has another name."""
    api = kubelet.api
    async with running(api, tmp_path) as process:
        own = {"model": {"source": "org/m", "claimName": "c"}, "deployment": {"uid": OTHER}}
        await process.cluster.helm.upgrade("mine", "inference-deployment", own)
        before = names_of(api, "deployments,services")
        assert OTHER not in await process.platform.deployments()
        assert await process.platform.delete(OTHER)
        assert names_of(api, "deployments,services") == before


# -- orphans of our own


@pytest.mark.parametrize("status", ["uninstalling", "failed", "pending-install"])
async def test_a_release_without_its_object_is_found_and_removed(
    kubelet: FakeKubelet, tmp_path: Path, status: str
) -> None:
    """A Helm was killed: its record is all there is."""
    for release, chart, value, uid in (
        (release_name(OTHER), "inference-deployment", "deployment", OTHER),
        (f"exo-{UID}", "inference-deployment", "deployment", UID),
        (model_release_name(OTHER), "inference-model", "model", OTHER),
    ):
        packed = record(chart, {value: {"uid": uid}}, release, status)
        write_record(kubelet.api, release, packed, status)
    async with running(kubelet.api, tmp_path) as process:
        assert await process.platform.deployments() == {OTHER, UID}
        assert await process.models.models() == {OTHER}
        await gone(process, OTHER)
        await gone(process, UID)
        async with asyncio.timeout(60):
            while not await process.models.delete_model(OTHER):
                await asyncio.sleep(0.05)
        assert await process.platform.deployments() == set()
        assert await process.models.models() == set()
    assert names_of(kubelet.api, "secrets") == ""


async def test_parts_without_a_deployment_and_a_record_are_found_and_removed(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    api = kubelet.api
    async with running(api, tmp_path) as process:
        await process.applied(DESIRED, kubelet)
        api.kubectl("delete", "secret", "--selector=owner=helm")
        api.kubectl("delete", "deployment", release_name(UID))
        async with asyncio.timeout(30):
            while process.cluster.workloads.find(UID) is not None:
                await asyncio.sleep(0.05)
        assert await process.platform.deployments() == {UID}
        await gone(process, UID)
        assert await process.platform.deployments() == set()
    assert names_of(api, "services,networkpolicies,poddisruptionbudgets") == ""


# -- releases of the version before


@contextmanager
def version_before() -> Iterator[None]:
    """Name releases as the version before did."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values_module, "release_name", lambda uid: f"exo-{uid}")
        patch.setattr(platform_module, "release_names", lambda uid: (f"exo-{uid}",) * 2)
        yield


async def test_what_the_version_before_installed_keeps_its_name_and_its_pods(
    kubelet: FakeKubelet, tmp_path: Path
) -> None:
    api = kubelet.api
    with version_before():
        async with running(api, tmp_path) as process:
            await process.platform.apply(DESIRED)
            await process.cluster.jobs.wait(OF_BEFORE)
    path = f"/apis/apps/v1/namespaces/{api.namespace}/deployments/{OF_BEFORE}"
    before = api.request("GET", path)
    async with running(api, tmp_path) as process:
        observed = await process.platform.apply(DESIRED)
        assert (observed.release, process.cluster.jobs.running(OF_BEFORE)) == (OF_BEFORE, "")
        assert await process.platform.deployments() == {UID}
        more = altered(DESIRED, replicas=3, release=observed.release)
        await process.platform.apply(more)
        await process.cluster.jobs.wait(OF_BEFORE)
        after = api.request("GET", path)
        assert after["spec"]["replicas"] == 3
        assert after["spec"]["template"] == before["spec"]["template"]
        api.kubectl("delete", "deployment", OF_BEFORE)  # by hand: it comes again under its name
        async with asyncio.timeout(60):
            while process.cluster.workloads.find(UID) is not None:
                await asyncio.sleep(0.05)
        await process.platform.apply(more)
        await process.cluster.jobs.wait(OF_BEFORE)
        assert names_of(api, "deployments").split() == [f"deployment.apps/{OF_BEFORE}"]
        await gone(process, UID)
    assert names_of(api, "deployments,services,secrets") == ""
