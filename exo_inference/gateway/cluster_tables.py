"""The routing table of a cluster: made of what the Kubernetes API says, by each gateway for itself.

Deployments and keys are our custom resources, replicas the endpoints of each deployment's Service. All
three are watched, so a change is followed at once and while the API is away the table stays as it was.
Reads no Secret: keys are known by their hashes. `app.py` uses it in place of the file's watcher.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from exo_inference.errors import StoreError
from exo_inference.gateway.endpoints import doubted_replicas, service_of, sort_endpoints
from exo_inference.gateway.models.replicas import read_models
from exo_inference.gateway.table import Deployment, Table, make_deployment, make_keys, make_table
from exo_inference.kubernetes_api.client import KubernetesApi
from exo_inference.kubernetes_api.identity import Age, Claim, Claims, identify, is_uuid
from exo_inference.kubernetes_api.informer import Informer
from exo_inference.kubernetes_api.objects import CREATED_ANNOTATION, read_object, resource_uid
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART, release_names
from exo_inference.resources import (
    API_VERSION,
    PUBLIC_SCOPE,
    InferenceApiKey,
    InferenceDeployment,
)
from exo_inference.resources.states import awaits_replicas, deployment_state
from exo_inference.wire import DeploymentState, Route, RouteKey, RouteReplica

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]

GATHER_SECONDS = 0.02
"""Changes that come within this time make one table: a rollout changes many things at once."""

SETTLE_SECONDS = 1.0
"""How long a request waits for a replica that the controller calls ready already."""

RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Entry:
    """One deployment of the table; of several that claim a name the last in order has it."""

    deployment: Deployment
    is_renamed: bool
    age: Age
    served: frozenset[str] = frozenset()
    """Names of its replicas that were ready at some time and have not ended."""

    models: frozenset[str] = frozenset()
    """Names that its replicas answer to, or answered to and will again."""


class ClusterTables:
    """Implements `Tables` for one namespace.

    Args:
        api: asked for nothing before `run`.
        on_change: called with every new table.
    """

    def __init__(
        self, api: KubernetesApi, on_change: Callable[[Table], None] = lambda _: None
    ) -> None:
        self.table: Table | None = None
        self.problem: str = "the Kubernetes API was not read yet"
        self._on_change = on_change
        self._entries: dict[str, _Entry] = {}
        self._changed: set[str] = set()
        self._claims = Claims()
        self._claimed: dict[tuple[str, str], tuple[str, str]] = {}
        self._key_scopes: dict[str, str] = {}
        self._services: dict[str, str] = {}
        self._slice_services: dict[str, str] = {}
        self._has_changed = asyncio.Event()
        self._news = asyncio.Event()
        custom = f"/apis/{API_VERSION}/namespaces/{api.namespace}"
        self._deployments = Informer(
            api,
            f"{custom}/{InferenceDeployment.PLURAL}",
            key_of=resource_uid,
            on_change=self._note_deployment,
        )
        self._keys = Informer(
            api,
            f"{custom}/{InferenceApiKey.PLURAL}",
            key_of=_scope,
            on_change=self._note_key,
        )
        self._slices = Informer(
            api,
            f"/apis/discovery.k8s.io/v1/namespaces/{api.namespace}/endpointslices",
            query={"labelSelector": f"app.kubernetes.io/name={DEPLOYMENT_CHART}"},
            key_of=service_of,
            on_change=self._note_slice,
        )

    async def run(self) -> None:
        """Read everything, as soon as the API lets us, then follow all changes until cancelled."""
        informers = (self._deployments, self._keys, self._slices)
        try:
            await self._start(informers)
            while True:
                self.refresh()
                await asyncio.sleep(GATHER_SECONDS)
                await self._has_changed.wait()
        finally:
            await asyncio.gather(*(informer.close() for informer in informers))

    async def _start(self, informers: Iterable[Informer]) -> None:
        for informer in informers:
            while True:
                try:
                    await informer.start()
                    break
                except StoreError as exc:
                    if exc.message != self.problem:
                        logger.warning("cannot read routes yet: %s", exc.text)
                    self.problem = exc.message
                    await asyncio.sleep(RETRY_SECONDS)
        self.problem = ""
        self._has_changed.set()

    def refresh(self) -> None:
        """Take what has changed into a new table."""
        if self.problem or not self._has_changed.is_set():
            return
        self._has_changed.clear()
        for uid in self._changed:
            entry = self._read(uid)
            if entry is None:
                self._entries.pop(uid, None)
                for name in release_names(uid):
                    self._services.pop(name, None)
            else:
                self._entries[uid] = entry
        self._changed.clear()
        self.table = self._build(version=1 if self.table is None else self.table.version + 1)
        self._on_change(self.table)
        self._news.set()
        self._news = asyncio.Event()

    async def settle(self, deployment: Deployment) -> Deployment:
        """Return the deployment; wait a moment for replicas that are ready and not known yet.

        A deployment is called ready when its pods are, and their endpoints come a little later.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_SECONDS):
                while deployment.is_expected and not deployment.replicas:
                    await self._news.wait()
                    assert self.table is not None, "a deployment comes from a table"
                    deployment = self.table.by_id.get(deployment.id, deployment)
        return deployment

    def _note_deployment(self, item: Object) -> None:
        self._note(self._claim("deployment", self._deployments, item))
        self._note(resource_uid(item))

    def _note_key(self, item: Object) -> None:
        self._claim("key", self._keys, item)
        name, scope = item["metadata"]["name"], _scope(item)
        for each in {scope, self._key_scopes.pop(name, scope)}:  # what it leaves is closed to it
            self._note(each)
            if (named := self._deployments.get(each)) is not None:
                self._note(resource_uid(named))
        if self._keys.get(name) is not None:
            self._key_scopes[name] = scope

    def _note_slice(self, item: Object) -> None:
        name, service = item["metadata"]["name"], service_of(item)
        for each in {service, self._slice_services.pop(name, service)}:
            if each in self._services:  # else it is read when its deployment is
                self._note(self._services[each])
        if self._slices.get(name) is not None:
            self._slice_services[name] = service

    def _slices_of(self, uid: str, raw: Object) -> list[Object]:
        """Return the slices of a deployment's own Service, which its release is named as.

        Who may create a Service gives its slices labels; the name of this one is taken.
        """
        names = release_names(uid)
        installed = (raw.get("status") or {}).get("release")
        found: list[Object] = []
        for name in (installed,) if installed in names else names:
            self._services[name] = uid
            found += self._slices.by_key(name)
        return found

    def _claim(self, kind: str, informer: Informer, item: Object) -> str:
        """Take note of who has which uid, as another may have what an object asks for.

        Returns:
            What an object of this name asked for before.
        """
        meta = item["metadata"]
        slot = (kind, meta["name"])
        own, before = self._claimed.pop(slot, ("", ""))
        self._claims.drop(own)
        known = informer.get(meta["name"])
        if known is not None and known["metadata"]["uid"] == meta["uid"]:
            annotations = meta.get("annotations") or {}
            created = annotations.get(CREATED_ANNOTATION, "")
            age = Age(meta.get("creationTimestamp", ""), created, meta["name"])
            claim = Claim(meta["uid"], identify(item), age, f"{kind} {meta['name']}")
            self._claims.note(claim)
            self._claimed[slot] = (claim.own, claim.identity.uid)
        return before

    def _uid(self, item: Object) -> str:
        return self._claims.resolve(item["metadata"]["uid"])[0]

    def _note(self, uid: str) -> None:
        self._changed.add(uid)
        self._has_changed.set()

    def _build(self, version: int) -> Table:
        entries = self._entries.values()
        renamed = sorted((e for e in entries if e.is_renamed), key=lambda e: e.age, reverse=True)
        ranked = [*renamed, *(e for e in entries if not e.is_renamed)]
        deployments = [entry.deployment for entry in ranked]
        return make_table(version, deployments, make_keys(self._scoped_keys(PUBLIC_SCOPE)))

    def _read(self, uid: str) -> _Entry | None:
        """Return what is known of a deployment; None where there is none, or it is going."""
        found = [item for item in self._deployments.by_key(uid) if self._uid(item) == uid]
        if not found or _is_going(found[0]):
            return None
        stored = read_object(InferenceDeployment, found[0])
        before = self._entries.get(uid)
        resource = stored.resource if isinstance(stored.resource, InferenceDeployment) else None
        if resource is not None:
            name = resource.metadata.name
            state, details = deployment_state(resource)
            is_expected = resource.status.ready_replicas > 0
            is_coming = awaits_replicas(resource)
        else:  # of a newer version, or wrong: its replicas serve on, and its key opens it
            name = stored.name if before is None else before.deployment.name
            state, details = DeploymentState.UPDATING, stored.problem
            is_expected = is_coming = False
        endpoints = sort_endpoints(self._slices_of(uid, found[0]))
        served = (frozenset() if before is None else before.served) | endpoints.ready.keys()
        doubted = doubted_replicas(endpoints, served)
        self._tell_of_doubt(name, before, doubted)
        models = read_models(
            resource,
            endpoints,
            [*(endpoints.ready[each] for each in sorted(endpoints.ready)), *doubted],
            is_coming=is_coming,
            remembered=frozenset() if before is None else before.models,
        )
        route = Route(
            deployment_id=uid,
            name=name,
            model=models.wanted,
            state=state.value,
            state_details=details,
            keys=self._own_key(found[0], uid) + self._scoped_keys(uid) + self._named_keys(found[0]),
            replicas=models.replicas,
            draining=sorted(endpoints.draining),
            coming=is_coming,
            coming_models=tuple(models.coming),
        )
        deployment = make_deployment(
            route, is_expected=is_expected, doubted=frozenset(replica.name for replica in doubted)
        )
        served &= endpoints.ready.keys() | endpoints.unready.keys()
        return _Entry(deployment, name != stored.name, stored.age, served, models.remembered)

    def _tell_of_doubt(
        self, name: str, before: _Entry | None, doubted: Collection[RouteReplica]
    ) -> None:
        had_doubts = before is not None and bool(before.deployment.doubted)
        if doubted and not had_doubts:
            logger.warning(
                "most replicas of %s are not ready all at once: those that were are kept, and "
                "connections say which are there",
                name,
            )

    def _own_key(self, raw: Object, uid: str) -> list[RouteKey]:
        return _route_keys([(uid, raw.get("status", {}).get("keySha256", ""))])

    def _named_keys(self, raw: Object) -> list[RouteKey]:
        """Return the keys whose scope is the name of a deployment; a scope that could be an id is one."""
        name = raw["metadata"]["name"]
        return [] if name == PUBLIC_SCOPE or is_uuid(name) else self._scoped_keys(name)

    def _scoped_keys(self, scope: str) -> list[RouteKey]:
        found = [key for key in self._keys.by_key(scope) if not _is_going(key)]
        return _route_keys([(self._uid(key), key["spec"].get("sha256", "")) for key in found])


def _route_keys(found: Iterable[tuple[str, object]]) -> list[RouteKey]:
    keys = []
    for uid, sha256 in found:
        if isinstance(sha256, str) and len(sha256) == 64 and not sha256.strip("0123456789abcdef"):
            keys.append(RouteKey(id=uid, sha256=sha256))
    return keys


def _scope(key: Object) -> str:
    return str(key.get("spec", {}).get("scope", ""))


def _is_going(item: Object) -> bool:
    return "deletionTimestamp" in item["metadata"]
