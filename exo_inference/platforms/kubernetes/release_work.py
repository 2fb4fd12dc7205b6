"""What a step of a release does, once it is decided: Helm is called, and objects are annotated.

`platform.py` starts it in the background. Each piece may be killed at any line: the next decision is made
from what is found then.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any

from exo_inference.kubernetes_api.client import object_path
from exo_inference.kubernetes_api.deletion import delete_labelled
from exo_inference.platforms.kubernetes.cluster import Cluster
from exo_inference.platforms.kubernetes.drift import note_installed, put_back
from exo_inference.platforms.kubernetes.names import DEPLOYMENT_CHART, UID_LABEL
from exo_inference.platforms.kubernetes.records import PENDING
from exo_inference.platforms.kubernetes.release_parts import API_GROUPS
from exo_inference.platforms.kubernetes.release_values import Release
from exo_inference.platforms.kubernetes.step import (
    BringBack,
    Rescale,
    RollBack,
    Settle,
    Step,
    Upgrade,
    read_live,
    refused_annotations,
    settled_annotations,
    settled_revision,
)
from exo_inference.platforms.kubernetes.workloads import nodes_of

logger = logging.getLogger(__name__)


class ReleaseWork:
    """The work of each step.

    Args:
        cluster: started.
        now: the clock.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now

    def of(self, uid: str, wanted: Release, step: Step) -> tuple[str, Coroutine[Any, Any, None]]:
        """Return what a step is called in logs, and its work."""
        if isinstance(step, Upgrade):
            return "upgrading", self._upgrade(uid, wanted)
        if isinstance(step, Settle):
            return "recording", self._settle(uid, wanted)
        if isinstance(step, Rescale):
            return "scaling", self._rescale(uid, wanted, step)
        if isinstance(step, BringBack):
            return "bringing back", self._bring_back(uid, wanted, step)
        return "rolling back", self._roll_back(uid, wanted, step)

    async def uninstall(self, uid: str, release: str) -> None:
        """Remove a release with all of its objects, whatever Helm knows of it."""
        cluster = self._cluster
        await cluster.uninstall(release, uid, DEPLOYMENT_CHART)
        # Should Helm's record of it be gone, its objects are removed by name.
        for plural, group in {**cluster.workloads.kinds, **API_GROUPS}.items():
            path = object_path(cluster.api, plural, release, group=group)
            await delete_labelled(cluster.api, path, UID_LABEL, uid)

    async def _upgrade(self, uid: str, wanted: Release) -> None:
        await self._put_back(uid, wanted.name)
        await self._cluster.upgrade(wanted.name, uid, DEPLOYMENT_CHART, wanted.values)
        workloads = self._cluster.workloads
        if nodes_of(wanted.values) > 1:
            await workloads.restate(wanted.name, wanted.spec_hash, wanted.replicas)
        else:
            await workloads.refresh(wanted.name, wanted.values)
        await note_installed(workloads, uid)

    async def _put_back(self, uid: str, release: str) -> None:
        cluster = self._cluster
        await put_back(cluster.api, cluster.workloads, uid, release, now=self._now())

    async def _settle(self, uid: str, wanted: Release) -> None:
        newest = await self._cluster.newest_revision(wanted.name)
        if newest is None or newest.status != "deployed":
            await self._upgrade(uid, wanted)
            return
        await self._annotate(uid, settled_annotations(wanted, newest.number))

    async def _roll_back(self, uid: str, wanted: Release, step: RollBack) -> None:
        logger.warning("release %s is rolled back: %s", wanted.name, step.reason)
        await self._annotate(uid, refused_annotations(wanted, step.reason, self._now()))
        await self._put_back(uid, wanted.name)
        await self._cluster.rollback(wanted.name, uid, step.revision)
        await self._cluster.workloads.refresh(wanted.name, wanted.values)
        await self._point_at_newest(uid, wanted.name)

    async def _bring_back(self, uid: str, wanted: Release, step: BringBack) -> None:
        logger.warning("release %s: what served is installed anew: %s", wanted.name, step.reason)
        await self._upgrade(uid, step.before)
        newest = await self._cluster.newest_revision(wanted.name)
        if newest is None:
            return
        settled = settled_annotations(step.before, newest.number)
        refused = refused_annotations(wanted, step.reason, self._now())
        await self._annotate(uid, {**settled, **refused})

    async def _rescale(self, uid: str, wanted: Release, step: Rescale) -> None:
        await self._put_back(uid, wanted.name)
        await self._finish_roll_back(uid, wanted.name)
        values = {"replicas": step.replicas}
        await self._cluster.upgrade(wanted.name, uid, DEPLOYMENT_CHART, values, reuse=True)
        await self._cluster.workloads.refresh(wanted.name, wanted.values)
        await self._point_at_newest(uid, wanted.name)

    async def _finish_roll_back(self, uid: str, release: str) -> None:
        """Make the version that serves Helm's newest, so that its values are those that are reused.

        A Helm that was killed may have brought its objects back, but not its values.
        """
        live = read_live(self._cluster.workloads.find(uid))
        found = await self._cluster.revisions(release)
        if live is None or live.settled_revision is None or not found:
            return
        # Helm begins with the values of what it calls deployed, whatever failed after that.
        while len(found) > 1 and found[-1].status in (*PENDING, "failed"):
            found.pop()
        if (found[-1].number, found[-1].status) != (live.settled_revision, "deployed"):
            await self._cluster.rollback(release, uid, live.settled_revision)
            await self._point_at_newest(uid, release)

    async def _point_at_newest(self, uid: str, release: str) -> None:
        """Keep the settled revision from leaving Helm's history, which is short."""
        await note_installed(self._cluster.workloads, uid)
        newest = await self._cluster.newest_revision(release)
        if newest is not None and newest.status == "deployed":
            await self._annotate(uid, settled_revision(newest.number))

    async def _annotate(self, uid: str, annotations: dict[str, str | None]) -> None:
        await self._cluster.workloads.merge(uid, {"metadata": {"annotations": annotations}})
