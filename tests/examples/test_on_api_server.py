"""The examples on a real API server, as kubectl, Argo CD and Flux apply them."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore
from exo_inference.resources import InferenceDeployment
from scripts.kubernetes import binaries
from scripts.kubernetes.client import ApiError
from tests.controller.stores.conftest import CRDS, install_crds
from tests.controller.stores.objects import with_replicas
from tests.examples.files import EXAMPLES, ROOT, only
from tests.examples.states import DEPLOYMENTS, MODELS, Seen
from tests.kubernetes_api import KubernetesApi as Cluster

MANIFESTS = str(EXAMPLES / "manifests")
ARGO_CD = ["apply", "--server-side", "--field-manager=argocd-controller", "-f", MANIFESTS]


@pytest.fixture
def cluster(kubernetes_api: Cluster) -> Cluster:
    install_crds(kubernetes_api.server)
    return kubernetes_api


def chat(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(cluster.kubectl("get", "idep", "chat", "-ojson").stdout)
    return found


def adopt(cluster: Cluster) -> None:
    """Write what the controller writes when it first looks at an object."""
    metadata = {
        "finalizers": ["inference.exo.dev/replicas"],
        "annotations": {"inference.exo.dev/restarted-at": "2026-11-20T20:00:00Z"},
    }
    manager = "--field-manager=exo-inference"
    words = ["patch", "idep", "chat", "--type=merge", manager]
    cluster.kubectl(*words, "-p", json.dumps({"metadata": metadata}))
    status = {"observedGeneration": 1, "url": "http://gateway/chat/v1"}
    cluster.kubectl(*words, "--subresource=status", "-p", json.dumps({"status": status}))


def test_the_manifests_are_accepted(cluster: Cluster) -> None:
    said = cluster.kubectl("apply", "--dry-run=server", "-f", MANIFESTS).stdout
    assert said.count("created (server dry run)") == 2


@pytest.mark.parametrize("tool", ["argocd-controller", "kustomize-controller"])
def test_applying_again_changes_nothing_also_after_the_controller_has_looked(
    cluster: Cluster, tool: str
) -> None:
    words = ["apply", "--server-side", f"--field-manager={tool}", "-f", MANIFESTS]
    cluster.kubectl(*words)
    before = chat(cluster)
    cluster.kubectl(*words)
    # The second write stores the default of the status, which the first did not; nothing else.
    before["metadata"].pop("resourceVersion")
    after = chat(cluster)
    after["metadata"].pop("resourceVersion")
    assert after == before
    adopt(cluster)
    before = chat(cluster)
    assert before["metadata"]["finalizers"]
    cluster.kubectl(*words)
    assert chat(cluster) == before
    assert cluster.kubectl("diff", "-f", MANIFESTS, check=False).returncode == 0


async def test_a_change_past_git_is_a_conflict_on_that_field_alone(cluster: Cluster) -> None:
    cluster.kubectl(*ARGO_CD)
    store = await KubernetesStore.open(await KubernetesApi.connect(cluster.kubeconfig))
    try:
        present = await store.get_by_name(InferenceDeployment, "chat")
        await store.update(with_replicas(present, 3))
    finally:
        await store.close()
    refused = cluster.kubectl(*ARGO_CD, check=False)
    assert refused.returncode != 0
    assert 'conflict with "exo-inference"' in refused.stderr
    assert ".spec.replicas" in refused.stderr
    assert refused.stderr.count(".spec") == 1
    cluster.kubectl(*ARGO_CD, "--force-conflicts")  # as Argo CD and Flux do
    assert chat(cluster)["spec"]["replicas"] == 2


def test_replicas_that_git_leaves_out_belong_to_who_scales(cluster: Cluster) -> None:
    body = only("manifests/chat.yaml", "InferenceDeployment", "chat")
    del body["spec"]["replicas"]
    words = ["apply", "--server-side", "--force-conflicts", "--field-manager=argocd-controller"]
    cluster.kubectl(*words, "-f", "-", stdin=json.dumps(body))
    cluster.kubectl("scale", "idep", "chat", "--replicas=5")
    cluster.kubectl(*words, "-f", "-", stdin=json.dumps(body))
    assert chat(cluster)["spec"]["replicas"] == 5


async def test_git_may_say_which_id_a_deployment_has(cluster: Cluster) -> None:
    uid = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
    body = only("manifests/chat.yaml", "InferenceDeployment", "chat")
    body["metadata"]["annotations"] = {"inference.exo.dev/uid": f"chat/{uid}"}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))
    store = await KubernetesStore.open(await KubernetesApi.connect(cluster.kubeconfig))
    try:
        assert (await store.get(InferenceDeployment, uid)).metadata.name == "chat"
    finally:
        await store.close()


def test_a_new_object_is_not_taken_for_settled(cluster: Cluster) -> None:
    """kstatus, by which Flux waits, compares the generations where both are there."""
    cluster.kubectl(*ARGO_CD)
    found = chat(cluster)
    assert (found["metadata"]["generation"], found["status"]["observedGeneration"]) == (1, 0)
    waited = cluster.kubectl(
        "wait", "idep/chat", "--for=condition=Ready", "--timeout=1s", check=False
    )
    assert waited.returncode != 0


def test_kubectl_adds_the_health_checks_to_the_settings_of_argo_cd(cluster: Cluster) -> None:
    name = f"--namespace={cluster.namespace}"
    cluster.kubectl("create", "configmap", "argocd-cm", "--from-literal=url=https://cd")
    body = only("argocd/argocd-cm.yaml", "ConfigMap", "argocd-cm")
    assert body["metadata"].pop("namespace") == "argocd"
    path = EXAMPLES / "argocd" / "argocd-cm.yaml"
    patch = path.read_text().replace("  namespace: argocd\n", "")
    cluster.kubectl(name, "patch", "configmap", "argocd-cm", "--patch", patch)
    found = json.loads(cluster.kubectl("get", "configmap", "argocd-cm", "-ojson").stdout)
    assert found["data"] == {"url": "https://cd", **body["data"]}


# -- commands of the pages, as they are there


def run_block(cluster: Cluster, page: str, begins: str, **names: str) -> None:
    """Run the indented block of a page that begins so, for the namespace of the test."""
    lines = (ROOT / "docs" / "how-to" / page).read_text("utf-8").splitlines()
    first = next(n for n, line in enumerate(lines) if line.strip().startswith(begins))
    block = itertools.takewhile(lambda line: line.startswith("    "), lines[first:])
    script = "set -e\n" + "\n".join(block).replace("-n inference", f"-n {cluster.namespace}")
    for placeholder, name in names.items():
        script = re.sub(rf"={placeholder}\b", f"={name}", script)
    program = binaries.require(["kubectl"])["kubectl"]
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "PATH": f"{program.parent}:{os.environ['PATH']}",
    }
    ended = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


def test_finalizers_can_be_taken_away_as_the_page_says(cluster: Cluster) -> None:
    cluster.kubectl(*ARGO_CD)
    adopt(cluster)
    cluster.kubectl("delete", "idep,im", "--all", "--wait=false")
    assert chat(cluster)["metadata"]["deletionTimestamp"]
    run_block(cluster, "kubernetes.md", "for kind in")
    assert cluster.kubectl("get", "idep,im", "-oname").stdout == ""


def test_definitions_can_be_handed_over_as_the_page_says(cluster: Cluster) -> None:
    run_block(cluster, "upgrade.md", "for name in", NAME="other", NAMESPACE="elsewhere")
    found = json.loads(cluster.kubectl("get", "crd", "-ojson").stdout)["items"]
    ours = [item["metadata"] for item in found if item["spec"]["group"] == "inference.exo.dev"]
    assert len(ours) == 4
    for metadata in ours:
        assert metadata["labels"]["app.kubernetes.io/managed-by"] == "Helm"
        assert metadata["annotations"]["meta.helm.sh/release-name"] == "other"
        assert metadata["annotations"]["meta.helm.sh/release-namespace"] == "elsewhere"


# -- Flux's expressions, evaluated by the API server, which has the same CEL as Flux

KINDS = {"InferenceModel": MODELS, "InferenceDeployment": DEPLOYMENTS}
TEXT = {"type": "string", "maxLength": 2000}
CONDITION = {"type": "object", "properties": dict.fromkeys(("type", "status", "reason"), TEXT)}
GROUP = "examples.test"


def verdict_crd(kind: str, expressions: dict[str, str]) -> dict[str, Any]:
    """Return a kind whose objects say what the expressions must find in the status they carry."""
    failed, current = (f"(self.{expressions[name]})" for name in ("failed", "current"))
    # The first that holds decides.
    rule = f"self.failed == {failed} && (self.failed || self.current == {current})"
    conditions = {"type": "array", "maxItems": 10, "items": CONDITION}
    spec = {
        "type": "object",
        "required": ["failed", "current", "status"],
        "x-kubernetes-validations": [{"rule": rule}],
        "properties": {
            "failed": {"type": "boolean"},
            "current": {"type": "boolean"},
            "status": {"type": "object", "properties": {"conditions": conditions}},
        },
    }
    schema = {"type": "object", "properties": {"spec": spec}}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    plural = f"{kind.lower()}verdicts"
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {"kind": f"{kind}Verdict", "plural": plural},
            "versions": [version],
        },
    }


def is_accepted(cluster: Cluster, kind: str, seen: Seen, *, failed: bool, current: bool) -> bool:
    path = f"/apis/{GROUP}/v1/namespaces/{cluster.namespace}/{kind.lower()}verdicts?dryRun=All"
    spec = {"failed": failed, "current": current, "status": seen.body["status"]}
    body = {
        "apiVersion": f"{GROUP}/v1",
        "kind": f"{kind}Verdict",
        "metadata": {"name": "verdict"},
        "spec": spec,
    }
    deadline = time.monotonic() + 20
    while True:
        try:
            cluster.request("POST", path, body)
        except ApiError as exc:
            if exc.status_code == 422:
                return False
            if exc.status_code != 404 or time.monotonic() > deadline:
                raise
            time.sleep(0.05)  # the kind is not served yet
        else:
            return True


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, kubernetes_api: Cluster) -> Iterator[str]:
    """A kind, and on the API server the expressions that Flux has for it."""
    checks = only("flux/sync.yaml", "Kustomization", "inference")["spec"]["healthCheckExprs"]
    (found,) = [entry for entry in checks if entry["kind"] == request.param]
    body = verdict_crd(request.param, found)
    kubernetes_api.request("POST", CRDS, body)
    yield request.param
    kubernetes_api.request("DELETE", f"{CRDS}/{body['metadata']['name']}")


def test_flux_finds_what_a_person_would_say(kubernetes_api: Cluster, kind: str) -> None:
    for seen in KINDS[kind]:
        if seen.body["status"]["observedGeneration"] != seen.body["metadata"]["generation"]:
            assert seen.verdict == "waiting"  # what Flux looks at before the expressions
            continue
        failed, current = seen.verdict == "broken", seen.verdict == "well"
        assert is_accepted(kubernetes_api, kind, seen, failed=failed, current=current), seen.state
        assert not is_accepted(kubernetes_api, kind, seen, failed=not failed, current=True)
