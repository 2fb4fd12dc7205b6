"""What holds for every object of every scenario in `charts/*/ci`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.charts.rendering import (
    CHARTS,
    MINORS,
    NAMES,
    SCENARIOS,
    Object,
    helm,
    pod_templates,
    problems,
    render_scenario,
    scenario_path,
)

LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
SECRET_NAME = re.compile(r"TOKEN|PASSWORD|SECRET|CREDENTIAL|API_?KEY", re.IGNORECASE)
IMAGE = re.compile(r"[^@\s]+(:(?!latest$)[\w][\w.-]{0,127}|@sha256:[0-9a-f]{64})")

every_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


def test_every_chart_has_scenarios() -> None:
    assert {scenario.partition("/")[0] for scenario in SCENARIOS} == set(NAMES)


@every_scenario
def test_chart_lints(scenario: str) -> None:
    chart, _, _ = scenario.partition("/")
    helm("lint", "--strict", str(CHARTS / chart), "--values", str(scenario_path(scenario)))


@pytest.mark.parametrize("minor", MINORS)
@every_scenario
def test_objects_fit_the_schemas_of_kubernetes(scenario: str, minor: str) -> None:
    found = {name(item): problems(item, minor) for item in render_scenario(scenario)}
    assert {key: value for key, value in found.items() if value} == {}


@every_scenario
def test_pods_pass_the_restricted_standard(scenario: str) -> None:
    for item in render_scenario(scenario):
        for pod in pod_templates(item):
            assert restrictions_broken(pod["spec"]) == [], name(item)


@every_scenario
def test_pods_hold_no_token_they_do_not_need_and_write_nowhere_else(scenario: str) -> None:
    for item in render_scenario(scenario):
        for pod in pod_templates(item):
            for container in containers(pod["spec"]):
                assert container["securityContext"]["readOnlyRootFilesystem"] is True
                assert container["resources"]["limits"]["memory"], name(item)
            needs_api = item["metadata"]["labels"]["app.kubernetes.io/component"] in (
                "controller",
                "gateway",
            )
            assert pod["spec"]["automountServiceAccountToken"] is needs_api


@every_scenario
def test_images_have_a_version_or_a_digest_and_never_latest(scenario: str) -> None:
    for item in render_scenario(scenario):
        for pod in pod_templates(item):
            images = [container["image"] for container in containers(pod["spec"])]
            images += [v["image"]["reference"] for v in pod["spec"]["volumes"] if "image" in v]
            assert [image for image in images if not IMAGE.fullmatch(image)] == []


@every_scenario
def test_no_secret_is_rendered(scenario: str) -> None:
    """Secrets are named, never written: not as an object, an argument or a variable's value."""
    for item in render_scenario(scenario):
        assert item["kind"] != "Secret"
        for pod in pod_templates(item):
            for container in containers(pod["spec"]):
                literal = [e["name"] for e in container.get("env", ()) if "value" in e]
                secret = [n for n in literal if SECRET_NAME.search(n) and not is_reference(n)]
                assert secret == [], name(item)
                given = [*container.get("command", ()), *container.get("args", ())]
                assert [a for a in given if re.match(r"--\S*(token|key|secret)=", a)] == []


@every_scenario
def test_names_and_labels_are_legal_and_recommended_ones_present(scenario: str) -> None:
    for item in render_scenario(scenario):
        metadata = item["metadata"]
        assert len(metadata["name"]) <= 63 or item["kind"] == "CustomResourceDefinition"
        labels = metadata["labels"]
        for prefix in ("name", "instance", "managed-by", "part-of"):
            assert labels[f"app.kubernetes.io/{prefix}"], name(item)
        for labelled in (metadata, *(pod["metadata"] for pod in pod_templates(item))):
            values = labelled.get("labels", {}).values()
            assert [value for value in values if not LABEL.fullmatch(value)] == [], name(item)


def name(item: Object) -> str:
    return f"{item['kind']}/{item['metadata']['name']}"


def is_reference(variable: str) -> bool:
    """Whether a variable's value is the name or the path of a secret, as its own name says."""
    return variable.endswith(("_SECRET", "_SECRET_NAME", "_PATH", "_FILE"))


def containers(spec: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from spec.get("initContainers", ())
    yield from spec["containers"]


def restrictions_broken(spec: dict[str, Any]) -> list[str]:
    """Check a pod against the Pod Security Standard `restricted`.

    https://kubernetes.io/docs/concepts/security/pod-security-standards/
    """
    broken = [key for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    allowed = {
        "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image",
        "persistentVolumeClaim", "projected", "secret",
    }  # fmt: skip
    for volume in spec.get("volumes", ()):
        broken += [f"volume {volume['name']}: {k}" for k in volume.keys() - allowed - {"name"}]
    pod = spec.get("securityContext", {})
    for container in containers(spec):
        context = {**pod, **container.get("securityContext", {})}
        wanted = {
            "allowPrivilegeEscalation": context.get("allowPrivilegeEscalation") is False,
            "capabilities": context.get("capabilities") == {"drop": ["ALL"]},
            "privileged": not context.get("privileged"),
            "runAsNonRoot": context.get("runAsNonRoot") is True,
            "runAsUser": context.get("runAsUser", 1) != 0,
            "seccompProfile": context.get("seccompProfile") == {"type": "RuntimeDefault"},
            "hostPort": not any("hostPort" in port for port in container.get("ports", ())),
        }
        broken += [f"{container['name']}: {key}" for key, holds in wanted.items() if not holds]
    return broken
