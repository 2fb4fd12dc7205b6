"""The examples fit the kinds of Argo CD, Flux and the charts, and name what is there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from exo_inference.platforms.base import DesiredDeployment
from exo_inference.platforms.kubernetes.release_values import build_release, merged
from exo_inference.platforms.kubernetes.settings import PlatformValues
from exo_inference.resources.yaml import parse_manifests
from tests.charts.rendering import MINORS, helm, problems
from tests.charts.rendering import only as one
from tests.desired_deployments import desired_deployment
from tests.examples.files import EXAMPLES, REPOSITORY, ROOT, load, only

CHARTS = ROOT / "charts"
TOOLS = sorted(
    str(path.relative_to(EXAMPLES))
    for folder in ("argocd", "flux")
    for path in (EXAMPLES / folder).rglob("*.yaml")
)
APPLICATION = only("argocd/control-plane.yaml", "Application", "exo-inference")
RELEASE = only("flux/control-plane/release.yaml", "HelmRelease", "exo-inference")


VALUES_OF: dict[str, dict[str, Any]] = {
    "argocd": APPLICATION["spec"]["source"]["helm"]["valuesObject"],
    "flux": RELEASE["spec"]["values"],
    **{
        path.stem: load(f"values/{path.name}")[0]
        for path in sorted((EXAMPLES / "values").iterdir())
    },
}
"""By file, or by the tool whose object carries them."""


@pytest.mark.parametrize("path", TOOLS)
def test_objects_fit_the_schemas_of_their_kinds(path: str) -> None:
    for item in load(path):
        if item["kind"] != "Namespace":
            assert problems(item, MINORS[0]) == []


@pytest.mark.parametrize(
    "path", sorted((EXAMPLES / "manifests").glob("*.yaml")), ids=lambda p: p.name
)
def test_manifests_are_what_exo_apply_takes(path: Path) -> None:
    found, wrong = parse_manifests(path.read_text("utf-8"), path.name)
    assert found
    assert wrong == []


def test_argo_cd_and_flux_read_folders_and_charts_that_are_there() -> None:
    inference = only("argocd/inference.yaml", "Application", "inference")
    for application in (APPLICATION, inference):
        source = application["spec"]["source"]
        assert source["repoURL"] == REPOSITORY
        assert (ROOT / source["path"]).is_dir()
    sync = load("flux/sync.yaml")
    names = {(item["kind"], item["metadata"]["name"]) for item in sync}
    for item in sync:
        if item["kind"] == "GitRepository":
            assert item["spec"]["url"] == REPOSITORY
            continue
        spec = item["spec"]
        assert list((ROOT / spec["path"]).glob("*.yaml"))
        assert (spec["sourceRef"]["kind"], spec["sourceRef"]["name"]) in names
        for other in spec.get("dependsOn", ()):
            assert ("Kustomization", other["name"]) in names
    chart = RELEASE["spec"]["chart"]["spec"]
    assert (ROOT / chart["chart"] / "Chart.yaml").is_file()
    assert ("GitRepository", chart["sourceRef"]["name"]) in names


def test_argo_cd_and_flux_install_the_same() -> None:
    assert VALUES_OF["argocd"] == VALUES_OF["flux"]
    argocd = APPLICATION["spec"]
    assert argocd["destination"]["namespace"] == RELEASE["spec"]["targetNamespace"]
    assert argocd["source"]["helm"]["releaseName"] == RELEASE["spec"]["releaseName"]
    labels = argocd["syncPolicy"]["managedNamespaceMetadata"]["labels"]
    assert load("flux/control-plane/namespace.yaml")[0]["metadata"]["labels"] == labels


@pytest.mark.parametrize("name", VALUES_OF)
def test_values_make_a_control_plane(name: str, tmp_path: Path) -> None:
    objects = _render("exo-inference", VALUES_OF[name], tmp_path)
    assert {item["kind"] for item in objects} >= {"Deployment", "Service", "Role"}
    assert [
        problems(item, minor) for item in objects for minor in MINORS if problems(item, minor)
    ] == []


@pytest.mark.parametrize("name", VALUES_OF)
def test_the_platforms_values_make_models_and_deployments(name: str, tmp_path: Path) -> None:
    """`platform` is open in the schema of exo-inference: its charts refuse what they do not know."""
    platform = VALUES_OF[name]["platform"]
    model = merged(
        {"model": {"source": "org/m", "sizeBytes": 10**9}}, platform.get("modelValues", {})
    )
    assert one(tuple(_render("inference-model", model, tmp_path)), "Job")
    given = PlatformValues(
        deployment=platform.get("deploymentValues", {}),
        engines=platform.get("engineValues", {}),
        gpus=platform.get("gpuValues", {}),
    )
    for family in {"cpu", *platform.get("gpuValues", {})}:
        for engine in ("exo", "vllm"):
            release = build_release(_desired(family, engine), given)
            objects = _render("inference-deployment", release.values, tmp_path)
            image = one(tuple(objects), "Deployment")["spec"]["template"]["spec"]["containers"][0][
                "image"
            ]
            assert (
                image.startswith(("registry.example.com/exo/", "localhost/"))
                or name == "autoscaling"
            )


def _desired(family: str, engine: str) -> DesiredDeployment:
    return desired_deployment(
        uid="0b6e3f6e-0000-4000-8000-000000000001",
        name="chat",
        model="org/m",
        model_path="pvc:models",
        model_size_bytes=10**9,
        gpu_type=family,
        gpu_count=1,
        replicas=1,
        engine=engine,
        engine_version=None,
        engine_parameters=(),
        unrouted=frozenset(),
    )


def _render(chart: str, values: Mapping[str, Any], tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(dict(values)), "utf-8")
    text = helm("template", "exo", str(CHARTS / chart), "--values", str(path))
    return list(_objects(text))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    for item in yaml.load_all(text, yaml.CSafeLoader):
        if item:
            yield item
