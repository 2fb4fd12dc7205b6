"""`KubernetesPlatform`: makes one Helm release per deployment match what is desired.

The reconciler calls `apply` again and again; each call reads the informers, decides one step with
pure functions (`step.py`, `placement.py`) and starts it in the background (`jobs.py`). Nothing needed
for a decision is kept in memory: it is on the objects of the release, so a controller may be killed
at any line, and Helm with it. What a step does is in `release_work.py`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from exo_inference.errors import PlatformError, StoreError
from exo_inference.kubernetes_api.client import object_path
from exo_inference.kubernetes_api.deletion import delete_if_there
from exo_inference.kubernetes_api.informer import Object
from exo_inference.platforms.base import (
    DesiredDeployment,
    InstanceTypeInfo,
    LogLine,
    LogQuery,
    ObservedDeployment,
    ObservedReplica,
    ReplicaPhase,
)
from exo_inference.platforms.kubernetes.cluster import Cluster
from exo_inference.platforms.kubernetes.denials import diagnose_deployment, explain_denial
from exo_inference.platforms.kubernetes.drift import (
    EDITED,
    was_put_back,
)
from exo_inference.platforms.kubernetes.helm import HelmFailed
from exo_inference.platforms.kubernetes.jobs import Failure
from exo_inference.platforms.kubernetes.logs import follow_logs, read_logs
from exo_inference.platforms.kubernetes.names import (
    DEPLOYMENT_CHART,
    ENGINE_CONTAINER,
    UID_LABEL,
    is_part,
    release_names,
)
from exo_inference.platforms.kubernetes.nodes import instance_types
from exo_inference.platforms.kubernetes.placement import choose_release, surge_note
from exo_inference.platforms.kubernetes.records import Owner
from exo_inference.platforms.kubernetes.release_parts import ONLY_SERVICE
from exo_inference.platforms.kubernetes.release_values import Release
from exo_inference.platforms.kubernetes.release_work import ReleaseWork
from exo_inference.platforms.kubernetes.replicas import (
    counts,
    is_starting,
    observe_pod,
    parse_time,
)
from exo_inference.platforms.kubernetes.settings import longest_drain_seconds
from exo_inference.platforms.kubernetes.step import (
    BringBack,
    Live,
    RollBack,
    Step,
    Upgrade,
    decide,
    explain_roll_back,
    find_failed_update,
    find_lost_refusal,
    is_refused,
    read_live,
    repair,
)
from exo_inference.platforms.kubernetes.workloads import is_worker

logger = logging.getLogger(__name__)

_BUSY_SECONDS = 1.0
_IDLE_SECONDS = 60.0
"""How soon to look again without being told of a change; the end of a job on a release is told."""


class KubernetesPlatform:
    """Engines as pods of one namespace. One object per process; the leader alone calls `apply`.

    Args:
        cluster: started.
        now: the clock.
    """

    name = "kubernetes"
    rolls_back = True

    def __init__(
        self, cluster: Cluster, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._cluster = cluster
        self._now = now
        self._work = ReleaseWork(cluster, now)
        self._chart_version: str | None = None

    async def apply(self, desired: DesiredDeployment) -> ObservedDeployment:
        """Start the next step towards `desired` in the background, and return what is so.

        Raises:
            PlatformError: the API was away, or no node has the GPUs.
        """
        desired = replace(desired, release=self._find_name(desired.uid, desired.release))
        live = read_live(self._cluster.workloads.find(desired.uid))
        wanted = await self._choose(desired, live)
        if desired.before is None:  # then a restart is the only way to have it tried again
            wanted = replace(wanted, unrolled_hash=wanted.pods_hash)
        replicas = await self._observe(desired.uid, wanted.pods_hash)
        await self._restart_failed(desired, replicas)
        lost = await self._find_lost(desired, wanted, live, replicas)
        step = await self._take_step(desired, wanted, live, replicas, lost)
        observed = self._report(desired, wanted, live, replicas, lost)
        if live is not None and live.edited and isinstance(step, Upgrade | RollBack | BringBack):
            return replace(observed, notice=EDITED.format(wanted.name))
        return observed

    @property
    def drain_seconds(self) -> float:
        """How long replicas that are removed may go on with their requests; then they are killed."""
        return longest_drain_seconds(self._cluster.settings.values)

    async def delete(self, uid: str) -> bool:
        """Uninstall the release, and say whether anything is left.

        Raises:
            PlatformError: Helm failed; it is tried again.
        """
        cluster, jobs, names = self._cluster, self._cluster.jobs, release_names(uid)
        if any(jobs.running(name) for name in names):
            return False
        has_pods, has_objects = bool(self._pods(uid)), cluster.workloads.find(uid) is not None
        if has_pods and not has_objects:
            return False  # their requests are being finished
        release = self._find_name(uid)
        if not has_objects and not cluster.parts.find_release(uid):
            found = await cluster.find_releases(Owner(DEPLOYMENT_CHART, uid), names)
            if not found:
                for name in names:
                    jobs.forget(name)
                return True
            release = found[0]
        failure = jobs.failure(release, "uninstall")
        if jobs.wait_seconds(release, "uninstall") <= 0.0:
            self._start(
                uid, release, "uninstalling", "uninstall", self._work.uninstall(uid, release)
            )
        if failure is not None:
            raise PlatformError(f"the release cannot be removed: {failure.error.text}")
        return False

    async def deployments(self) -> set[str]:
        """Return the uids of all deployments of which anything is left.

        What is ours is told by labels and by Helm's records; a release of a similar name may be anybody's.
        """
        cluster = self._cluster
        known = cluster.workloads.known_keys() | cluster.parts.known_keys()
        engines = {pod_uid for pod_uid in cluster.pods.known_keys() if self._pods(pod_uid)}
        releases = {name for uid in known for name in release_names(uid)}
        left = await cluster.find_unfinished(DEPLOYMENT_CHART, releases.__contains__)
        return left | engines | known

    async def logs(self, uid: str, query: LogQuery) -> AsyncIterator[LogLine]:
        """Yield log lines in order of time; with `follow`, until the caller stops."""
        api = self._cluster.api
        if query.follow and not query.previous:
            async for line in follow_logs(api, lambda: self._pods(uid), query):
                yield line
            return
        for line in await read_logs(api, self._pods(uid), query):
            yield line

    async def instance_types(self) -> list[InstanceTypeInfo]:
        """Return the families of the cluster's nodes with what is free now; `cpu` comes last."""
        cluster = self._cluster
        spans_nodes = cluster.settings.values.spans_nodes
        return instance_types(cluster.nodes.all(), cluster.pods.all(), spans_nodes=spans_nodes)

    async def measurements(self, replica: str) -> dict[str, Any] | None:
        """Return what the engine of a ready replica has measured; None where it does not say."""
        pod = self._cluster.pods.get(replica)
        return None if pod is None else await self._cluster.endpoints.measurements(pod)

    # -- looking

    def _find_name(self, uid: str, recorded: str = "") -> str:
        """Return the name of a deployment's release: as it was installed, or as it will be.

        Args:
            uid: of the deployment.
            recorded: the name that was written down when it was installed.
        """
        names = release_names(uid)
        live = self._cluster.workloads.find(uid)
        if live is not None:
            return str(live["metadata"]["name"])
        if recorded in names:
            return recorded
        return self._cluster.parts.find_release(uid) or names[0]

    def _pods(self, uid: str) -> list[Object]:
        """Return the engine pods of a deployment that are replicas, oldest first."""
        names = release_names(uid)
        engines = (
            pod
            for pod in self._cluster.pods.by_key(uid)
            if is_part(pod, names) and pod["spec"]["containers"][0]["name"] == ENGINE_CONTAINER
        )
        return [pod for pod in engines if counts(pod) and not is_worker(pod)]

    async def _observe(self, uid: str, pods_hash: str) -> tuple[ObservedReplica, ...]:
        pods = self._pods(uid)
        return tuple(await asyncio.gather(*(self._see(pod, pods_hash) for pod in pods)))

    async def _see(self, pod: Object, pods_hash: str) -> ObservedReplica:
        cluster = self._cluster
        return observe_pod(
            pod,
            pods_hash,
            events=cluster.pod_events(pod),
            log_tail=await cluster.log_tail(pod, ENGINE_CONTAINER),
            node=cluster.node_of(pod),
            said=await cluster.endpoints.detail(pod) if is_starting(pod) else "",
            now=self._now(),
        )

    async def _choose(self, desired: DesiredDeployment, live: Live | None) -> Release:
        if self._chart_version is None:
            version = self._cluster.helm.chart_version
            self._chart_version = await asyncio.to_thread(version, DEPLOYMENT_CHART)
        return choose_release(
            desired,
            self._cluster.settings.values,
            live,
            self._pods(desired.uid),
            self._cluster.gpu_nodes,
            chart_version=self._chart_version,
        )

    # -- stepping

    async def _find_lost(
        self,
        desired: DesiredDeployment,
        wanted: Release,
        live: Live | None,
        replicas: tuple[ObservedReplica, ...],
    ) -> BringBack | None:
        """Return the step to the version before, where the cluster does not know of it or has to restart it."""
        reason = find_lost_refusal(wanted, live, replicas, desired.refusal)
        if live is not None and is_refused(wanted, live, desired.restarted_at):
            reason = reason or (live.refused_reason if live.roll != wanted.roll else "")
        if desired.before is None or not reason:
            return None
        before = replace(desired.before, release=desired.release)
        return BringBack(await self._choose(before, live), reason)

    async def _take_step(
        self,
        desired: DesiredDeployment,
        wanted: Release,
        live: Live | None,
        replicas: tuple[ObservedReplica, ...],
        lost: BringBack | None,
    ) -> Step | None:
        """Start the next step in the background, unless one is under way, and return it."""
        jobs = self._cluster.jobs
        if jobs.running(wanted.name) or jobs.wait_seconds(wanted.name, wanted.spec_hash) > 0.0:
            return None
        if live is not None:
            edited = live.edited and not was_put_back(live.put_back_at, self._now())
            live = replace(live, missing=await self._find_missing(wanted, live), edited=edited)
        step = lost or decide(wanted, live, replicas, restarted_at=desired.restarted_at)
        failed_before = jobs.failure(wanted.name, wanted.spec_hash) is not None
        if step is None and (failed_before or await self._cluster.is_stuck(wanted.name)):
            # Helm did not come to its end, whatever the objects say.
            step = repair(wanted, live, restarted_at=desired.restarted_at)
        if step is not None:
            name, work = self._work.of(desired.uid, wanted, step)
            self._start(desired.uid, wanted.name, name, wanted.spec_hash, work)
        return step

    async def _find_missing(self, wanted: Release, live: Live) -> str:
        # The values of another version may have other parts, but each has a Service.
        values = wanted.values if live.spec_hash == wanted.spec_hash else ONLY_SERVICE
        try:
            return await self._cluster.parts.find_missing(wanted.name, values)
        except StoreError as exc:
            raise PlatformError(f"cannot look at the release's objects: {exc.message}") from exc

    def _start(
        self, uid: str, release: str, name: str, what: str, work: Coroutine[Any, Any, None]
    ) -> None:
        self._cluster.remember(release, uid)
        self._cluster.jobs.start(release, name, what, work)

    async def _restart_failed(
        self, desired: DesiredDeployment, replicas: tuple[ObservedReplica, ...]
    ) -> None:
        """Delete the pods that failed before a user asked to try again; others take their place."""
        if desired.restarted_at is None:
            return
        for replica in replicas:
            pod = self._cluster.pods.get(replica.name)
            failed = replica.phase in (ReplicaPhase.FAILED, ReplicaPhase.BACKOFF)
            if pod is None or not failed:
                continue
            if parse_time(pod["metadata"]["creationTimestamp"]) < desired.restarted_at:
                try:
                    path = object_path(self._cluster.api, "pods", replica.name)
                    await delete_if_there(self._cluster.api, path)
                except StoreError as exc:
                    raise PlatformError(
                        f"replica {replica.name} cannot be started again: {exc.message}"
                    ) from exc

    # -- reporting

    def _report(
        self,
        desired: DesiredDeployment,
        wanted: Release,
        live: Live | None,
        replicas: tuple[ObservedReplica, ...],
        lost: BringBack | None,
    ) -> ObservedDeployment:
        jobs = self._cluster.jobs
        failure = jobs.failure(wanted.name, wanted.spec_hash)
        if isinstance(failure, Failure) and getattr(failure.error, "transient", True):
            raise PlatformError(f"the release cannot be changed now: {failure.error.text}")
        note = surge_note(wanted, live, replicas)
        if note:
            replicas = tuple(_with_note(replica, note) for replica in replicas)
        busy = any(replica.phase is not ReplicaPhase.READY for replica in replicas)
        wait = jobs.wait_seconds(wanted.name, wanted.spec_hash)
        refusal = "" if lost is None else lost.reason
        if not refusal and live is not None and is_refused(wanted, live, desired.restarted_at):
            refusal = live.refused_reason
        return ObservedDeployment(
            replicas=replicas,
            next_check_seconds=_next_check(wait, busy=busy),
            failure=self._explain_failure(desired.uid, wanted, live, replicas, failure, refusal),
            selector=f"{UID_LABEL}={desired.uid}",
            release=wanted.name,
            autoscaled=live.replicas if live is not None and wanted.replicas is None else None,
            refusal=refusal,
        )

    def _explain_failure(
        self,
        uid: str,
        wanted: Release,
        live: Live | None,
        replicas: tuple[ObservedReplica, ...],
        failure: Failure | None,
        refusal: str,
    ) -> str:
        if failure is not None and isinstance(failure.error, HelmFailed):
            known = explain_denial(failure.error.message)
            text = known.details if known else failure.error.message
            return f"the change is refused: {text}"
        failed = "" if live is None else find_failed_update(wanted, live, replicas)
        if reason := refusal or failed:
            return explain_roll_back(reason, wanted, replicas, live)
        deployment = self._cluster.workloads.find(uid)
        denied = diagnose_deployment(deployment) if deployment is not None else None
        return denied.details if denied is not None else ""


def _next_check(wait_seconds: float, *, busy: bool) -> float:
    """Return when to look again, given how long a change that failed still has to wait."""
    if wait_seconds <= 0.0:
        return _BUSY_SECONDS if busy else _IDLE_SECONDS
    return min(max(wait_seconds, _BUSY_SECONDS), 10.0 if busy else _IDLE_SECONDS)


def _with_note(replica: ObservedReplica, note: str) -> ObservedReplica:
    if not replica.current or replica.phase is not ReplicaPhase.STARTING:
        return replica
    return replace(replica, details=f"{replica.details}; {note}" if replica.details else note)
