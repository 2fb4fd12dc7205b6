"""What runs the replicas of a release: a Deployment, or a LeaderWorkerSet where a replica spans nodes.

`platform.py` reads both as Deployments, so that steps, settling and roll-backs are the same; what they
write down goes to the object itself. The chart decides by `multiNode.size` which of the two there is.
A LeaderWorkerSet has no deadline, so an update that neither fails nor becomes ready waits on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from exo_inference.errors import ConfigurationError
from exo_inference.kubernetes_api.client import ApiRefusal, KubernetesApi, object_path
from exo_inference.kubernetes_api.informer import Informer, Object
from exo_inference.platforms.kubernetes.names import (
    DEPLOYMENT_CHART,
    NODES_ANNOTATION,
    ROLE_LABEL,
    SPEC_LABEL,
    UID_LABEL,
    is_part,
    label,
    release_names,
)

_DEPLOYMENTS, _WORKER_SETS = "deployments", "leaderworkersets"
_API_GROUPS = {_DEPLOYMENTS: "apps/v1", _WORKER_SETS: "leaderworkerset.x-k8s.io/v1"}


class Workloads:
    """Follows the workloads of all releases.

    Args:
        api: the Kubernetes API.
        on_change: called with every workload that came, changed or went.
        spans_nodes: the cluster has LeaderWorkerSet.
    """

    def __init__(
        self, api: KubernetesApi, on_change: Callable[[Object], None], *, spans_nodes: bool
    ) -> None:
        self._api = api
        self.kinds = dict(_API_GROUPS) if spans_nodes else {_DEPLOYMENTS: "apps/v1"}
        self._followed = {
            plural: Informer(
                api,
                object_path(api, plural, group=group),
                query={"labelSelector": f"app.kubernetes.io/name={DEPLOYMENT_CHART}"},
                key_of=lambda item: label(item, UID_LABEL),
                on_change=on_change,
            )
            for plural, group in self.kinds.items()
        }
        self.informers = tuple(self._followed.values())

    async def start(self) -> None:
        """Read everything once, then follow the changes in the background.

        Raises:
            ConfigurationError: the cluster has no LeaderWorkerSet, and was said to have it.
            StoreError: the API was away, or refuses.
        """
        for plural, informer in self._followed.items():
            try:
                await informer.start()
            except ApiRefusal as exc:
                if exc.status_code != 404 or plural != _WORKER_SETS:
                    raise
                raise ConfigurationError(
                    "the cluster does not have LeaderWorkerSet, and features.leaderWorkerSet is on",
                    hint="Install it, or switch features.leaderWorkerSet of the chart exo-inference off.",
                ) from exc

    def find(self, uid: str) -> Object | None:
        """Return what runs a deployment's replicas, as a Deployment."""
        for plural in self._followed:
            found = self._of_releases(plural, uid)
            if found:
                return found[0] if plural == _DEPLOYMENTS else as_deployment(found[0])
        return None

    def known_keys(self) -> set[str]:
        """Return the uids of all deployments that have a workload."""
        known = {key for informer in self.informers for key in informer.known_keys()}
        return {uid for uid in known if self.find(uid) is not None}

    def _of_releases(self, plural: str, uid: str) -> list[Object]:
        """Return what our release of a deployment made; the chart can be installed by hand, too."""
        names = release_names(uid)
        found = self._followed[plural].by_key(uid)
        return [
            item for item in found if item["metadata"]["name"] in names and is_part(item, names)
        ]

    async def merge(self, uid: str, body: Mapping[str, Any]) -> None:
        """Change fields of what runs a deployment's replicas, where there is anything.

        Raises:
            StoreError
        """
        for plural, informer in self._followed.items():
            for item in self._of_releases(plural, uid)[:1]:
                path = self._path(plural, item["metadata"]["name"])
                informer.observe_answer(await self._api.merge(path, body))

    async def refresh(self, release: str, values: Mapping[str, Any]) -> None:
        """Read what Helm wrote, so that the next look does not take the old for the present.

        Raises:
            StoreError
        """
        plural = _WORKER_SETS if nodes_of(values) > 1 else _DEPLOYMENTS
        answer = await self._api.get(self._path(plural, release))
        self._followed[plural].observe_answer(answer)

    async def restate(self, release: str, spec_hash: str, replicas: int | None) -> None:
        """Write again what a hand may have changed of a LeaderWorkerSet.

        Helm compares a custom resource with its own last record, not with what is there.

        Raises:
            StoreError
        """
        body: dict[str, Any] = {"metadata": {"labels": {SPEC_LABEL: spec_hash}}}
        if replicas is not None:
            body["spec"] = {"replicas": replicas}
        answer = await self._api.merge(self._path(_WORKER_SETS, release), body)
        self._followed[_WORKER_SETS].observe_answer(answer)

    def _path(self, plural: str, name: str) -> str:
        return object_path(self._api, plural, name, group=self.kinds[plural])


def nodes_of(values: Mapping[str, Any]) -> int:
    """Return how many pods one replica is by the values of its release."""
    return int(values.get("multiNode", {}).get("size", 1))


def as_deployment(worker_set: Object) -> Object:
    """Return a LeaderWorkerSet in the form of a Deployment; the pods are those that serve."""
    spec = worker_set["spec"]
    template = spec["leaderWorkerTemplate"]
    rolling = spec.get("rolloutStrategy", {}).get("rollingUpdateConfiguration", {})
    metadata = dict(worker_set["metadata"])
    annotations = metadata.get("annotations", {})
    metadata["annotations"] = {**annotations, NODES_ANNOTATION: str(template.get("size", 1))}
    return {
        "metadata": metadata,
        "spec": {
            "replicas": spec.get("replicas"),
            "strategy": {"rollingUpdate": rolling},
            "template": template["leaderTemplate"],
        },
    }


def is_worker(pod: Mapping[str, Any]) -> bool:
    """Whether a pod works for another one, which is the replica."""
    return label(pod, ROLE_LABEL) == "worker"
