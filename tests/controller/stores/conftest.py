"""Every store that there is; the contract tests run over all of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from exo_inference.controller.stores.base import Store
from exo_inference.controller.stores.kubernetes import KubernetesApi, KubernetesStore
from exo_inference.controller.stores.sqlite import SqliteStore
from scripts.generate_crds import custom_resource_definitions
from scripts.kubernetes.api_server import ApiServer
from scripts.kubernetes.client import ApiError
from tests.charts.service_accounts import kubeconfig_of
from tests.kubernetes_api import KubernetesApi as Cluster

OpenStore = Callable[[], Awaitable[Store]]

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_crds(server: ApiServer) -> None:
    """Install the CRDs and wait until the server serves them all."""
    admin = server.client()
    definitions = custom_resource_definitions()
    for body in definitions.values():
        with contextlib.suppress(ApiError):  # they are there from another test
            admin.request("POST", CRDS, body)
    for body in definitions.values():
        path = f"/apis/inference.exo.dev/v1alpha1/{body['spec']['names']['plural']}"
        deadline = time.monotonic() + 60
        while not _is_served(server, path):
            assert time.monotonic() < deadline, f"{path} is not served"
            time.sleep(0.05)


def _is_served(server: ApiServer, path: str) -> bool:
    try:
        server.client().request("GET", path)
    except ApiError as exc:
        if exc.status_code not in (404, 429):
            raise
        return False
    return True


@pytest.fixture(scope="session")
def crds(kubernetes_server: ApiServer) -> None:
    install_crds(kubernetes_server)


@pytest.fixture
def cluster(kubernetes_api: Cluster, crds: None) -> Cluster:
    """A namespace of its own on a server that knows our kinds."""
    return kubernetes_api


async def open_kubernetes_store(cluster: Cluster) -> KubernetesStore:
    """Open the store as a controller does, with the rights that the chart gives it."""
    kubeconfig = kubeconfig_of("controller", cluster)
    return await KubernetesStore.open(await KubernetesApi.connect(kubeconfig))


@pytest.fixture(params=["sqlite", pytest.param("kubernetes", marks=pytest.mark.kubernetes)])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[OpenStore]:
    """Return what opens the same storage again and again; all are closed at the end."""
    opened: list[Store] = []
    cluster = request.getfixturevalue("cluster") if request.param == "kubernetes" else None

    async def open_one() -> Store:
        if cluster is None:
            opened.append(await SqliteStore.open(tmp_path / "controller.db"))
        else:
            opened.append(await open_kubernetes_store(cluster))
        return opened[-1]

    yield open_one
    for store in opened:
        await store.close()


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()
