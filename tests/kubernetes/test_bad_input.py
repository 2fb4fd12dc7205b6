"""What is wrong is refused, or said on the object, at every door: `exo`, `kubectl`, the cluster itself.

A controller process runs on a real API server; the whole module shares it. What charts refuse is in
tests/charts, what a hand does to a release in tests/platforms/kubernetes/test_changed_by_hand.py.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.generate_crds import custom_resource_definitions
from scripts.kubernetes import binaries
from scripts.kubernetes.api_server import ApiServer
from scripts.kubernetes.client import ApiClient, ApiError
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.control_plane_processes import CREDENTIALS, GROUP, ControlPlane, wait_for
from tests.controller.stores.conftest import CRDS, install_crds
from tests.kubernetes_api import KubernetesApi

MERGE = "application/merge-patch+json"
CHAT: dict[str, Any] = {
    "apiVersion": GROUP,
    "kind": "InferenceDeployment",
    "metadata": {"name": "chat"},
    "spec": {"model": "exo/tiny-chat", "gpuType": "cpu", "replicas": 1},
}


@pytest.fixture(scope="module")
def plane(
    kubernetes_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A namespace with one controller and a model that is ready."""
    namespace = f"test-{uuid.uuid4().hex[:10]}"
    kubernetes_server.client().create_namespace(namespace)
    kubeconfig = kubernetes_server.kubeconfig("admin", namespace)
    install_crds(kubernetes_server)
    api = KubernetesApi(namespace, kubeconfig, kubernetes_server)
    plane = ControlPlane(api, tmp_path_factory.mktemp("plane"))
    plane.make_node()
    process = plane.start("controller-1")
    plane.start("controller-2")
    wait_for(lambda: all(p.probe("/readyz")[0] == 200 for p in plane.processes), seconds=40)
    wait_for(lambda: any(p.is_leading for p in plane.processes))
    plane.create_ready_model()
    assert process.popen.poll() is None
    yield plane
    for process in plane.processes:
        process.popen.kill()
        process.popen.wait(10)


@pytest.fixture
def alone(kubernetes_api: KubernetesApi, tmp_path: Path) -> Iterator[ControlPlane]:
    """A control plane of which nothing is started."""
    plane = ControlPlane(kubernetes_api, tmp_path)
    yield plane
    for process in plane.processes:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait(10)


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test of the shared plane finds a node and leaves no deployment behind."""
    shared = request.getfixturevalue("plane") if "plane" in request.fixturenames else None
    if shared is not None:
        with contextlib.suppress(ApiError):  # it goes with a test that has a namespace of its own
            shared.make_node()
    yield
    if shared is not None:
        shared.api.kubectl("delete", "idep", "--all", "--timeout=60s", timeout=70)


def exo(plane: ControlPlane, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as its user does."""
    secret = plane.secret(CREDENTIALS)
    environment = {
        **os.environ,
        "EXOSCALE_API_ENDPOINT": f"http://127.0.0.1:{plane.processes[0].port}/v2",
        "EXOSCALE_API_KEY": secret["api-key"],
        "EXOSCALE_API_SECRET": secret["api-secret"],
        "HOME": str(plane.directory),
    }
    command = [str(Path(sys.executable).parent / "exo"), "dedicated-inference", *words]
    return subprocess.run(
        [*command, "-z", "at-vie-2"], env=environment, capture_output=True, text=True, timeout=60
    )


def changed(**spec: Any) -> str:
    return yaml.safe_dump({**CHAT, "spec": {**CHAT["spec"], **spec}})


def named(name: str) -> str:
    return yaml.safe_dump({**CHAT, "metadata": {"name": name}})


