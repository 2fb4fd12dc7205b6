"""The charts against a real API server: its own validation, Pod Security, and Helm as the controller.

What the schemas cannot say (CEL rules, defaults, rules between fields) the server checks in a dry run
with strict field validation. The releases of models and deployments are installed with the token of
the controller's service account, so that a permission that its role lacks fails here.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.kubernetes.client import ApiClient, ApiError
from tests.charts.rendering import (
    CHARTS,
    SCENARIOS,
    Object,
    helm,
    only,
    pod_templates,
    render_scenario,
)
from tests.charts.service_accounts import FEATURES
from tests.kubernetes_api import KubernetesApi

FOREIGN = (
    "leaderworkerset.x-k8s.io",
    "keda.sh",
    "gateway.networking.k8s.io",
    "monitoring.coreos.com",
)
CLUSTER_WIDE = (
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)
DRY_RUN = "dryRun=All&fieldValidation=Strict"
MODEL = "model.source=exo/tiny-chat,model.sizeBytes=5000000"
DEPLOYMENT = "model.source=exo/tiny-chat,model.claimName=tiny"


def collection(item: Object, namespace: str) -> str:
    """Return the path that an object is posted to."""
    version = item["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = re.sub("y$", "ie", item["kind"].lower()) + ("es" if item["kind"] == "Ingress" else "s")
    return (
        f"{root}/{plural}"
        if item["kind"] in CLUSTER_WIDE
        else f"{root}/namespaces/{namespace}/{plural}"
    )


def placed(item: Object, namespace: str) -> Object:
    """Return an object for the test's own namespace, under a name that is free on the server."""
    metadata = {**item["metadata"]}
    if item["kind"] not in CLUSTER_WIDE:
        metadata["namespace"] = namespace
    return {**item, "metadata": metadata}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_server_accepts_every_object(scenario: str, kubernetes_api: KubernetesApi) -> None:
    namespace, refused = kubernetes_api.namespace, {}
    for item in render_scenario(scenario):
        if item["apiVersion"].startswith(FOREIGN):
            continue
        try:
            path = f"{collection(item, namespace)}?{DRY_RUN}"
            kubernetes_api.request("POST", path, placed(item, namespace))
        except ApiError as exc:
            exists = exc.status_code == 409 and item["kind"] == "CustomResourceDefinition"
            if not exists:
                refused[f"{item['kind']}/{item['metadata']['name']}"] = str(exc)
    assert refused == {}


def post_pod(api: KubernetesApi, template: Object, **changes: Any) -> None:
    """Create a pod of a template in a dry run; account and classes are those there are."""
    spec = {**template["spec"], "serviceAccountName": "default", **changes}
    spec.pop("priorityClassName", None)
    spec.pop("runtimeClassName", None)
    metadata = {**template["metadata"], "name": "pod", "namespace": api.namespace}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    api.request("POST", f"/api/v1/namespaces/{api.namespace}/pods?{DRY_RUN}", pod)


@pytest.fixture
def restricted(kubernetes_api: KubernetesApi) -> KubernetesApi:
    """A namespace on which the Pod Security Standard `restricted` is enforced."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    kubernetes_api.kubectl("label", "namespace", kubernetes_api.namespace, label)
    kubernetes_api.kubectl("create", "serviceaccount", "default")  # no controller makes it here
    return kubernetes_api


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_pod_security_admits_every_pod(scenario: str, restricted: KubernetesApi) -> None:
    for item in render_scenario(scenario):
        for template in pod_templates(item):
            post_pod(restricted, template)


def test_pod_security_would_refuse_others(restricted: KubernetesApi) -> None:
    objects = render_scenario("inference-deployment/minimal")
    (template,) = pod_templates(only(objects, "Deployment"))
    with pytest.raises(ApiError, match="violates PodSecurity"):
        post_pod(restricted, template, hostNetwork=True)


class AsController:
    """Helm with the token of the controller that the chart installed."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api
        install(api, "--set", f"crds.install=false,{FEATURES}")
        self.kubeconfig = api.server.service_account_kubeconfig(api.namespace, "exo-controller")

    def helm(self, *arguments: str) -> str:
        return helm(
            f"--kubeconfig={self.kubeconfig}", "--namespace", self.api.namespace, *arguments
        )

    def upgrade(self, release: str, chart: str, *values: str) -> str:
        arguments = [item for value in values for item in ("--set", value)]
        return self.helm("upgrade", "--install", release, str(CHARTS / chart), *arguments)

    @property
    def client(self) -> ApiClient:
        return ApiClient.from_kubeconfig(self.kubeconfig)


def install(api: KubernetesApi, *arguments: str) -> str:
    given = (f"--kubeconfig={api.kubeconfig}", "--namespace", api.namespace, *arguments)
    return helm("upgrade", "--install", "exo", str(CHARTS / "exo-inference"), *given)


@pytest.fixture
def controller(kubernetes_api: KubernetesApi) -> AsController:
    return AsController(kubernetes_api)


def objects(api: KubernetesApi, release: str) -> list[str]:
    kinds = "deployments,services,persistentvolumeclaims,jobs,poddisruptionbudgets,networkpolicies,horizontalpodautoscalers,resourceclaimtemplates"
    selector = f"app.kubernetes.io/instance={release}"
    return api.kubectl("get", kinds, "--selector", selector, "--output=name").stdout.split()


