"""The policy that refuses ids the controller would not take, on a real API server; and its name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from scripts.kubernetes.client import ApiClient, ApiError
from tests.charts.rendering import kinds, render
from tests.charts.service_accounts import RELEASE, kubeconfig_of
from tests.charts.test_on_api_server import collection
from tests.controller.stores.conftest import install_crds
from tests.kubernetes_api import KubernetesApi

CHOSEN = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
OTHER = "0f1e2d3c-4b5a-4678-9abc-def012345678"
ANNOTATION = "inference.exo.dev/uid"
GROUP = "inference.exo.dev/v1alpha1"
MERGE = "application/merge-patch+json"
CLUSTER_WIDE = (
    "ClusterRole",
    "ClusterRoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
)


class Tenant:
    """Writes InferenceDeployments, under the policy."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api

    def path(self, name: str = "") -> str:
        plural = f"/apis/{GROUP}/namespaces/{self.api.namespace}/inferencedeployments"
        return f"{plural}/{name}".rstrip("/")

    def create(self, name: str, asks: str | None) -> None:
        body = {
            "apiVersion": GROUP,
            "kind": "InferenceDeployment",
            "metadata": {"name": name, "annotations": {} if asks is None else {ANNOTATION: asks}},
            "spec": {"model": "exo/tiny-chat", "gpuType": "cpu"},
        }
        self.api.request("POST", self.path(), body)

    def patch(self, name: str, body: Any, part: str = "", client: ApiClient | None = None) -> None:
        (client or self.api.client).request("PATCH", self.path(name) + part, body, MERGE)

    def annotate(self, name: str, asks: str | None) -> None:
        self.patch(name, {"metadata": {"annotations": {ANNOTATION: asks}}})


@pytest.fixture
def tenant(kubernetes_api: KubernetesApi) -> Iterator[Tenant]:
    install_crds(kubernetes_api.server)
    namespace = kubernetes_api.namespace
    found = Tenant(kubernetes_api)
    found.create("before", "before/inference")  # there was no policy yet
    objects = render(
        "exo-inference",
        *("--namespace", namespace, "--set", f"crds.install=false,fullnameOverride={RELEASE}"),
    )
    policies = [item for item in objects if item["kind"].startswith("ValidatingAdmission")]
    for item in policies:
        kubernetes_api.request("POST", collection(item, namespace), item)
    deadline = time.monotonic() + 60
    while True:  # the server takes a moment to notice a policy
        try:
            found.create("probe", "probe/x")
        except ApiError:
            break
        assert time.monotonic() < deadline, "the policy has no effect"
        kubernetes_api.request("DELETE", found.path("probe"))
        time.sleep(0.2)
    yield found
    for item in policies:
        name = item["metadata"]["name"]
        kubernetes_api.request("DELETE", f"{collection(item, namespace)}/{name}")


def test_an_id_is_a_uuid_and_stays(tenant: Tenant) -> None:
    for number, asks in enumerate((None, f"n1/{CHOSEN}", "other/inference", f"other/{CHOSEN}")):
        tenant.create(f"n{number}", asks)
    refused = (
        "x/inference",
        f"x/model-{CHOSEN}",
        f"x/{CHOSEN.upper()}",
        "x/",
        CHOSEN,
        f"x/{CHOSEN}/y",
    )
    for asks in refused:
        with pytest.raises(ApiError, match="must be x/UUID with a UUID in lower case"):
            tenant.create("x", asks)
    tenant.annotate("n0", f"n0/{OTHER}")  # nobody has taken it over yet
    tenant.patch("n0", {"status": {"uid": OTHER}}, "/status")
    with pytest.raises(ApiError, match=f"the id has been {OTHER} since"):
        tenant.annotate("n0", f"n0/{CHOSEN}")
    tenant.patch("n0", {"spec": {"replicas": 2}})
    tenant.annotate("n0", None)
    tenant.annotate("n0", f"n0/{OTHER}")