@pytest.mark.parametrize(
    ("text", "by_exo", "by_kubectl"),
    [
        pytest.param("a: [", "expected the node content", "error converting YAML", id="no YAML"),
        pytest.param("- 1\n", "must be a mapping", "invalid object to validate", id="no object"),
        pytest.param(changed(gpuTyp="cpu"), "gpuTyp", 'unknown field "spec.gpuTyp"', id="unknown field"),
        pytest.param(changed(replicas="2"), "replicas", "must be of type integer", id="a number as text"),
        pytest.param(changed(replicas=-1), "replicas", "greater than or equal to 0", id="negative"),
        pytest.param(changed(engineParameters="--a=1"), "engineParameters", "must be of type array", id="flags as text"),
        pytest.param(named("Chat_1"), "Chat_1", "RFC 1123", id="no DNS name"),
        pytest.param(named("a.b"), "a.b", "metadata.name must be 1 to 63", id="no DNS label"),
        pytest.param(named("a" * 64), "63", "metadata.name must be 1 to 63", id="too long"),
        pytest.param(yaml.safe_dump(CHAT).replace("v1alpha1", "v9"), "inference.exo.dev/v9", 'no matches for kind "InferenceDeployment" in version "inference.exo.dev/v9"', id="newer version"),
        pytest.param(yaml.safe_dump({**CHAT, "kind": "InferenceDeploymen"}), "InferenceDeploymen", 'no matches for kind "InferenceDeploymen"', id="unknown kind"),
    ],
)  # fmt: skip
def test_a_bad_manifest_is_refused_by_exo_and_by_kubectl(
    plane: ControlPlane, tmp_path: Path, text: str, by_exo: str, by_kubectl: str
) -> None:
    (tmp_path / "chat.yaml").write_text(text)
    applied = exo(plane, "apply", "-f", str(tmp_path / "chat.yaml"))
    assert applied.returncode not in (0, None)
    assert by_exo in applied.stderr
    assert "Traceback" not in applied.stderr
    by_hand = plane.api.kubectl("apply", "-f", "-", stdin=text, check=False)
    assert by_hand.returncode != 0
    assert by_kubectl in by_hand.stderr
    assert plane.api.kubectl("get", "idep", "--output=name").stdout == ""


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param({"gpuType": "gpuh1000"}, "gpuh1000", id="unknown GPU type"),
        pytest.param({"gpuCount": 64}, "64", id="too many GPUs"),
        pytest.param({"model": "exo/no-such"}, "exo/no-such", id="unknown model"),
        pytest.param({"engine": {"name": "no-such"}}, "no-such", id="unknown engine"),
        pytest.param({"engineParameters": ["--max-model-lenn=1"]}, "--max-model-len", id="unknown flag"),
        pytest.param({"engineParameters": ["--max-model-len=many"]}, "--max-model-len", id="bad value"),
    ],
)  # fmt: skip
def test_a_bad_value_is_refused_by_exo_and_said_on_what_kubectl_applied(
    plane: ControlPlane, tmp_path: Path, spec: dict[str, Any], message: str
) -> None:
    (tmp_path / "chat.yaml").write_text(changed(**spec))
    applied = exo(plane, "apply", "-f", str(tmp_path / "chat.yaml"))
    assert applied.returncode != 0
    assert message in applied.stderr
    assert plane.api.kubectl("get", "idep", "--output=name").stdout == ""
    by_hand = plane.api.kubectl("apply", "-f", "-", stdin=changed(**spec), check=False)
    if by_hand.returncode != 0:  # the schema knows it
        assert message in by_hand.stderr
        return
    ready = wait_for(lambda: plane.conditions("chat").get("Ready"))
    assert ready["status"] == "False"
    assert message in ready["message"]
    assert plane.deployments() == []


# -- objects that this version cannot read


@pytest.fixture
def newer_crds(kubernetes_server: ApiServer) -> Iterator[None]:
    """CRDs of a newer version, which take any field in a specification and in a status."""
    admin, originals = kubernetes_server.client(), custom_resource_definitions()
    for name, body in originals.items():
        newer = copy.deepcopy(body)
        for part in ("spec", "status"):
            schema = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][part]
            schema["x-kubernetes-preserve-unknown-fields"] = True
        admin.request("PATCH", f"{CRDS}/{name}", {"spec": newer["spec"]}, MERGE)
    yield
    for name, body in originals.items():
        found = admin.request("GET", f"{CRDS}/{name}")
        admin.request("PUT", f"{CRDS}/{name}", {**found, "spec": body["spec"]})


