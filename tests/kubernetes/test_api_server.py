"""The API server that other tests stand on: real validation, RBAC, tokens, outages."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable

import pytest

from scripts.kubernetes.client import ApiError
from tests.kubernetes_api import KubernetesApi


def configmap(api: KubernetesApi, name: str) -> tuple[str, dict[str, object]]:
    return f"/api/v1/namespaces/{api.namespace}/configmaps", {"metadata": {"name": name}}


def wait_for(is_so: Callable[[], bool]) -> None:
    """RBAC follows its own watch, so a new rule holds a moment after it was written."""
    deadline = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < deadline, "nothing changed for 10 s"


def test_every_test_has_an_empty_namespace_of_its_own(kubernetes_api: KubernetesApi) -> None:
    path, body = configmap(kubernetes_api, "one")
    assert kubernetes_api.request("GET", path)["items"] == []
    kubernetes_api.request("POST", path, body)
    assert len(kubernetes_api.request("GET", path)["items"]) == 1


def test_kubectl_works_with_the_kubeconfig(kubernetes_api: KubernetesApi) -> None:
    made = kubernetes_api.kubectl("create", "configmap", "made", "-o", "json")
    assert json.loads(made.stdout)["metadata"]["namespace"] == kubernetes_api.namespace


def test_invalid_objects_are_refused(kubernetes_api: KubernetesApi) -> None:
    path, body = configmap(kubernetes_api, "No_DNS_label")
    with pytest.raises(ApiError) as caught:
        kubernetes_api.request("POST", path, body)
    assert caught.value.status_code == 422


@pytest.mark.parametrize("who", ["viewer", "service account"])
def test_nobody_but_admin_may_do_anything_until_rbac_says_so(
    kubernetes_api: KubernetesApi, who: str
) -> None:
    api = kubernetes_api
    if who == "viewer":
        kubeconfig, subject = api.kubeconfig_of("viewer"), "--group=viewers"
    else:
        kubeconfig, subject = (
            api.service_account("robot"),
            f"--serviceaccount={api.namespace}:robot",
        )
    as_them = dataclasses.replace(api, kubeconfig=kubeconfig)
    assert "forbidden" in as_them.kubectl("get", "configmaps", check=False).stderr.lower()
    api.kubectl("create", "role", "reader", "--verb=list", "--resource=configmaps")
    api.kubectl("create", "rolebinding", "readers", "--role=reader", subject)
    wait_for(lambda: as_them.kubectl("get", "configmaps", check=False).returncode == 0)
    assert "forbidden" in as_them.kubectl("get", "secrets", check=False).stderr.lower()


def test_what_was_stored_survives_a_restart_of_the_api_server(
    kubernetes_api: KubernetesApi,
) -> None:
    path, body = configmap(kubernetes_api, "kept")
    kubernetes_api.request("POST", path, body)
    kubernetes_api.server.stop_api_server()
    with pytest.raises(OSError, match="refused"):
        kubernetes_api.request("GET", path)
    kubernetes_api.server.start_api_server()
    assert kubernetes_api.request("GET", f"{path}/kept")["metadata"]["name"] == "kept"


def test_the_next_test_finds_the_server_whole_again(kubernetes_api: KubernetesApi) -> None:
    kubernetes_api.server.stop_api_server()
