"""The gateway's table of a cluster: what watches tell, and a real API server whose changes it follows."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from exo_inference.gateway.cluster_tables import ClusterTables
from exo_inference.gateway.table import Deployment, Table
from exo_inference.kubernetes_api.client import KubernetesApi as Client
from exo_inference.kubernetes_api.identity import UID_ANNOTATION
from exo_inference.kubernetes_api.objects import NAME_ANNOTATION
from scripts.free_ports import free_port
from tests.charts.service_accounts import kubeconfig_of
from tests.controller.stores.conftest import install_crds
from tests.gateway.test_endpoints import endpoint
from tests.gateway.test_pod_environment import ENVIRONMENT
from tests.kubernetes_api import KubernetesApi

GROUP = "inference.exo.dev/v1alpha1"
MERGE = "application/merge-patch+json"


def sha256(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


# -- on a real API server


class Cluster:
    """Writes what controllers of the cluster would write."""

    def __init__(self, api: KubernetesApi) -> None:
        self.api = api

    def path(self, plural: str, name: str = "", group: str = GROUP) -> str:
        return f"/apis/{group}/namespaces/{self.api.namespace}/{plural}/{name}".rstrip("/")

    def patch(self, path: str, body: object) -> Any:
        return self.api.client.request("PATCH", path, body, content_type=MERGE)

    def create_deployment(self, name: str, key: str, **annotations: str) -> str:
        body = {
            "apiVersion": GROUP,
            "kind": "InferenceDeployment",
            "metadata": {"name": name, "annotations": annotations},
            "spec": {"model": "exo/tiny-chat", "gpuType": "cpu"},
        }
        made = self.api.request("POST", self.path("inferencedeployments"), body)
        self.set_status(name, keySha256=sha256(key))
        return str(made["metadata"]["uid"])

    def set_status(self, name: str, **status: Any) -> None:
        self.patch(self.path("inferencedeployments", name) + "/status", {"status": status})

    def create_key(self, name: str, scope: str, value: str) -> None:
        spec = {"displayName": name, "scope": scope, "sha256": sha256(value)}
        body = {
            "apiVersion": GROUP,
            "kind": "InferenceApiKey",
            "metadata": {"name": name},
            "spec": spec,
        }
        self.api.request("POST", self.path("inferenceapikeys"), body)

    def set_endpoints(self, uid: str, *endpoints: dict[str, Any], port: int = 8000) -> None:
        self.set_slice(f"exo-d-{uid}", uid, *endpoints, port=port)

    def set_slice(
        self, service: str, uid: str, *endpoints: dict[str, Any], port: int = 8000
    ) -> None:
        """Write the slice of a Service, whose labels name a deployment."""
        path = self.path("endpointslices", service, "discovery.k8s.io/v1")
        owner = {"apiVersion": "v1", "kind": "Service", "name": service, "controller": True}
        body = {
            "metadata": {
                "name": service,
                "labels": {
                    "app.kubernetes.io/name": "inference-deployment",
                    "inference.exo.dev/deployment-uid": uid,
                    "kubernetes.io/service-name": service,
                },
                "ownerReferences": [{**owner, "uid": str(uuid.uuid5(uuid.NAMESPACE_DNS, service))}],
            },
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
            "endpoints": list(endpoints),
        }
        try:
            self.patch(path, body)
        except Exception:
            self.api.request("POST", path.rpartition("/")[0], body)


@pytest.fixture
def cluster(kubernetes_api: KubernetesApi) -> Cluster:
    install_crds(kubernetes_api.server)
    return Cluster(kubernetes_api)


@asynccontextmanager
async def following(cluster: Cluster) -> AsyncIterator[ClusterTables]:
    client = await Client.connect(kubeconfig_of("gateway", cluster.api))
    tables = ClusterTables(client)
    task = asyncio.create_task(tables.run())
    try:
        yield tables
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()


async def until(
    tables: ClusterTables, is_so: Callable[[Table], bool], *, seconds: float = 60
) -> Table:
    async with asyncio.timeout(seconds):
        while tables.table is None or not is_so(tables.table):
            await asyncio.sleep(0.005)
    return tables.table


def replicas(table: Table, uid: str) -> list[str]:
    found = table.by_id.get(uid)
    return [] if found is None else [replica.name for replica in found.replicas]


async def test_the_table_has_deployments_keys_and_ready_replicas(cluster: Cluster) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    cluster.create_key("scoped", uid, "sk-scoped")
    cluster.create_key("all", "public", "sk-public")
    cluster.set_endpoints(
        uid, endpoint("a", ready=True), endpoint("b", "10.0.0.2", ready=False, terminating=True)
    )
    async with following(cluster) as tables:
        table = await until(tables, lambda found: bool(found.public_keys))
    found = table.find("chat")
    assert isinstance(found, Deployment)
    assert found is table.find(uid)
    assert {key.digest.hex() for key in found.keys} == {sha256("sk-own"), sha256("sk-scoped")}
    assert [key.digest.hex() for key in table.public_keys] == [sha256("sk-public")]
    assert [(r.name, r.address) for r in found.replicas] == [("a", "http://10.0.0.1:8000")]
    assert found.draining == {"b"}


async def test_changes_of_endpoints_are_followed_within_a_second(cluster: Cluster) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    async with following(cluster) as tables:
        await until(tables, lambda found: uid in found.by_id)
        took = []
        for names in (["a"], ["a", "b"], ["b"], []):
            await asyncio.to_thread(
                cluster.set_endpoints, uid, *(endpoint(name, ready=True) for name in names)
            )
            written = time.monotonic()
            await until(tables, lambda found, names=names: replicas(found, uid) == names)
            took.append(time.monotonic() - written)
    assert statistics.median(took) < 1.0  # one of them may have met a busy machine


async def test_replicas_stay_when_a_cluster_that_was_away_calls_them_not_ready(
    cluster: Cluster,
) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    async with following(cluster) as tables:
        # One after the other, as the node controller does it; "new" was never ready.
        for not_ready in ("", "a", "ab", "abc"):
            found = [endpoint(name, ready=name not in not_ready) for name in "abc"]
            await asyncio.to_thread(
                cluster.set_endpoints, uid, *found, endpoint("new", ready=False)
            )
            kept = list("abc") if len(not_ready) != 1 else ["b", "c"]
            await until(tables, lambda table, kept=kept: sorted(replicas(table, uid)) == kept)
        # All three were there before the last change came, too.
        await until(tables, lambda table: table.by_id[uid].doubted == frozenset("abc"))
        ended = [endpoint(name, ready=False, terminating=True) for name in "abc"]
        await asyncio.to_thread(cluster.set_endpoints, uid, *ended)
        await until(tables, lambda table: replicas(table, uid) == [])


async def test_a_label_that_names_another_deployment_routes_nothing_to_it(
    cluster: Cluster,
) -> None:
    """A Service's labels are copied to its slices, and those of a slice can be edited."""
    uids = [cluster.create_deployment(name, f"sk-{name}") for name in ("mine", "yours")]
    for uid, name, address in zip(uids, "ab", ("10.0.0.1", "10.0.0.2"), strict=True):
        cluster.set_endpoints(uid, endpoint(name, address, ready=True))
    mine, yours = uids
    async with following(cluster) as tables:
        await until(
            tables, lambda table: [replicas(table, each) for each in uids] == [["a"], ["b"]]
        )
        cluster.set_slice("any-service", yours, endpoint("thief", ready=True))
        path = cluster.path("endpointslices", f"exo-d-{mine}", "discovery.k8s.io/v1")
        for labels in (
            {"inference.exo.dev/deployment-uid": yours},
            {"inference.exo.dev/deployment-uid": None},
        ):
            cluster.patch(path, {"metadata": {"labels": labels}})
            cluster.set_status("yours", readyReplicas=1)
            cluster.set_endpoints(yours, endpoint("b", ready=True), endpoint("c", ready=True))
            await until(tables, lambda table: replicas(table, yours) == ["b", "c"])
            cluster.set_endpoints(yours, endpoint("b", ready=True))
            found = await until(tables, lambda table: replicas(table, yours) == ["b"])
            assert replicas(found, mine) == ["a"]
        # What it was made for, too: then it is nobody's.
        labels = {"kubernetes.io/service-name": f"exo-d-{yours}"}
        cluster.patch(path, {"metadata": {"labels": labels}})
        found = await until(tables, lambda table: replicas(table, mine) == [])
        assert replicas(found, yours) == ["b"]


