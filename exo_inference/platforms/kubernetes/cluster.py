"""One cluster as this process sees it: informers, Helm, and the jobs on releases.

`platform.py` and `models.py` share it. One watch per kind for the whole namespace, so that a look at
a deployment asks the API for nothing, however many there are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from exo_inference.errors import PlatformError, StoreError
from exo_inference.kubernetes_api.client import KubernetesApi, object_path
from exo_inference.kubernetes_api.informer import Informer, Object
from exo_inference.platforms.kubernetes.diagnosis import event_time
from exo_inference.platforms.kubernetes.direct_install import Installer
from exo_inference.platforms.kubernetes.engine_probes import Endpoints
from exo_inference.platforms.kubernetes.helm import Helm, HelmFailed
from exo_inference.platforms.kubernetes.jobs import Jobs
from exo_inference.platforms.kubernetes.names import (
    DEPLOYMENT_CHART,
    MODEL_CHART,
    MODEL_UID_LABEL,
    SPEC_LABEL,
    UID_LABEL,
    label,
)
from exo_inference.platforms.kubernetes.nodes import GpuNode, capacity_of, gpu_nodes
from exo_inference.platforms.kubernetes.records import (
    PENDING,
    Owner,
    Revision,
    discard_pending,
    find_cut_off,
    find_owner,
    list_revisions,
    list_unfinished,
    owner_of,
)
from exo_inference.platforms.kubernetes.release_parts import Parts
from exo_inference.platforms.kubernetes.settings import KubernetesSettings
from exo_inference.platforms.kubernetes.workloads import Workloads

_TELLING_EVENTS = frozenset({"Failed", "Killing", "FailedMount", "FailedAttachVolume"})
"""Reasons of events that `diagnosis.py` reads; the others are not kept."""

_COUNT_SECONDS = 1.0
"""Every pod changes what is free, and counting that on many nodes for each would slow a burst."""

_TAIL_LINES = 300
_TAIL_BYTES = 65536
_MAX_TAILS = 500


class Cluster:
    """The cluster. `start` before anything else, `close` at the end.

    Args:
        api: the Kubernetes API.
        settings: of the platform.
        on_change: called with a deployment's or a model's uid when something of it changed.
    """

    def __init__(
        self,
        api: KubernetesApi,
        settings: KubernetesSettings,
        on_change: Callable[[str], None] = lambda uid: None,
    ) -> None:
        self.api = api
        self.settings = settings
        self.helm = Helm(settings, api.namespace)
        self.installer = Installer(api)
        self.jobs = Jobs(self._on_job_done)
        self.endpoints = Endpoints()
        self._on_change = on_change
        self._on_capacity: Callable[[], None] = lambda: None
        self._capacities: dict[str, tuple[str, ...]] = {}
        self._uids: dict[str, str] = {}
        self._gpu_nodes: Sequence[GpuNode] = ()
        self._counted_at = float("-inf")
        self._stuck: set[str] | None = None
        self._owners: dict[str, Owner] = {}
        self._tails: dict[tuple[str, int], tuple[str, ...]] = {}
        self.pods = Informer(api, object_path(api, "pods"), key_of=_pod_key, on_change=self._tell)
        self.events = Informer(
            api,
            object_path(api, "events"),
            query={"fieldSelector": "involvedObject.kind=Pod"},
            key_of=lambda event: str(event["involvedObject"].get("name", "")),
            keep=lambda event: event.get("reason") in _TELLING_EVENTS,
        )
        self.nodes = Informer(api, "/api/v1/nodes", on_change=self._note_capacity, optional=True)
        self.workloads = Workloads(api, self._tell, spans_nodes=settings.values.spans_nodes)
        self.downloads = Informer(
            api,
            object_path(api, "jobs", group="batch/v1"),
            query={"labelSelector": f"app.kubernetes.io/name={MODEL_CHART}"},
            key_of=lambda item: label(item, MODEL_UID_LABEL),
            on_change=self._tell,
        )
        self.claims = Informer(
            api,
            object_path(api, "persistentvolumeclaims"),
            query={"labelSelector": f"app.kubernetes.io/name={MODEL_CHART}"},
            key_of=lambda item: label(item, MODEL_UID_LABEL),
            on_change=self._tell,
        )
        self.parts = Parts(api, self._tell)
        self._informers = (
            self.pods,
            self.events,
            self.nodes,
            self.downloads,
            self.claims,
            *self.workloads.informers,
            *self.parts.informers,
        )

    async def start(self) -> None:
        """Read the cluster once and follow it from then on.

        Raises:
            StoreError: it cannot be read.
            ConfigurationError: a chart or LeaderWorkerSet is not there.
        """
        for chart in (DEPLOYMENT_CHART, MODEL_CHART):
            await asyncio.to_thread(self.helm.chart_version, chart)
        await asyncio.to_thread(self.settings.work_dir.mkdir, 0o700, parents=True, exist_ok=True)
        await self.workloads.start()
        others = (each for each in self._informers if each not in self.workloads.informers)
        await asyncio.gather(*(informer.start() for informer in others))

    async def stop_work(self) -> None:
        """Stop all work on releases, as one must who is no longer the leader; go on looking."""
        await self.jobs.close()
        self._stuck = None

    async def close(self) -> None:
        """Stop everything. What runs on the cluster goes on."""
        await self.stop_work()
        await asyncio.gather(*(informer.close() for informer in self._informers))
        await self.endpoints.close()

    def watch_capacity(self, tell: Callable[[], None]) -> None:
        """Have something called when a node comes, goes, or offers something else."""
        self._on_capacity = tell

    def gpu_nodes(self) -> Sequence[GpuNode]:
        """Return the nodes with GPUs and what is free on them, as of at most a second ago."""
        now = time.monotonic()
        if now - self._counted_at >= _COUNT_SECONDS:
            self._gpu_nodes = gpu_nodes(self.nodes.all(), self.pods.all())
            self._counted_at = now
        return self._gpu_nodes

    def pod_events(self, pod: Object) -> list[Object]:
        """Return what is known to have happened to a pod, oldest first."""
        return sorted(self.events.by_key(pod["metadata"]["name"]), key=event_time)

    def node_of(self, pod: Object) -> Object | None:
        """Return the node that a pod is on, where the controller may see nodes."""
        name = pod["spec"].get("nodeName")
        return self.nodes.get(name) if name else None

    def remember(self, release: str, uid: str) -> None:
        """Take note whose release it is, to tell when its job ended."""
        self._uids[release] = uid

    async def is_stuck(self, release: str) -> bool:
        """Whether a Helm was cut off on a release before this process began to work on releases.

        Raises:
            PlatformError: Helm's records cannot be read.
        """
        if self._stuck is None:
            try:
                self._stuck = await find_cut_off(self.api)
            except StoreError as exc:
                raise PlatformError(f"cannot read Helm's records: {exc.message}") from exc
        return release in self._stuck

    async def unstick(self, release: str, uid: str) -> None:
        """Clear what a Helm that was cut off left; the release has to be upgraded afterwards.

        The hash on the Deployment goes first: what it tells of may be there in part only, and if this
        is killed too, the next one must still see that there is work to do.
        """
        self.helm.check_may_begin()
        await self.workloads.merge(uid, {"metadata": {"labels": {SPEC_LABEL: None}}})
        self.helm.check_may_begin()  # what is pending is another leader's by now
        await discard_pending(self.api, release)
        if self._stuck is not None:
            self._stuck.discard(release)

    async def upgrade(
        self, release: str, uid: str, chart: str, values: Any, *, reuse: bool = False
    ) -> None:
        """Install or upgrade a release; what is refused is undone.

        Raises:
            HelmFailed: also where a release of this name is not ours.
            StoreError
        """
        found = await list_revisions(self.api, release)
        self._refuse_foreign(release, Owner(chart, uid), found)
        self.helm.check_may_begin()
        is_first = not found and not reuse and chart == DEPLOYMENT_CHART
        if is_first and await self.installer.try_install(release, chart, values):
            return
        await self._upgrade_by_helm(release, uid, chart, values, reuse=reuse)
        if is_first:
            await self.installer.note(release, chart, values)

    async def _upgrade_by_helm(
        self, release: str, uid: str, chart: str, values: Any, *, reuse: bool
    ) -> None:
        if await self.is_stuck(release):
            await self.unstick(release, uid)
        try:
            await self.helm.upgrade(release, chart, values, reuse=reuse)
        except HelmFailed as exc:
            if exc.pending:
                await self.unstick(release, uid)
                await self.helm.upgrade(release, chart, values, reuse=reuse)
                return
            if not exc.transient:
                await self._undo(release)
            raise

    async def rollback(self, release: str, uid: str, revision: int) -> None:
        """Bring a release back to a revision.

        Unlike an upgrade, Helm's rollback does not mind the record of one that was killed, and leaves
        it pending for ever; so it is looked for here.

        Raises:
            HelmFailed
            StoreError
        """
        found = await list_revisions(self.api, release)
        self._refuse_foreign(release, Owner(DEPLOYMENT_CHART, uid), found)
        if await self.is_stuck(release) or any(entry.status in PENDING for entry in found):
            await self.unstick(release, uid)
        await self.helm.rollback(release, revision)

    async def uninstall(self, release: str, uid: str, chart: str) -> None:
        """Remove a release, unless it is not ours or gone already.

        Raises:
            HelmFailed
            StoreError
        """
        found = await list_revisions(self.api, release)
        if find_owner(found, release) == Owner(chart, uid):
            await self.helm.uninstall(release)

    def begin_while(self, may_begin: Callable[[], bool]) -> None:
        """Begin changes of releases only while this returns true."""
        self.helm.may_begin = may_begin

    async def find_releases(self, owner: Owner, names: Sequence[str]) -> list[str]:
        """Return which of these releases there are and have this owner.

        Raises:
            StoreError
        """
        found = await list_revisions(self.api, *names)
        return [name for name in names if find_owner(found, name) == owner]

    async def find_unfinished(self, chart: str, known: Callable[[str], bool]) -> set[str]:
        """Return the uids of releases of one of our charts on which a Helm did not come to its end.

        Args:
            chart: of the releases.
            known: whether it is known from elsewhere whose a release is; its record is not read then.

        Raises:
            StoreError
        """
        left = {each.secret: each for each in await list_unfinished(self.api)}
        self._owners = {name: own for name, own in self._owners.items() if name in left}
        for name, revision in left.items():
            if name not in self._owners and not known(revision.release):
                self._owners[name] = owner_of(revision)
        return {own.uid for own in self._owners.values() if own.chart == chart} - {""}

    def _refuse_foreign(self, release: str, owner: Owner, revisions: Sequence[Revision]) -> None:
        found = find_owner(revisions, release)
        if found in (None, owner):
            return
        whose = f"of the chart {found.chart!r}" if found.chart else "that cannot be read"
        raise HelmFailed(
            f"the Helm release {release} is not of {owner.chart} {owner.uid}, but one {whose}: it is left "
            "as it is. Give that release another name, or delete this object",
            transient=False,
        )

    async def newest_revision(self, release: str) -> Revision | None:
        """Return the newest revision of a release."""
        found = await self.revisions(release)
        return found[-1] if found else None

    async def revisions(self, release: str) -> list[Revision]:
        """Return the revisions of a release, oldest first."""
        return await list_revisions(self.api, release)

    async def log_tail(self, pod: Object, container: str) -> tuple[str, ...]:
        """Return the last lines of a container's run that ended; read once per run."""
        found = pod.get("status", {}).get("containerStatuses") or ()
        status: Any = next((entry for entry in found if entry["name"] == container), None)
        if status is None or status.get("ready"):
            return ()
        ended_now = "terminated" in status.get("state", {})
        if not ended_now and "terminated" not in status.get("lastState", {}):
            return ()
        key = (pod["metadata"]["uid"], int(status.get("restartCount", 0)) + ended_now)
        if key not in self._tails:
            while len(self._tails) >= _MAX_TAILS:
                self._tails.pop(next(iter(self._tails)))
            self._tails[key] = await self._read_tail(pod, container, previous=not ended_now)
        return self._tails[key]

    async def _read_tail(self, pod: Object, container: str, *, previous: bool) -> tuple[str, ...]:
        query = {
            "container": container,
            "tailLines": str(_TAIL_LINES),
            "limitBytes": str(_TAIL_BYTES),
            "previous": str(previous).lower(),
        }
        path = object_path(self.api, "pods", pod["metadata"]["name"]) + "/log"
        try:
            return tuple([line async for line in self.api.lines(path, query, idle_seconds=5.0)])
        except StoreError:  # the pod or its log is gone, or its node does not answer
            return ()

    async def _undo(self, release: str) -> None:
        """Bring back the revision that was deployed before a refused upgrade, if there was one."""
        try:
            revisions = await list_revisions(self.api, release)
            deployed = [entry for entry in revisions if entry.status == "deployed"]
            if deployed and deployed[-1] is not revisions[-1]:
                self.helm.check_may_begin()
                # One that could not write its end, as the API was away, would stay pending for ever.
                await discard_pending(self.api, release)
                await self.helm.rollback(release, deployed[-1].number)
        except (PlatformError, StoreError) as exc:
            # The upgrade is tried again later, and this with it; its own error is what counts.
            raise HelmFailed(f"and taking it back failed: {exc.message}", transient=True) from exc

    def _tell(self, item: Object) -> None:
        uid = label(item, UID_LABEL) or label(item, MODEL_UID_LABEL)
        if uid:
            self._on_change(uid)

    def _note_capacity(self, node: Object) -> None:
        name = node["metadata"]["name"]
        is_there = self.nodes.get(name) is not None
        capacity = capacity_of(node) if is_there else None
        if self._capacities.get(name) == capacity:
            return
        if capacity is None:
            del self._capacities[name]
        else:
            self._capacities[name] = capacity
        self._counted_at = float("-inf")
        self._on_capacity()

    def _on_job_done(self, release: str) -> None:
        uid = self._uids.get(release)
        if uid:
            self._on_change(uid)


def _pod_key(pod: Object) -> str:
    return label(pod, UID_LABEL) or label(pod, MODEL_UID_LABEL)
