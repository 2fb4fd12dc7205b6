"""What a tenant can do who may create our objects in the namespace, and nothing else: nothing to what is not his.

Two controllers run on a real API server, with real Helm and no nodes. What a uid can be made to mean is tried in
tests/controller/test_chosen_uids.py.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scripts.kubernetes.api_server import ApiServer
from scripts.kubernetes.client import ApiError
from tests.controller.control_plane_processes import GROUP, MERGE, ControlPlane, wait_for
from tests.controller.stores.conftest import install_crds
from tests.kubernetes_api import KubernetesApi

PREFIX = "inference.exo.dev/"
MAX_MESSAGE = 2000
TEXTS = {
    "path": "../../../secrets/exo-credentials",
    "absolute": "/etc/passwd",
    "template": "{{ .Release.Name }}",
    "failing template": '{{ fail "x" }}',
    "expansion": "$(HOSTNAME)",
    "format": "%s%n{0}",
    "nul": "a\x00b",
    "line": "a\nb: c",
    "direction": "\u202eexo",
    "wide": "𝕏" * 60,
    "flag": "--help",
    "dash": "-",
    "yaml": "!!python/object:os.system",
    "release": "exo-inference",
    "public": "public",
    "long": "x" * 250_000,
}
FIELDS = ("model", "gpuType", "engineName", "engineVersion", "parameter", "template", "productName")
ANNOTATIONS = ("name", "uid", "created-at", "restarted-at", "rolled-at", "admitted-spec", "replica-memory", "changed")  # fmt: skip


@pytest.fixture(scope="module")
def plane(
    kubernetes_server: ApiServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A namespace with two controllers, a ready model and somebody's deployment."""
    namespace = f"test-{uuid.uuid4().hex[:10]}"
    kubernetes_server.client().create_namespace(namespace)
    kubeconfig = kubernetes_server.kubeconfig("admin", namespace)
    install_crds(kubernetes_server)
    api = KubernetesApi(namespace, kubeconfig, kubernetes_server)
    plane = ControlPlane(api, tmp_path_factory.mktemp("plane"))
    plane.make_node()
    for name in ("controller-1", "controller-2"):
        plane.start(name, HF_ENDPOINT="http://127.0.0.1:9")
    wait_for(lambda: all(p.probe("/readyz")[0] == 200 for p in plane.processes), seconds=40)
    wait_for(lambda: any(p.is_leading for p in plane.processes))
    plane.create_ready_model(plane.processes[0])
    plane.create_deployment(plane.processes[0], "victim")
    wait_for(lambda: plane.deployments() and is_installed(plane))
    yield plane
    for process in plane.processes:
        process.popen.kill()
        process.popen.wait(10)
    plane.remove_node()


def is_installed(plane: ControlPlane) -> bool:
    """Whether Helm has written down that the victim's release is: it does so after the objects are there."""
    labels = [item["metadata"].get("labels", {}) for item in list_all(plane, "secrets", "")]
    deployed = [each["name"] for each in labels if each.get("status") == "deployed"]
    return any(name.startswith("exo-d-") for name in deployed)


@pytest.fixture(autouse=True)
def nothing_of_others_changes(plane: ControlPlane) -> Iterator[None]:
    """After each attack the victim's objects are as they were, and both controllers work."""
    before = others(plane)
    yield
    assert others(plane) == before
    for process in plane.processes:
        assert process.popen.poll() is None
        assert process.probe("/readyz")[0] == 200
        assert "unexpectedly" not in process.log.read_text()
    for plural in ("inferencedeployments", "inferencemodels", "inferenceapikeys"):
        words = ("delete", plural, "--selector=hostile", "--wait=false")
        plane.api.kubectl(*words)
        for item in list_all(plane, plural):
            if "example.com/mine" in item["metadata"].get("finalizers", ()):
                path = plane.path(plural, item["metadata"]["name"])
                kept = [each for each in item["metadata"]["finalizers"] if "example" not in each]
                plane.api.client.request("PATCH", path, {"metadata": {"finalizers": kept}}, MERGE)
    wait_for(lambda: len(plane.deployments()) == 1 and not hostile(plane), seconds=120)


def list_all(plane: ControlPlane, plural: str, group: str = GROUP) -> list[Any]:
    return list(plane.api.request("GET", plane.path(plural, group=group))["items"])