async def test_only_the_service_that_was_installed_counts(cluster: Cluster) -> None:
    """Of the two names that a release may have, somebody may have made a Service of the other."""
    uid = cluster.create_deployment("chat", "sk-own")
    cluster.set_slice(f"exo-{uid}", uid, endpoint("old", ready=True))
    async with following(cluster) as tables:
        await until(tables, lambda table: replicas(table, uid) == ["old"])
        cluster.set_status("chat", release=f"exo-d-{uid}")
        cluster.set_endpoints(uid, endpoint("new", ready=True))
        await until(tables, lambda table: replicas(table, uid) == ["new"])
        cluster.set_status("chat", release=f"exo-{uid}")
        await until(tables, lambda table: replicas(table, uid) == ["old"])


async def test_a_deployment_that_is_going_gets_no_more_requests(cluster: Cluster) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    path = cluster.path("inferencedeployments", "chat")
    cluster.patch(path, {"metadata": {"finalizers": ["inference.exo.dev/replicas"]}})
    cluster.set_endpoints(uid, endpoint("a", ready=True))
    async with following(cluster) as tables:
        await until(tables, lambda found: replicas(found, uid) == ["a"])
        await asyncio.to_thread(cluster.api.request, "DELETE", path)
        await until(tables, lambda found: not found.by_id)
    cluster.patch(path, {"metadata": {"finalizers": None}})


