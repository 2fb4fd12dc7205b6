"""Pytest plugin: a real Kubernetes API for tests, and the marker `kubernetes`.

`kubernetes_api` gives a test a namespace of its own on one server that the whole run shares; its
kubeconfig is that of an administrator. Tests that use it, directly or through another fixture, get
the marker `kubernetes` by themselves and are left out unless asked for (`pytest -m kubernetes`).
Where the programs are missing they are skipped, and say which.

    def test_something(kubernetes_api: KubernetesApi) -> None:
        client = new_client_from_config(str(kubernetes_api.kubeconfig))

There are no nodes and no controllers: a namespace stays `Terminating`, an owner's deletion deletes
nothing else, and the roles `view`, `edit` and `admin` are empty, because they are aggregated.
"""

from __future__ import annotations

import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scripts.kubernetes import binaries
from scripts.kubernetes.api_server import ApiServer


@dataclass(frozen=True)
class KubernetesApi:
    """A namespace on a real API server.

    Attributes:
        server: may be restarted, stopped, its etcd paused; it is whole again for the next test.
        namespace: exists, is empty and belongs to this test alone.
        kubeconfig: of the user `admin`, whose context has the namespace.
    """

    server: ApiServer
    namespace: str
    kubeconfig: Path

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send one request as `admin`; raises `ApiError`."""
        return self.server.client().request(method, path, body)

    def kubeconfig_of(self, user: str) -> Path:
        """Return a kubeconfig of `engineer` or `viewer`, who may do only what RBAC gives them."""
        return self.server.kubeconfig(user, self.namespace)

    def service_account(self, name: str) -> Path:
        """Create a service account in the namespace; return a kubeconfig with its token."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        self.request("POST", path, {"metadata": {"name": name}})
        return self.server.service_account_kubeconfig(self.namespace, name)

    def kubectl(
        self, *words: str, stdin: str | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as `admin` in the namespace."""
        command = [str(binaries.require(["kubectl"])["kubectl"]), *words]
        return subprocess.run(
            [*command, f"--kubeconfig={self.kubeconfig}"],
            input=stdin,
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
        )


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that needs the API server."""
    for item in items:
        if "kubernetes_server" in getattr(item, "fixturenames", ()):
            item.add_marker("kubernetes")


@pytest.fixture(scope="session")
def kubernetes_server() -> Iterator[ApiServer]:
    """The API server of this run."""
    try:
        programs = binaries.require(binaries.API_SERVER)
    except binaries.ProgramsMissing as exc:
        pytest.skip(str(exc))
    # Not below pytest's own directory: the path of etcd's socket must stay under 108 bytes.
    with (
        tempfile.TemporaryDirectory(prefix="exo-api-") as directory,
        ApiServer(Path(directory), programs) as server,
    ):
        yield server


@pytest.fixture
def kubernetes_api(kubernetes_server: ApiServer) -> Iterator[KubernetesApi]:
    """A fresh namespace on the API server of this run."""
    namespace = f"test-{uuid.uuid4().hex[:10]}"
    kubernetes_server.client().create_namespace(namespace)
    yield KubernetesApi(
        kubernetes_server, namespace, kubernetes_server.kubeconfig("admin", namespace)
    )
    kubernetes_server.resume_etcd()
    kubernetes_server.start_api_server()