def account_with_all_but_identify(api: KubernetesApi) -> ApiClient:
    """Return one who may write deployments and their status, as the controller may."""
    namespace, name = api.namespace, "tenant"
    rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    rule = {
        "apiGroups": ["inference.exo.dev"],
        "resources": ["inferencedeployments", "inferencedeployments/status"],
        "verbs": ["get", "list", "create", "update", "patch", "delete"],
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    metadata = {"name": name}
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.request("POST", path, {"metadata": metadata})
    api.request("POST", f"{rbac}/roles", {"metadata": metadata, "rules": [rule]})
    bound = {"metadata": metadata, "roleRef": role, "subjects": [subject]}
    api.request("POST", f"{rbac}/rolebindings", bound)
    return api.client.as_service_account(namespace, name)


def wait_until_allowed(call: Callable[[], None]) -> None:
    """Repeat what a role allows that does not hold yet."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with contextlib.suppress(ApiError):
            call()
            return
        time.sleep(0.05)
    call()


READY = {"status": {"readyReplicas": 1}}


def test_who_may_write_status_writes_no_identity(
    tenant: Tenant, kubernetes_api: KubernetesApi
) -> None:
    """Else an older object takes over what another one is: the first that says an id has it."""
    writer = account_with_all_but_identify(kubernetes_api)
    kubeconfig_of("controller", kubernetes_api)
    controller = kubernetes_api.client.as_service_account(
        kubernetes_api.namespace, "exo-controller"
    )
    tenant.create("victim", None)
    wait_until_allowed(lambda: tenant.patch("before", READY, "/status", writer))
    for field in ("uid", "release", "url", "keySha256", "admittedSpec"):
        for status in ({field: CHOSEN}, {field: CHOSEN, "readyReplicas": 2}):
            with pytest.raises(
                ApiError, match="uid, release, url, path, keySha256 and admittedSpec"
            ):
                tenant.patch("before", {"status": status}, "/status", writer)
    known = {"uid": CHOSEN, "release": f"exo-d-{CHOSEN}", "url": f"http://g/{CHOSEN}/v1"}
    tenant.patch("victim", {"status": known}, "/status", controller)
    tenant.patch("victim", READY, "/status", writer)
    with pytest.raises(ApiError, match="uid, release, url, path, keySha256 and admittedSpec"):
        tenant.patch("victim", {"status": {"uid": None}}, "/status", writer)
    tenant.patch("victim", {"status": {"uid": OTHER}}, "/status")  # an administrator, as to restore


def test_what_was_wrong_before_can_still_be_changed_and_mended(tenant: Tenant) -> None:
    tenant.patch("before", {"spec": {"replicas": 2}})
    tenant.patch("before", {"metadata": {"finalizers": ["inference.exo.dev/replicas"]}})
    tenant.patch("before", {"metadata": {"finalizers": None}})
    with pytest.raises(ApiError, match="must be before/UUID"):
        tenant.annotate("before", "before/model")
    tenant.annotate("before", f"before/{CHOSEN}")


def test_other_namespaces_are_not_looked_at(tenant: Tenant, kubernetes_api: KubernetesApi) -> None:
    other = f"{kubernetes_api.namespace}-other"
    kubernetes_api.server.client().create_namespace(other)
    path = f"/apis/{GROUP}/namespaces/{other}/inferencedeployments"
    metadata = {"name": "x", "annotations": {ANNOTATION: "x/inference"}}
    spec = {"model": "exo/tiny-chat", "gpuType": "cpu"}
    kind = {"apiVersion": GROUP, "kind": "InferenceDeployment"}
    kubernetes_api.request("POST", path, {**kind, "metadata": metadata, "spec": spec})


def cluster_names(release: str, namespace: str) -> set[str]:
    words = ("--set", f"fullnameOverride={release}", "--namespace", namespace)
    objects = render("exo-inference", *words)
    return {item["metadata"]["name"] for item in objects if item["kind"] in CLUSTER_WIDE}


def test_long_names_of_two_installations_are_not_one_cluster_role() -> None:
    release, team = "exo-inference-production", "machine-learning-platform-production"
    (west,), (east,) = (
        cluster_names(release, f"{team}-eu-west"),
        cluster_names(release, f"{team}-eu-east"),
    )
    assert west != east
    assert max(len(west), len(east)) <= 63
    assert cluster_names("exo", "inference") == {"exo-inference"}  # short ones are as they were


def test_it_can_be_left_out() -> None:
    assert "ValidatingAdmissionPolicy" in kinds(render("exo-inference"))
    without = render("exo-inference", "--set", "admissionPolicy.create=false")
    assert "ValidatingAdmissionPolicy" not in kinds(without)
