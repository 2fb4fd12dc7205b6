"""When the version before a change comes back, on a platform that does not see to it itself. Pure.

The deployments' reconciler asks here. What was in effect last, and which change was refused, is kept in
the status: a controller that is killed at any line goes on with the same. On a cluster Helm has the
versions and the platform rolls back (`platforms/kubernetes/step.py`), with the same words; it is given
what the status has, for when somebody deleted the objects on which it wrote that down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from exo_inference.platforms.base import ObservedDeployment, ObservedReplica, ReplicaPhase
from exo_inference.resources import (
    Condition,
    InferenceDeployment,
    find_condition,
)
from exo_inference.resources.settled_spec import read_settled

CRASH_LOOP_RESTARTS = 3
"""A new replica that crashed so often ends a change, as nothing of it serves yet."""

MAX_REASON = 1000
"""Characters of a reason that are kept."""


def find_failed_change(deployment: InferenceDeployment, observed: ObservedDeployment) -> str:
    """Return why what a change started cannot serve, where it already took something's place; or empty.

    Replicas of the version before that serve on, as many as are wanted, need not come back.
    """
    before = read_settled(deployment)
    if before is None or before.digest == deployment.spec.digest:
        return ""
    replicas = observed.replicas
    serving = sum(not each.current and each.phase is ReplicaPhase.READY for each in replicas)
    current = [r for r in replicas if r.current and r.phase is not ReplicaPhase.DRAINING]
    if serving >= min(deployment.spec.replicas, before.replicas):
        return ""
    if any(replica.phase is ReplicaPhase.READY for replica in current):
        return ""
    return next(filter(None, map(_find_failure, current)), "")[:MAX_REASON]


def _find_failure(replica: ObservedReplica) -> str:
    is_looping = replica.phase is ReplicaPhase.BACKOFF and replica.restarts >= CRASH_LOOP_RESTARTS
    if replica.phase is ReplicaPhase.FAILED or is_looping:
        return replica.cause or replica.details or f"a new replica is in {replica.phase.value}"
    if replica.overdue:
        return f"no progress for too long, last: {replica.details or 'nothing'}"
    return ""


def as_rolled_back(observed: ObservedDeployment, reason: str) -> ObservedDeployment:
    """Return what was observed of the version before, as seen from the one that was refused."""
    replicas = tuple(replace(replica, current=False) for replica in observed.replicas)
    serves = any(replica.phase is ReplicaPhase.READY for replica in replicas)
    text = (
        f"the update was rolled back: {reason.rstrip('. ')}. The version before it "
        f"{'serves on' if serves else 'is being started'}. Change the parameters; or, to try the same "
        "again, run `exo dedicated-inference deployment update` without a flag"
    )
    return replace(observed, replicas=replicas, failure=text)


def remember(
    deployment: InferenceDeployment, found: Sequence[Condition], refusal: str
) -> dict[str, Any]:
    """Return the fields of the status that say what is in effect and what was refused.

    Args:
        deployment: as it was read.
        found: the conditions of this look.
        refusal: why the present specification is not to be tried again; empty if it may be.
    """
    progressing = find_condition(found, "Progressing")
    failed = find_condition(found, "Failed")
    available = find_condition(found, "Available")
    is_settled = progressing is not None and progressing.reason == "Settled"
    # With no replica all are as asked for, and nothing has shown that it serves.
    serves = available is not None and available.reason == "ReplicasReady"
    if is_settled and serves and not refusal and (failed is None or failed.status != "True"):
        settled = deployment.spec.model_dump_json(by_alias=True, exclude_none=True)
    else:
        settled = deployment.status.settled_spec
    return {
        "settled_spec": settled,
        "refused_spec": deployment.spec.digest if refusal else "",
        "refused_restart": deployment.restart if refusal else "",
        "refused_reason": refusal,
    }
