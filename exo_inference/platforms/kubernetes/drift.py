"""What somebody changed on the pods of a release past this project: noticing it, and undoing it.

Helm leaves what it did not write itself, such as a variable that `kubectl set env` added. So how the
API server shows the pods after Helm is written down on the Deployment as a hash, and what differs later
is put back from Helm's own record. Not looked at are replicas and the annotations of the pods, which
autoscalers and `kubectl rollout restart` change, the pods' labels, and LeaderWorkerSets.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import yaml

from exo_inference.errors import PlatformError
from exo_inference.kubernetes_api.client import KubernetesApi
from exo_inference.platforms.kubernetes.names import (
    INSTALLED_PODS,
    NODES_ANNOTATION,
    PUT_BACK_AT,
    SPEC_LABEL,
    annotation,
    label,
)
from exo_inference.platforms.kubernetes.records import list_revisions, read_record
from exo_inference.platforms.kubernetes.release_values import hash_of
from exo_inference.platforms.kubernetes.workloads import Workloads

logger = logging.getLogger(__name__)

EDITED = (
    "the pods of the Deployment {} were changed by hand and are put back; change the deployment itself, "
    "or the platform's values"
)
"""What is told of it."""

_REST_SECONDS = 60.0
"""How soon it is undone again: whatever changes the same for ever must not replace pods all the time."""

_Fields = Mapping[str, Any]


def installed_annotations(deployment: _Fields) -> dict[str, str]:
    """Return what says how Helm left the pods of a Deployment."""
    pods = hash_of(deployment["spec"]["template"].get("spec"))
    return {INSTALLED_PODS: f"{label(deployment, SPEC_LABEL)}.{pods}"}


def is_edited(deployment: _Fields) -> bool:
    """Whether the pods are not as Helm left them; False where that is not written down."""
    noted = annotation(deployment, INSTALLED_PODS)
    if not noted or annotation(deployment, NODES_ANNOTATION):
        return False
    if noted.partition(".")[0] != label(deployment, SPEC_LABEL):
        return False  # Helm has just written it, or a hand took the label: both are seen by that
    return installed_annotations(deployment)[INSTALLED_PODS] != noted


def was_put_back(put_back_at: datetime | None, now: datetime) -> bool:
    """Whether a change by hand was undone so short ago that the next one has to wait."""
    return put_back_at is not None and (now - put_back_at).total_seconds() < _REST_SECONDS


async def note_installed(workloads: Workloads, uid: str) -> None:
    """Write down how Helm has just left the pods of a deployment.

    Raises:
        StoreError: the API was away.
    """
    deployment = workloads.find(uid)
    if deployment is None:
        return
    noted = installed_annotations(deployment)
    if annotation(deployment, INSTALLED_PODS) != noted[INSTALLED_PODS]:
        await workloads.merge(uid, {"metadata": {"annotations": noted}})


async def put_back(
    api: KubernetesApi, workloads: Workloads, uid: str, release: str, *, now: datetime
) -> None:
    """Undo what a hand changed of the pods of a deployment, if anything.

    Raises:
        PlatformError: Helm's record cannot be read.
        StoreError: the API was away.
    """
    deployment = workloads.find(uid)
    if deployment is None or not is_edited(deployment):
        return
    logger.warning("release %s: its pods were changed by hand, and are put back", release)
    annotations = {PUT_BACK_AT: now.astimezone(UTC).isoformat()}
    body: dict[str, Any] = {"metadata": {"annotations": annotations}}
    wanted = await _read_installed_pods(api, release)
    if wanted is not None:
        spec = undo(deployment["spec"]["template"]["spec"], wanted)
        body["spec"] = {"template": {"spec": spec}}
    await workloads.merge(uid, body)


async def _read_installed_pods(api: KubernetesApi, release: str) -> _Fields | None:
    """Return the specification of a Deployment's pods in Helm's newest record; None without one."""
    found = await list_revisions(api, release)
    newest = next((entry for entry in reversed(found) if entry.status == "deployed"), None)
    if newest is None:
        return None
    try:
        manifest = read_record(newest)["manifest"]
        items = [item for item in yaml.safe_load_all(manifest) if item]
        return next(
            (item["spec"]["template"]["spec"] for item in items if item["kind"] == "Deployment"),
            None,
        )
    except (LookupError, TypeError, yaml.YAMLError) as exc:
        raise PlatformError(f"Helm's record {newest.secret} cannot be read: {exc!r}"[:300]) from exc


def undo(present: _Fields, wanted: _Fields) -> dict[str, Any]:
    """Return the merge patch that makes `present` what `wanted` says, without any field besides."""
    patch: dict[str, Any] = dict.fromkeys(present.keys() - wanted.keys())
    for key, value in wanted.items():
        before = present.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            value = undo(before, value)
        patch[key] = value
    return patch
