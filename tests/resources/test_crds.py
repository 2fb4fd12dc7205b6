"""The definitions that the chart installs: complete, structural, and as the models say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scripts.generate_crds import custom_resource_definitions

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = custom_resource_definitions()


def version_of(plural: str) -> dict[str, Any]:
    version: dict[str, Any] = DEFINITIONS[f"{plural}.inference.exo.dev"]["spec"]["versions"][0]
    return version


def spec_of(plural: str) -> dict[str, Any]:
    found: dict[str, Any] = version_of(plural)["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for part in schema.get("properties", {}).values():
        yield from parts(part)
    if items := schema.get("items"):
        yield from parts(items)


def test_the_files_of_the_chart_are_up_to_date():
    command = [sys.executable, "scripts/generate_crds.py", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", DEFINITIONS)
def test_every_part_of_a_schema_has_a_type_and_nothing_that_a_crd_may_not_have(name: str):
    (version,) = DEFINITIONS[name]["spec"]["versions"]
    forbidden = {"$ref", "$defs", "anyOf", "allOf", "title", "const"}
    for part in parts(version["schema"]["openAPIV3Schema"]):
        assert "type" in part
        assert not forbidden & part.keys()


@pytest.mark.parametrize("plural", ["inferencemodels", "inferencedeployments"])
def test_kubectl_get_shows_why_an_object_is_not_ready(plural: str):
    columns = {
        column["name"]: column["jsonPath"]
        for column in version_of(plural)["additionalPrinterColumns"]
    }
    assert columns["Message"] == '.status.conditions[?(@.type=="Ready")].message'
    if plural == "inferencedeployments":  # whose `Available` says nothing of an update rolled back
        assert columns["Status"] == '.status.conditions[?(@.type=="Ready")].reason'


@pytest.mark.parametrize("name", DEFINITIONS)
def test_kinds_have_a_status_of_their_own_and_short_names(name: str):
    spec = DEFINITIONS[name]["spec"]
    assert spec["versions"][0]["subresources"]["status"] == {}
    assert spec["names"]["shortNames"]
    in_category = spec["names"]["kind"] != "InferenceOperation"
    assert spec["names"]["categories"] == (["exo"] if in_category else [])


def test_bounds_and_defaults_come_from_the_model():
    properties = spec_of("inferencedeployments")["properties"]
    replicas = properties["replicas"]
    assert (replicas["minimum"], replicas["maximum"], replicas["default"]) == (0, 100, 1)
    assert properties["engineParameters"]["maxItems"] == 200
    assert spec_of("inferencedeployments")["required"] == ["model", "gpuType"]


def test_deployments_can_be_scaled_by_an_autoscaler():
    version = version_of("inferencedeployments")
    scale = version["subresources"]["scale"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]
    for path in (scale["statusReplicasPath"], scale["labelSelectorPath"]):
        assert path.removeprefix(".status.") in status


def test_optional_text_may_be_null_as_in_yaml():
    revision = spec_of("inferencemodels")["properties"]["revision"]
    assert (revision["type"], revision["nullable"]) == ("string", True)


@pytest.mark.parametrize("plural", ["inferencedeployments", "inferencemodels"])
def test_an_object_that_nobody_has_looked_at_is_not_taken_for_settled(plural: str):
    """Flux compares `status.observedGeneration` with the generation, where there is one."""
    status = version_of(plural)["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert status["default"] == {}
    assert status["properties"]["observedGeneration"]["default"] == 0