def hostile(plane: ControlPlane) -> list[str]:
    plurals = ("inferencedeployments", "inferencemodels", "inferenceapikeys")
    labels = [
        item["metadata"].get("labels", {}) for each in plurals for item in list_all(plane, each)
    ]
    return [each["hostile"] for each in labels if "hostile" in each]


def others(plane: ControlPlane) -> dict[str, Any]:
    """Return what belongs to the victim and to the control plane, with what it holds."""
    victim = plane.api.request("GET", plane.path("inferencedeployments", "victim"))
    uid = victim["status"]["uid"]
    found: dict[str, Any] = {key: victim["status"][key] for key in ("uid", "release", "keySha256")}
    for plural, group in (("secrets", ""), ("services", ""), ("deployments", "apps/v1")):
        for item in list_all(plane, plural, group):
            name = item["metadata"]["name"]
            if uid in name or name.startswith(("exo-inference", "exo-cred", "exo-m")):
                held = (item["metadata"]["uid"], item.get("data"), item.get("spec"))
                found[f"{plural}/{name}"] = held
    return found


def send(plane: ControlPlane, kind: str, name: str, spec: Any, **metadata: Any) -> bool:
    """Create an object as a tenant does; return False if the API server refuses it for what it is."""
    body = {
        "apiVersion": GROUP,
        "kind": f"Inference{kind}",
        "metadata": {"name": name, "labels": {"hostile": "yes"}, **metadata},
        "spec": spec,
    }
    try:
        plane.api.request("POST", plane.path(f"inference{kind.lower()}s"), body)
    except ApiError as exc:
        if exc.status_code not in (400, 413, 422):
            raise
        return False
    return True


