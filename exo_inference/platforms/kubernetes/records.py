"""Helm's records of its releases, one Secret per revision: reading them, and clearing what is stuck.

A Helm that is killed leaves a record whose state is pending, and every later Helm refuses to touch
the release. Such a record is removed: the revision before it is what Helm then begins with, and what
the dead one had changed already is brought in line by the next upgrade (docs/decisions/0008).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from exo_inference.kubernetes_api.client import KubernetesApi, object_path
from exo_inference.platforms.kubernetes.deleting import delete_if_there

logger = logging.getLogger(__name__)

PENDING = frozenset({"pending-install", "pending-upgrade", "pending-rollback"})
_PAGE = 100


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision of a release. `secret` is the name of its record."""

    secret: str
    release: str
    number: int
    status: str


async def list_revisions(api: KubernetesApi, release: str) -> list[Revision]:
    """Return the revisions of a release, oldest first.

    Raises:
        StoreError
    """
    return await _list(api, f"owner=helm,name={release}")


async def list_unfinished(api: KubernetesApi) -> list[Revision]:
    """Return the records of all releases whose Helm did not come to an end, or failed.

    Raises:
        StoreError
    """
    states = ",".join(sorted({*PENDING, "uninstalling", "failed"}))
    return await _list(api, f"owner=helm,status in ({states})")


async def discard_pending(api: KubernetesApi, release: str) -> bool:
    """Remove the records of a Helm that was killed; True when there was one.

    Only for the leader, and only while it runs no Helm on that release.

    Raises:
        StoreError
    """
    stuck = [found for found in await list_revisions(api, release) if found.status in PENDING]
    for revision in stuck:
        logger.warning(
            "release %s: a Helm was killed in revision %d (%s); its record is removed",
            release,
            revision.number,
            revision.status,
        )
        await delete_if_there(api, object_path(api, "secrets", revision.secret))
    return bool(stuck)


async def _list(api: KubernetesApi, selector: str) -> list[Revision]:
    query = {"labelSelector": selector, "limit": str(_PAGE)}
    found = []
    while True:
        page = await api.get(object_path(api, "secrets"), query)
        for item in page["items"]:
            labels = item["metadata"].get("labels", {})
            if not labels.get("version", "").isdigit():
                continue
            found.append(
                Revision(
                    secret=item["metadata"]["name"],
                    release=labels.get("name", ""),
                    number=int(labels["version"]),
                    status=labels.get("status", ""),
                )
            )
        if not page["metadata"].get("continue"):
            return sorted(found, key=lambda revision: (revision.release, revision.number))
        query = {**query, "continue": page["metadata"]["continue"]}