def test_an_object_of_a_newer_version_is_left_alone_and_says_so(
    alone: ControlPlane, newer_crds: None
) -> None:
    newer = changed(fieldOfTheFuture=True)
    wait_for(
        lambda: alone.api.kubectl("apply", "-f", "-", stdin=newer, check=False).returncode == 0
    )
    alone.start("controller-1")
    ready = wait_for(lambda: alone.conditions("chat").get("Ready"), seconds=40)
    assert (ready["status"], ready["reason"]) == ("False", "Unreadable")
    assert "spec.fieldOfTheFuture" in ready["message"]
    assert "run that one, or mend the object" in ready["message"]
    path = alone.path("inferencedeployments", "chat")
    found = alone.api.request("GET", path)
    assert found["spec"]["fieldOfTheFuture"] is True
    assert "finalizers" not in found["metadata"]
    mended = {"spec": {"fieldOfTheFuture": None}}
    alone.api.client.request("PATCH", path, mended, MERGE)
    wait_for(lambda: alone.conditions("chat")["Ready"]["reason"] == "ModelMissing")


def test_a_status_that_cannot_be_read_is_observed_again(
    plane: ControlPlane, newer_crds: None
) -> None:
    plane.api.kubectl("apply", "-f", "-", stdin=changed())
    wait_for(plane.deployments, seconds=60)
    path = plane.path("inferencedeployments", "chat")
    strange = {"status": {"replicasOfTheFuture": {"ready": 1}}}

    def is_taken() -> bool:  # the server takes a changed schema after a moment
        found = plane.api.client.request("PATCH", f"{path}/status", strange, MERGE)
        return "replicasOfTheFuture" in found["status"]

    wait_for(is_taken)
    plane.apply("chat", replicas=2)
    wait_for(lambda: plane.deployments()[0]["spec"]["replicas"] == 2, seconds=60)
    generation = plane.api.request("GET", path)["metadata"]["generation"]
    wait_for(
        lambda: plane.conditions("chat").get("Admitted", {}).get("observedGeneration") == generation
    )


def test_a_field_that_the_crd_does_not_know_is_refused_or_left_out(plane: ControlPlane) -> None:
    newer = changed(fieldOfTheFuture=True)
    refused = plane.api.kubectl("apply", "-f", "-", stdin=newer, check=False)
    assert 'unknown field "spec.fieldOfTheFuture"' in refused.stderr
    plane.api.kubectl("apply", "--validate=false", "-f", "-", stdin=newer)
    found = plane.api.request("GET", plane.path("inferencedeployments", "chat"))
    assert "fieldOfTheFuture" not in found["spec"]
    wait_for(plane.deployments, seconds=60)


# -- the namespace's quota


def quota(plane: ControlPlane, what: str) -> str:
    """Make a quota that is used up, as the cluster's controller would count it."""
    path, name = (
        plane.path("resourcequotas", group=""),
        f"no-more-{what.partition('.')[0].replace('/', '-')}",
    )
    plane.api.request("POST", path, {"metadata": {"name": name}, "spec": {"hard": {what: "0"}}})
    status = {"status": {"hard": {what: "0"}, "used": {what: "0"}}}
    plane.api.client.request("PATCH", f"{path}/{name}/status", status, MERGE)
    return f"{path}/{name}"


def test_a_quota_of_the_namespace_is_said_where_the_deployment_is_shown(
    plane: ControlPlane,
) -> None:
    path = quota(plane, "count/services")
    try:
        plane.apply("chat")
        ready = wait_for(
            lambda: (
                (found := plane.conditions("chat").get("Ready", {}))
                and "quota" in found.get("message", "")
                and found
            ),
            seconds=60,
        )
        assert "the namespace's quota no-more-count-services has no room" in ready["message"]
    finally:
        plane.api.request("DELETE", path)


def test_a_quota_of_our_own_kinds_is_said_to_who_creates(plane: ControlPlane) -> None:
    path = quota(plane, "count/inferencedeployments.inference.exo.dev")
    words = ("deployment", "create", "chat", "--model-name", "exo/tiny-chat", "--gpu-type", "cpu")
    try:
        refused = exo(plane, *words, "--gpu-count", "1")
        assert refused.returncode != 0
        assert "exceeded quota: no-more-count-inferencedeployments" in refused.stderr
    finally:
        plane.api.request("DELETE", path)