def attack(field: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specification and metadata of a deployment with a text in one of its fields."""
    spec: dict[str, Any] = {"model": "exo/tiny-chat", "gpuType": "cpu"}
    if field in ANNOTATIONS:
        return spec, {"annotations": {PREFIX + field: text}}
    special: dict[str, dict[str, Any]] = {
        "engineName": {"engine": {"name": text}},
        "engineVersion": {"engine": {"version": text}},
        "parameter": {"engineParameters": [text]},
        "template": {"engineParameters": [f"--chat-template={text}"]},
    }
    return {**spec, **special.get(field, {field: text})}, {}


def ready_of(item: dict[str, Any]) -> dict[str, Any]:
    conditions = item.get("status", {}).get("conditions", ())
    return next((each for each in conditions if each["type"] == "Ready"), {})


@pytest.mark.timeout(400)
def test_300_deployments_at_once_with_a_text_everywhere_are_refused_or_hold_a_text(
    plane: ControlPlane,
) -> None:
    wanted = [(field, text) for field in (*FIELDS, *ANNOTATIONS) for text in TEXTS.values()]
    wanted += [("productName", f"p{number}") for number in range(300 - len(wanted))]
    specs = {f"h{number}": attack(*each) for number, each in enumerate(wanted)}

    def make(name: str) -> bool:
        spec, metadata = specs[name]
        return send(plane, "Deployment", name, {"replicas": 0, **spec}, **metadata)

    with ThreadPoolExecutor(30) as pool:
        made = {name for name, taken in zip(specs, pool.map(make, specs), strict=True) if taken}
    assert len(made) > 250

    def judged() -> dict[str, Any] | None:
        items = {each["metadata"]["name"]: each for each in list_all(plane, "inferencedeployments")}
        return items if all(ready_of(items[name]) for name in made) else None

    found = wait_for(judged, seconds=240)
    for name in made:
        message = ready_of(found[name])["message"]
        assert len(message) < MAX_MESSAGE, name
        assert message.isprintable(), (name, message)
        assert ready_of(found[name])["reason"] != "ChangeFailed", (name, message)
    flags = {tuple(specs[name][0].get("engineParameters", ())) for name in made}
    for installed in list_all(plane, "deployments", "apps/v1"):
        template = installed["spec"]["template"]
        told = template["metadata"]["annotations"][f"{PREFIX}engine-parameters"]
        assert tuple(json.loads(told)) in flags
        pod = json.dumps(template["spec"])
        assert "passwd" not in pod
        assert "../" not in pod
    names = {item["metadata"]["name"] for item in list_all(plane, "deployments", "apps/v1")}
    uids = {item["status"].get("uid") for item in found.values()}
    assert names <= {f"exo-d-{uid}" for uid in uids}


@pytest.mark.parametrize("field", ["source", "revision", "tokenSecret"])
def test_a_text_in_a_model_is_refused_or_is_a_text(plane: ControlPlane, field: str) -> None:
    texts = [
        *TEXTS.values(),
        "file:///etc",
        "exo/../tiny-chat",
        "a/../b",
        "exo/no",
        "-a/b",
        "a/b@c",
    ]
    if field == "tokenSecret":
        texts = [item["metadata"]["name"] for item in list_all(plane, "secrets", "")]
        assert "exo-credentials" in texts
    made = []
    for number, text in enumerate(texts):
        name, spec = f"m{number}", {"source": f"org/m{number}"}
        given = {"name": text, "key": "api-secret"} if field == "tokenSecret" else text
        if send(plane, "Model", name, {**spec, field: given}):
            made.append(name)
    for name in made:
        path = plane.path("inferencemodels", name)
        told = wait_for(
            lambda path=path: [
                each
                for each in plane.api.request("GET", path).get("status", {}).get("conditions", ())
                if each["message"]
            ]
        )
        assert all(len(each["message"]) < MAX_MESSAGE for each in told)
        assert all(each["message"].isprintable() for each in told), told
        if field == "tokenSecret":
            assert any("which spec.tokenSecret names, is " in each["message"] for each in told)
    assert len(list_all(plane, "jobs", "batch/v1")) == 1, "that of the victim's model"


def test_a_text_in_a_key_is_refused_or_is_a_text(plane: ControlPlane) -> None:
    uid = plane.api.request("GET", plane.path("inferencedeployments", "victim"))["status"]["uid"]
    for number, text in enumerate(TEXTS.values()):
        for part in ("displayName", "scope", "sha256"):
            spec = {"displayName": f"k{number}", "scope": uid, "sha256": "0" * 64, part: text}
            send(plane, "ApiKey", f"k{number}-{part.lower()}", spec)
    made = list_all(plane, "inferenceapikeys")
    assert made
    listed = plane.call(plane.other, "GET", "/ai/api-key")["ai-api-keys"]
    assert len(listed) == len(made)
    told = plane.send(plane.leader, "GET", "/ai/api-key")
    assert told.status_code == 200


def test_finalizers_owners_and_a_status_by_hand_hold_up_nobody_else(plane: ControlPlane) -> None:
    victim = plane.api.request("GET", plane.path("inferencedeployments", "victim"))
    spec = {"model": "exo/tiny-chat", "gpuType": "cpu", "replicas": 0}
    owner = {"apiVersion": GROUP, "kind": "InferenceDeployment", "name": "victim"}
    owners = [{**owner, "uid": victim["metadata"]["uid"], "blockOwnerDeletion": True}]
    finalizers = ["example.com/mine", f"{PREFIX}replicas", "foregroundDeletion"]
    assert send(plane, "Deployment", "held", spec, finalizers=finalizers)
    assert send(plane, "Deployment", "owned", spec, ownerReferences=owners)
    wait_for(lambda: len(plane.deployments()) == 3, seconds=60)
    path = plane.path("inferencedeployments", "held")
    mine = plane.api.request("GET", path)["status"]["uid"]
    lies = {"uid": victim["status"]["uid"], "release": "exo-inference", "keySha256": "x" * 1000}
    lies |= {"settledSpec": "{" * 100_000, "url": "https://example.com", "admittedSpec": "0" * 64}
    plane.api.client.request("PATCH", f"{path}/status", {"status": lies}, MERGE)
    plane.api.kubectl("delete", "idep", "held", "owned", "--wait=false")
    wait_for(lambda: len(plane.deployments()) == 1, seconds=60)
    assert mine not in plane.deployments()[0]["metadata"]["name"]

    def left() -> list[str]:
        return list(plane.api.request("GET", path)["metadata"]["finalizers"])

    wait_for(lambda: left() == ["example.com/mine"], seconds=60)

    def details() -> str:
        shown = plane.call(plane.other, "GET", "/ai/deployment")["deployments"]
        return next(str(each["state-details"]) for each in shown if each["name"] == "held")

    said = "until its finalizers go, which others set: example.com/mine"
    wait_for(lambda: said in details())