async def test_the_scope_of_a_key_may_be_the_name_of_its_deployment(cluster: Cluster) -> None:
    """Which Git can know; the key may be there first."""
    cluster.create_key("first", "chat", "sk-first")
    cluster.create_key("other", "chat2", "sk-other")
    async with following(cluster) as tables:
        uid = await asyncio.to_thread(cluster.create_deployment, "chat", "sk-own")
        await asyncio.to_thread(cluster.create_key, "later", "chat", "sk-later")
        wanted = {sha256(value) for value in ("sk-own", "sk-first", "sk-later")}

        def is_so(found: Table) -> bool:
            keys = found.by_id[uid].keys if uid in found.by_id else ()
            return {key.digest.hex() for key in keys} == wanted

        await until(tables, is_so)
        path = cluster.path("inferenceapikeys", "first")
        await asyncio.to_thread(cluster.api.request, "DELETE", path)
        wanted.remove(sha256("sk-first"))
        await until(tables, is_so)


async def test_a_revoked_key_opens_nothing(cluster: Cluster) -> None:
    cluster.create_key("all", "public", "sk-public")
    async with following(cluster) as tables:
        await until(tables, lambda found: bool(found.public_keys))
        path = cluster.path("inferenceapikeys", "all")
        await asyncio.to_thread(cluster.api.request, "DELETE", path)
        await until(tables, lambda found: not found.public_keys)


async def test_a_key_that_moved_and_was_deleted_then_opens_nothing(cluster: Cluster) -> None:
    uids = [cluster.create_deployment(name, f"sk-{name}") for name in "ab"]
    cluster.create_key("moves", uids[0], "sk-moves")
    path = cluster.path("inferenceapikeys", "moves")

    def opened(table: Table) -> list[str]:
        wanted = sha256("sk-moves")
        return [d.name for d in table.by_id.values() if wanted in {k.digest.hex() for k in d.keys}]

    async with following(cluster) as tables:
        await until(tables, lambda table: opened(table) == ["a"])
        await asyncio.to_thread(cluster.patch, path, {"spec": {"scope": uids[1]}})
        await until(tables, lambda table: opened(table) == ["b"])
        await asyncio.to_thread(cluster.api.request, "DELETE", path)
        await until(tables, lambda table: opened(table) == [])


async def test_a_name_belongs_to_its_own_object_before_one_that_was_renamed(
    cluster: Cluster,
) -> None:
    renamed = cluster.create_deployment("old", "sk-1", **{NAME_ANNOTATION: "chat"})
    async with following(cluster) as tables:
        table = await until(tables, lambda found: "chat" in found.by_name)
        assert table.by_name["chat"].id == renamed
        own = await asyncio.to_thread(cluster.create_deployment, "chat", "sk-2")
        table = await until(tables, lambda found: own in found.by_id)
        assert table.by_name["chat"].id == own