# -- what the cluster lacks


@pytest.mark.parametrize(
    ("resource", "verb"),
    [("inferenceapikeys", "list"), ("pods", "list"), ("secrets", "create")],
)
def test_a_controller_that_lacks_a_right_ends_and_names_it(
    alone: ControlPlane, kubernetes_server: ApiServer, resource: str, verb: str
) -> None:
    install_crds(kubernetes_server)
    take_away(alone.api, resource, verb)
    process = alone.start("controller-1")
    assert process.popen.wait(40) == 1
    said = process.log.read_text().splitlines()[-1]
    assert said.startswith("controller: error: ")
    assert f'cannot {verb} resource "{resource}"' in said
    assert "Upgrade the chart exo-inference" in said


def test_a_controller_that_may_not_take_the_lease_warns_of_it(
    alone: ControlPlane, kubernetes_server: ApiServer
) -> None:
    install_crds(kubernetes_server)
    take_away(alone.api, "leases", "create")
    process = alone.start("controller-1")
    text = wait_for(
        lambda: [line for line in process.log.read_text().splitlines() if "leases" in line],
        seconds=40,
    )[0]
    said = json.loads(text)
    assert said["level"] == "warning"
    assert 'cannot create resource "leases"' in said["message"]
    assert "Upgrade the chart exo-inference" in said["message"]


def take_away(api: KubernetesApi, resource: str, verb: str) -> None:
    """Take one right from the controller's role and wait until that holds."""
    kubeconfig = kubeconfig_of("controller", api)
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{api.namespace}/roles/exo-controller"
    role = api.request("GET", path)
    for rule in role["rules"]:
        if resource in rule["resources"] and verb in rule["verbs"]:
            rule["verbs"].remove(verb)
    left = [rule for rule in role["rules"] if rule["verbs"]]
    api.request("PUT", path, {**role, "rules": left})
    review = {
        "spec": {
            "resourceAttributes": {
                "namespace": api.namespace,
                "verb": verb,
                "resource": resource,
                "group": group_of(role, resource),
            }
        }
    }
    account = ApiClient.from_kubeconfig(kubeconfig)
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    wait_for(lambda: not account.request("POST", reviews, review)["status"]["allowed"])


def group_of(role: dict[str, Any], resource: str) -> str:
    return next(
        str(rule["apiGroups"][0]) for rule in role["rules"] if resource in rule["resources"]
    )


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """An API server that has none of our kinds."""
    programs = binaries.require(binaries.API_SERVER)
    with (
        tempfile.TemporaryDirectory(prefix="exo-api-") as directory,
        ApiServer(Path(directory), programs) as server,
    ):
        yield server


def test_without_crds_or_with_older_ones_a_controller_ends_and_says_so(
    kubernetes_server: ApiServer, other_server: ApiServer, tmp_path: Path
) -> None:
    api = KubernetesApi("default", other_server.kubeconfig("admin", "default"), other_server)
    plane = ControlPlane(api, tmp_path)
    process = plane.start("controller-1")
    assert process.popen.wait(40) == os.EX_CONFIG
    said = process.log.read_text().splitlines()[-1]
    assert f"the cluster has no {GROUP}" in said
    assert "Install the chart exo-inference" in said
    older = copy.deepcopy(custom_resource_definitions())
    schema = older["inferencedeployments.inference.exo.dev"]["spec"]["versions"][0]["schema"]
    del schema["openAPIV3Schema"]["properties"]["spec"]["properties"]["engineParameters"]
    for body in older.values():
        other_server.client().request("POST", CRDS, body)
    install_crds(other_server)
    process = plane.start("controller-2")
    assert process.popen.wait(40) == os.EX_CONFIG
    said = process.log.read_text().splitlines()[-1]
    assert "older than this program" in said
    assert "InferenceDeployment.spec.engineParameters" in said
    assert "Upgrade the chart exo-inference" in said
