"""An installation of an earlier commit, with its images, upgraded to this tree's chart and images under requests.

Run by `make test-upgrade`, which builds the images of the earlier commit.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.kubernetes.control import FORMER_VARIABLE
from tests.kubernetes.real_plane import (
    CHART,
    EXAMPLES,
    VALUES,
    Plane,
    chat,
    installed,
    leader_of,
    pod_of,
    wait_for,
)
from tests.kubernetes_api import KubernetesCluster

pytestmark = [
    pytest.mark.upgrade,
    pytest.mark.timeout(600),
]

SETTLED_SECONDS = 10.0
"""How long nothing may change before the upgrade counts as over."""


@pytest.fixture
def former() -> Path:
    """The files of the earlier commit."""
    found = os.environ.get(FORMER_VARIABLE)
    assert found, "there are no images of an earlier commit. Run `make test-upgrade`."
    return Path(found)


@pytest.fixture
def plane(kubernetes_cluster: KubernetesCluster, tmp_path: Path, former: Path) -> Iterator[Plane]:
    """The control plane of the earlier commit; its engine is pinned, as the how-to page says."""
    plane = Plane(kubernetes_cluster, tmp_path)
    pinned = {"engine": {"image": {"registry": "localhost", "tag": former.name}}}
    values = {**VALUES, "platform": {**VALUES["platform"]}}
    values["platform"]["deploymentValues"] = {**VALUES["platform"]["deploymentValues"], **pinned}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    files = [former / "examples" / "values" / "kind.yaml", tmp_path / "values.yaml"]
    with installed(plane, former / "charts" / "exo-inference", files, *_images(former.name)):
        yield plane


def _images(tag: str) -> list[str]:
    where = ("image.tag", "platform.modelValues.download.image.tag")
    return [f"--set={each}={tag}" for each in where]


def _replicas(plane: Plane) -> dict[str, tuple[str, int]]:
    """Return the uid and the number of restarts of each engine's pod."""
    found = plane.get("pods", "app.kubernetes.io/component=engine")
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            sum(each["restartCount"] for each in pod["status"]["containerStatuses"]),
        )
        for pod in found
    }


def _releases(plane: Plane) -> dict[str, list[tuple[int, str]]]:
    """Return the revisions of every release but the control plane's own, with what they say."""
    found: dict[str, list[tuple[int, str]]] = {}
    for secret in plane.get("secrets", "owner=helm"):
        labels = secret["metadata"]["labels"]
        if labels["name"] != "exo":
            found.setdefault(labels["name"], []).append((int(labels["version"]), labels["status"]))
    return {name: sorted(revisions) for name, revisions in found.items()}


def _wait_settled(plane: Plane) -> None:
    """Wait until releases and the objects' statuses have stayed as they are for a while."""
    seen: list[Any] = [None]
    since = time.monotonic()

    def is_settled() -> bool:
        nonlocal since
        now = [_releases(plane), [item["status"] for item in plane.get("inferencedeployments")]]
        if now != seen:
            seen[:] = now
            since = time.monotonic()
        return time.monotonic() - since > SETTLED_SECONDS

    wait_for(is_settled, pause=1)


def test_an_upgrade_restarts_no_engine_and_fails_no_request(plane: Plane, former: Path) -> None:
    plane.cluster.kubectl("apply", "-f", str(former / "examples" / "manifests"))
    wait_for(lambda: plane.ready("engine") == 2, 180)
    assert chat(plane.openai()).strip()
    shown, replicas, releases = plane.show(), _replicas(plane), _releases(plane)
    key = plane.exo("deployment", "reveal-api-key", "chat", "-O", "text").stdout
    files = [EXAMPLES / "values" / "kind.yaml", plane.directory / "values.yaml"]
    began = time.monotonic()
    with plane.streaming() as stream, plane.counting() as counts:
        words = [f"--values={file}" for file in files]
        url = f"--set=gateway.publicUrl={plane.address('exo-gateway')}"
        plane.helm("upgrade", "exo", str(CHART), *words, url)
        for component in ("controller", "gateway"):
            rollout = ("rollout", "status", f"deployment/exo-{component}", "--timeout=180s")
            plane.cluster.kubectl(*rollout, timeout=190)
        wait_for(lambda: pod_of(leader_of(plane)) in plane.pods("controller"))
        took = time.monotonic() - began
        _wait_settled(plane)
        after = _replicas(plane), plane.show(), _releases(plane)
        plane.exo("deployment", "scale", "chat", "3", "--wait")
    print(
        f"\nfrom {former.name}: {took:.0f} s, {stream.outcomes['answered']} requests answered, "
        f"{len(stream.failures)} failed, at least {min(counts)} of 2 replicas ready; releases "
        f"{json.dumps(releases)} -> {json.dumps(after[2])}"
    )
    assert stream.failures == []
    assert stream.outcomes["answered"] > 20
    assert min(counts) == 2
    assert after[0] == replicas
    for name in ("id", "deployment_url", "state", "replicas"):
        assert after[1][name] == shown[name]
    assert plane.exo("deployment", "reveal-api-key", "chat", "-O", "text").stdout == key
    assert after[2].keys() == releases.keys()
    assert all(revisions[-1][1] == "deployed" for revisions in after[2].values())
    # What was made before is changed, and goes, as what is made now.
    with plane.streaming() as stream:
        update = ["deployment", "update", "chat", "--wait"]
        plane.exo(*update, "--inference-engine-params=--max-model-len=512")
    assert stream.failures == []
    plane.exo("deployment", "delete", "chat", "--force", "--wait")
    wait_for(lambda: not plane.pods("engine"))
    plane.exo("model", "delete", "exo/tiny-chat", "--force", "--wait")
    wait_for(lambda: not _releases(plane))
