"""The chart's service accounts with the rights that its roles give them, for tests on an API server.

The tests of the store, the platform and the processes run as them, so that a right that a role lacks
fails there. The rest of the chart is not installed, which would take a second for each test.
"""

from __future__ import annotations

import functools
import time
from pathlib import Path

import yaml

from scripts.kubernetes.client import ApiClient, ApiError
from tests.charts.rendering import CHARTS, Object, helm
from tests.kubernetes_api import KubernetesApi, KubernetesCluster

RELEASE = "exo"
_KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
FEATURES = "features.leaderWorkerSet=true,features.keda=true,features.resourceClaims=true"
"""Everything that brings rights with it."""

_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def kubeconfig_of(component: str, api: KubernetesApi | KubernetesCluster) -> Path:
    """Return a kubeconfig of `controller` or `gateway`; the accounts and roles are made once."""
    name = f"{RELEASE}-{component}"
    try:
        account = api.client.as_service_account(api.namespace, name)
    except ApiError:
        for item in yaml.safe_load_all(_template().replace("NAMESPACE", api.namespace)):
            if item and item["kind"] in _KINDS:
                api.request("POST", _collection(item, api.namespace), item)
        account = api.client.as_service_account(api.namespace, name)
    _wait_until_bound(account, api.namespace)
    path = api.kubeconfig.with_name(f"kubeconfig.{component}.{api.namespace}")
    account.write_kubeconfig(path, name, api.namespace)
    return path


@functools.cache
def _template() -> str:
    chart = str(CHARTS / "exo-inference")
    return helm("template", RELEASE, chart, "--namespace=NAMESPACE", "--set", FEATURES)


def _collection(item: Object, namespace: str) -> str:
    plural = f"{item['kind'].lower()}s"
    if item["kind"].startswith("Cluster"):
        return f"{_RBAC}/{plural}"
    root = "/api/v1" if item["kind"] == "ServiceAccount" else _RBAC
    return f"{root}/namespaces/{namespace}/{plural}"


def _wait_until_bound(client: ApiClient, namespace: str) -> None:
    """RBAC follows its own watch, so new rules hold a moment after they were written."""
    deadline = time.monotonic() + 60
    while not _may_list(client, namespace):
        assert time.monotonic() < deadline, "the roles do not hold"
        time.sleep(0.01)


def _may_list(client: ApiClient, namespace: str) -> bool:
    path = f"/apis/inference.exo.dev/v1alpha1/namespaces/{namespace}/inferencedeployments?limit=1"
    try:
        client.request("GET", path)
    except ApiError as exc:
        return exc.status_code == 404  # allowed; the kinds are not installed
    return True
