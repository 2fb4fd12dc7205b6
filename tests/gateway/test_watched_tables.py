"""The gateway's table of a cluster, from what watches tell in the order of the calls."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest
from kubernetes.aio.client.api_client import ApiClient
from kubernetes.aio.client.configuration import Configuration

from exo_inference.gateway.cluster_tables import ClusterTables
from exo_inference.gateway.keys import authorize
from exo_inference.kubernetes_api.client import KubernetesApi as Client
from tests.gateway.test_endpoints import endpoint


def sha256(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


class Told:
    """A table whose watches are told by the test, in the order of the calls."""

    def __init__(self) -> None:
        self.tables = ClusterTables(Client(ApiClient(Configuration()), "exo"))
        self.tables.problem = ""
        self._version = 0

    def deployment(self, name: str, model: str = "org/m", **status: Any) -> str:
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        item = self._object(name, uid, {"model": model, "gpuType": "cpu"})
        item["status"] = status
        self.tables._deployments.observe(item)
        return uid

    def key(self, scope: str, value: str = "sk-1") -> dict[str, Any]:
        uid = str(uuid.uuid5(uuid.NAMESPACE_DNS, "key"))
        spec = {"displayName": "key", "scope": scope, "sha256": sha256(value)}
        item = self._object("key", uid, spec)
        self.tables._keys.observe(item)
        return item

    def endpoints(self, uid: str, *endpoints: dict[str, Any]) -> None:
        item = self._object(f"exo-d-{uid}", uid, {})
        name = item["metadata"]["name"]
        item["metadata"]["labels"] = {"kubernetes.io/service-name": name}
        item["metadata"]["ownerReferences"] = [{"kind": "Service", "name": name}]
        self.tables._slices.observe({**item, "endpoints": list(endpoints)})

    def by_model(self, uid: str) -> dict[str, str]:
        """Return which replicas answer to each name, where they are told apart."""
        self.tables.refresh()
        assert self.tables.table is not None
        found = self.tables.table.by_id[uid].by_model
        return {name: "".join(replica.name for replica in each) for name, each in found.items()}

    def opened(self) -> dict[str, list[str]]:
        """Return the keys that open each deployment, and all of them."""
        self.tables.refresh()
        table = self.tables.table
        assert table is not None
        keys = {d.name: d.keys for d in table.by_id.values()} | {"public": table.public_keys}
        return {name: [key.digest.hex() for key in found] for name, found in keys.items()}

    def _object(self, name: str, uid: str, spec: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        metadata = {
            "name": name,
            "uid": uid,
            "resourceVersion": str(self._version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        return {"apiVersion": "inference.exo.dev/v1alpha1", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("by_name", [False, True])
def test_a_key_whose_scope_moves_opens_only_what_it_names_now(by_name: bool) -> None:
    told = Told()
    uids = {name: told.deployment(name) for name in ("a", "b")}
    scopes = {name: name if by_name else uid for name, uid in uids.items()}
    old, new = [sha256("sk-1")], [sha256("sk-2")]
    told.key(scopes["a"])
    assert told.opened() == {"a": old, "b": [], "public": []}
    told.key(scopes["b"], "sk-2")
    assert told.opened() == {"a": [], "b": new, "public": []}
    told.key("public")
    assert told.opened() == {"a": [], "b": [], "public": old}
    told.key(scopes["a"])
    last = told.key(scopes["b"])  # twice before the table is made
    assert told.opened() == {"a": [], "b": old, "public": []}
    told.tables._keys.observe_deletion(last)
    assert told.opened() == {"a": [], "b": [], "public": []}


@pytest.mark.parametrize("scope", ["its own", "by name", "public"])
def test_a_key_with_the_hash_of_a_deployments_own_takes_none_of_its_usage(scope: str) -> None:
    """The hash is in the status, and who may make keys may choose one."""
    told = Told()
    uid = told.deployment("chat", keySha256=sha256("sk-own"))
    told.key({"its own": uid, "by name": "chat"}.get(scope, scope), "sk-own")
    told.tables.refresh()
    assert told.tables.table is not None
    deployment, key_id = authorize("sk-own", told.tables.table, "chat")
    assert (deployment.id, key_id) == (uid, uid)


def test_replicas_are_told_apart_while_the_model_of_a_deployment_is_replaced() -> None:
    told = Told()
    old = {"name": "a", "state": "ready", "models": ["org/m"]}
    new = {"name": "b", "state": "ready"}
    uid = told.deployment("chat", replicas=[{"name": "a", "state": "ready"}])
    told.endpoints(uid, endpoint("a", ready=True))
    assert told.by_model(uid) == {}
    told.deployment("chat", "org/new", replicas=[old, {"name": "b", "state": "starting"}])
    told.endpoints(uid, endpoint("a", ready=True), endpoint("b", ready=False))
    assert told.by_model(uid) == {}
    told.endpoints(uid, endpoint("a", ready=True), endpoint("b", ready=True))
    assert told.by_model(uid) == {"org/m": "a", "org/new": "b"}
    told.deployment("chat", "org/new", replicas=[old, new])
    told.endpoints(uid, endpoint("a", ready=True), endpoint("b", ready=False))
    assert told.by_model(uid) == {"org/m": "a", "org/new": ""}  # it served, and comes back
    told.endpoints(uid, endpoint("a", ready=False, terminating=True), endpoint("b", ready=True))
    assert told.by_model(uid) == {}