def test_controller_installs_changes_rolls_back_and_removes_a_deployment(
    controller: AsController,
) -> None:
    controller.upgrade("chat", "inference-deployment", DEPLOYMENT)
    assert "deployment.apps/chat" in objects(controller.api, "chat")
    changed = (
        "engine.parameters={--max-model-len=128},autoscaling.enabled=true,autoscaling.type=hpa"
    )
    controller.upgrade("chat", "inference-deployment", DEPLOYMENT, changed)
    assert "horizontalpodautoscaler.autoscaling/chat" in objects(controller.api, "chat")
    assert len(json.loads(controller.helm("history", "chat", "--output=json"))) == 2
    controller.helm("rollback", "chat", "1")
    assert "horizontalpodautoscaler.autoscaling/chat" not in objects(controller.api, "chat")
    claims = "gpu.count=1,resourceClaims.enabled=true"
    controller.upgrade("chat", "inference-deployment", DEPLOYMENT, claims)
    controller.helm("uninstall", "chat")
    assert objects(controller.api, "chat") == []


def test_scaling_leaves_the_pods_as_they_are(controller: AsController) -> None:
    def generation_and_pods() -> tuple[int, Any]:
        found = json.loads(controller.api.kubectl("get", "deployment", "chat", "-o=json").stdout)
        return found["spec"]["replicas"], found["spec"]["template"]

    controller.upgrade("chat", "inference-deployment", DEPLOYMENT, "deployment.specHash=a")
    replicas, pods = generation_and_pods()
    scaled = "replicas=3,deployment.specHash=b"
    controller.upgrade("chat", "inference-deployment", DEPLOYMENT, scaled)
    assert (replicas, *generation_and_pods()) == (1, 3, pods)


def test_replicas_of_an_autoscaler_are_not_fought(controller: AsController) -> None:
    values = (DEPLOYMENT, "autoscaling.enabled=true,autoscaling.type=hpa")
    controller.upgrade("chat", "inference-deployment", *values)
    controller.api.kubectl("scale", "deployment/chat", "--replicas=4")
    controller.upgrade("chat", "inference-deployment", *values, "engine.parameters={--seed=1}")
    found = json.loads(controller.api.kubectl("get", "deployment", "chat", "-o=json").stdout)
    assert found["spec"]["replicas"] == 4


def test_controller_installs_a_model_again_with_other_values(controller: AsController) -> None:
    """A Job and the class of a claim cannot change; a second version must not try."""
    controller.upgrade("tiny", "inference-model", MODEL)
    first = objects(controller.api, "tiny")
    controller.upgrade("tiny", "inference-model", MODEL, "download.backoffLimit=2")
    second = objects(controller.api, "tiny")
    assert "persistentvolumeclaim/tiny" in first
    assert "persistentvolumeclaim/tiny" in second
    jobs = {name for name in (*first, *second) if name.startswith("job")}
    assert len(jobs) == 2
    assert len([name for name in second if name.startswith("job")]) == 1


def test_a_kept_claim_survives_its_release(controller: AsController) -> None:
    controller.upgrade("tiny", "inference-model", MODEL, "storage.keep=true")
    controller.helm("uninstall", "tiny")
    assert objects(controller.api, "tiny") == ["persistentvolumeclaim/tiny"]
    # and a release of the same name takes it over again
    controller.upgrade("tiny", "inference-model", MODEL, "storage.keep=true")


def test_engines_may_do_nothing(controller: AsController) -> None:
    can = controller.api.kubectl(
        "auth", "can-i", "get", "pods", f"--as=system:serviceaccount:{controller.api.namespace}:default",
        check=False,
    )  # fmt: skip
    assert can.stdout.strip() == "no"


def test_a_release_record_holds_no_secret(controller: AsController) -> None:
    controller.upgrade("tiny", "inference-model", MODEL, "download.token.secretName=hub-token")
    manifest = controller.helm("get", "manifest", "tiny")
    assert {item["kind"] for item in yaml.safe_load_all(manifest)} == {
        "PersistentVolumeClaim",
        "Job",
    }
    assert "secretName: hub-token" in manifest


def test_crds_come_with_the_chart_are_upgraded_and_stay(
    kubernetes_api: KubernetesApi, tmp_path: Path
) -> None:
    def crds() -> dict[str, Any]:
        text = kubernetes_api.kubectl("get", "customresourcedefinitions", "-o=json").stdout
        items = json.loads(text)["items"]
        return {item["metadata"]["name"]: item["metadata"].get("labels", {}) for item in items}

    expected = {path.stem for path in (CHARTS / "exo-inference/files/crds").glob("*.yaml")}
    install(kubernetes_api, "--take-ownership")
    assert expected <= crds().keys()
    install(kubernetes_api, "--set", "commonLabels.round=two")
    assert {crds()[name]["round"] for name in expected} == {"two"}
    helm(
        f"--kubeconfig={kubernetes_api.kubeconfig}",
        "-n",
        kubernetes_api.namespace,
        "uninstall",
        "exo",
    )
    assert expected <= crds().keys()
