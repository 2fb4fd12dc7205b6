"""Pytest plugin: a real Kubernetes for tests, and the marker `kubernetes`.

`kubernetes_api` is an API server alone: it gives a test a namespace of its own on one server that the
whole run shares. There are no nodes and no controllers: a namespace stays `Terminating`, an owner's
deletion deletes nothing else, and the roles `view`, `edit` and `admin` are empty, because they are
aggregated. `kubernetes_cluster` is a whole cluster with a node that runs containers, for tests that
`scripts.kubernetes.cluster` has started (`make test-kubernetes`).

    def test_something(kubernetes_api: KubernetesApi) -> None:
        client = new_client_from_config(str(kubernetes_api.kubeconfig))

Tests that use either, directly or through another fixture, get the marker by themselves and are left
out unless asked for (`pytest -m kubernetes`). Where something is missing they are skipped and say what.

With `pytest -n 2 --dist loadfile` one process runs all modules of the whole cluster (`tests.scheduling` names
them); each process has an API server of its own for the other modules.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.kubernetes import binaries
from scripts.kubernetes.api_server import ApiServer
from scripts.kubernetes.client import ApiClient
from scripts.kubernetes.control import CLUSTER_VARIABLE, Control
from tests.scheduling import group_of
from tests.skipping import skip_check

_FIXTURES = {"kubernetes_server", "kubernetes_control"}
_RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@dataclass(frozen=True)
class _Namespace:
    """A namespace on a real API server.

    Attributes:
        namespace: exists, is empty and belongs to this test alone.
        kubeconfig: of an administrator, whose context has the namespace.
    """

    namespace: str
    kubeconfig: Path

    @property
    def client(self) -> ApiClient:
        """A client for the administrator."""
        return ApiClient.from_kubeconfig(self.kubeconfig)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send one request as the administrator; raises `ApiError`."""
        return self.client.request(method, path, body)

    def kubectl(
        self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as the administrator in the namespace."""
        command = [str(binaries.require(["kubectl"])["kubectl"]), f"--kubeconfig={self.kubeconfig}"]
        return subprocess.run(
            [*command, *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
            timeout=timeout,
        )


@dataclass(frozen=True)
class KubernetesApi(_Namespace):
    """A namespace on an API server without nodes.

    Attributes:
        server: may be restarted, stopped, its etcd paused; it is whole again for the next test.
    """

    server: ApiServer

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig of `engineer` or `viewer`, who may do only what RBAC gives them."""
        return self.server.kubeconfig(user, self.namespace)

    def service_account(self, name: str) -> Path:
        """Create a service account in the namespace; return a kubeconfig with its token."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        self.request("POST", path, {"metadata": {"name": name}})
        return self.server.service_account_kubeconfig(self.namespace, name)


@dataclass(frozen=True)
class KubernetesCluster(_Namespace):
    """A namespace of a whole cluster, on which the `restricted` Pod Security Standard is enforced.

    Pods, Services and the API can be reached at their addresses, names cannot be resolved.

    Attributes:
        control: stops, kills and pauses daemons; all run again for the next test.
    """

    control: Control


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs a Kubernetes."""
    for item in items:
        if not _FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("kubernetes")


@pytest.fixture(scope="session")
def kubernetes_server() -> Iterator[ApiServer]:
    """The API server of this run."""
    try:
        programs = binaries.require(binaries.API_SERVER)
    except binaries.ProgramsMissing as exc:
        skip_check(str(exc))
    # Not below pytest's own directory: the path of etcd's socket must stay under 108 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="exo-api-") as directory,
        ApiServer(Path(directory), programs) as server,
    ):
        yield server


@pytest.fixture
def kubernetes_api(kubernetes_server: ApiServer) -> Iterator[KubernetesApi]:
    """A fresh namespace on the API server of this run."""
    namespace = _new_name()
    kubernetes_server.client().create_namespace(namespace)
    kubeconfig = kubernetes_server.kubeconfig("admin", namespace)
    yield KubernetesApi(namespace, kubeconfig, kubernetes_server)
    kubernetes_server.resume_etcd()
    kubernetes_server.start_api_server()
    kubernetes_server.client().request("DELETE", "/api/v1/nodes")  # they are in no namespace


@pytest.fixture(scope="session")
def kubernetes_control() -> Control:
    """The cluster that this run was started beside."""
    directory = os.environ.get(CLUSTER_VARIABLE)
    if not directory:
        skip_check("there is no cluster here. Run `make test-kubernetes`.")
    return Control(Path(directory))


@pytest.fixture
def kubernetes_cluster(
    request: pytest.FixtureRequest, kubernetes_control: Control, tmp_path: Path
) -> Iterator[KubernetesCluster]:
    """A fresh namespace of the cluster; it is deleted at the end, with what is in it."""
    assert group_of(request.node.nodeid) == "cluster", "name the module in tests/scheduling.py"
    with cluster_namespace(kubernetes_control, tmp_path) as cluster:
        yield cluster


@contextmanager
def cluster_namespace(control: Control, directory: Path) -> Iterator[KubernetesCluster]:
    """Lend a fresh namespace of the cluster, for what several tests share.

    Args:
        control: of the cluster; all daemons run again at the end.
        directory: for its kubeconfig.
    """
    namespace = _new_name()
    client = ApiClient.from_kubeconfig(Path(os.environ["KUBECONFIG"]))
    client.create_namespace(namespace, _RESTRICTED)
    client.write_kubeconfig(directory / "kubeconfig", "admin", namespace)
    try:
        yield KubernetesCluster(namespace, directory / "kubeconfig", control)
    finally:
        control.mend()
        control.wait_ready(client)
        client.request("DELETE", f"/api/v1/namespaces/{namespace}")


def _new_name() -> str:
    return f"test-{uuid.uuid4().hex[:10]}"