async def test_who_asks_for_the_uid_of_another_gets_none_of_its_requests(cluster: Cluster) -> None:
    chosen = "7d3b9f0e-5a55-4b8b-9a5e-0d1f6c1d2a11"
    cluster.create_deployment("chat", "sk-own", **{UID_ANNOTATION: f"chat/{chosen}"})
    cluster.set_status("chat", uid=chosen)
    cluster.set_endpoints(chosen, endpoint("a", ready=True))
    own = cluster.create_deployment("first", "sk-1", **{UID_ANNOTATION: f"first/{chosen}"})
    async with following(cluster) as tables:
        table = await until(tables, lambda found: replicas(found, chosen) == ["a"])
        assert [key.digest.hex() for key in table.by_id[chosen].keys] == [sha256("sk-own")]
        path = cluster.path("inferencedeployments", "chat")
        body = {"metadata": {"annotations": {UID_ANNOTATION: f"chat/{own}"}}}
        await asyncio.to_thread(cluster.patch, path, body)  # another one, later
        await asyncio.to_thread(
            cluster.create_deployment, "last", "sk-2", **{UID_ANNOTATION: f"last/{chosen}"}
        )
        await asyncio.to_thread(cluster.set_endpoints, chosen, endpoint("b", ready=True))
        table = await until(tables, lambda found: replicas(found, chosen) == ["b"])
        assert [key.digest.hex() for key in table.by_id[chosen].keys] == [sha256("sk-own")]
        assert table.by_name["chat"].id == chosen


async def test_routes_stay_while_the_api_is_away_and_go_on_afterwards(cluster: Cluster) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    cluster.set_endpoints(uid, endpoint("a", ready=True))
    async with following(cluster) as tables:
        await until(tables, lambda found: replicas(found, uid) == ["a"])
        cluster.api.server.stop_api_server()
        await asyncio.sleep(0.5)
        assert tables.table is not None
        assert replicas(tables.table, uid) == ["a"]
        cluster.api.server.start_api_server()  # here, as it ends with the thread that starts it
        await asyncio.to_thread(cluster.set_endpoints, uid, endpoint("b", ready=True))
        await until(tables, lambda found: replicas(found, uid) == ["b"], seconds=30)


async def test_a_request_waits_a_moment_for_replicas_that_are_called_ready(
    cluster: Cluster,
) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    cluster.set_status("chat", readyReplicas=1)
    async with following(cluster) as tables:
        table = await until(tables, lambda found: uid in found.by_id)
        waiting = asyncio.create_task(tables.settle(table.by_id[uid]))
        await asyncio.to_thread(cluster.set_endpoints, uid, endpoint("a", ready=True))
        assert [replica.name for replica in (await waiting).replicas] == ["a"]


# -- the process


@pytest.fixture
def gateway(cluster: Cluster, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A gateway process as the chart starts it; its ports are found in its log."""
    ports = {name: free_port() for name in ("EXO_LISTEN_PORT", "EXO_METRICS_PORT")}
    environment = {
        **os.environ,
        **ENVIRONMENT,
        **{name: str(port) for name, port in ports.items()},
        "EXO_DRAIN_SECONDS": "20",
        "TMPDIR": str(tmp_path),
    }
    command = [sys.executable, "-m", "exo_inference.gateway", "--platform=kubernetes"]
    kubeconfig = kubeconfig_of("gateway", cluster.api)
    command += [f"--namespace={cluster.api.namespace}", f"--kubeconfig={kubeconfig}"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
    yield {
        "process": process,
        "url": f"http://127.0.0.1:{ports['EXO_LISTEN_PORT']}",
        "admin": f"http://127.0.0.1:{ports['EXO_METRICS_PORT']}",
    }
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=10)


def status_of(url: str, key: str | None = None, body: object = None) -> tuple[int, str]:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, headers=headers, data=data)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as exc:
        return exc.code, exc.read().decode()
    except OSError as exc:
        return 0, str(exc)


def wait_for(is_so: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def test_the_process_serves_its_probes_and_routes_and_ends_in_order(
    cluster: Cluster, gateway: dict[str, Any]
) -> None:
    uid = cluster.create_deployment("chat", "sk-own")
    wait_for(lambda: status_of(f"{gateway['admin']}/readyz")[0] == 200)
    assert status_of(f"{gateway['admin']}/healthz")[0] == 200
    assert "exo_gateway_table_version" in status_of(f"{gateway['admin']}/metrics")[1]
    wait_for(lambda: status_of(f"{gateway['url']}/{uid}/v1/models", "sk-own")[0] == 503)
    assert status_of(f"{gateway['url']}/{uid}/v1/models", "sk-wrong")[0] == 401
    gateway["process"].send_signal(signal.SIGTERM)
    _, said = gateway["process"].communicate(timeout=10)
    assert gateway["process"].returncode == 0
    for line in said.splitlines():
        assert {"time", "level", "message"} <= json.loads(line).keys()
