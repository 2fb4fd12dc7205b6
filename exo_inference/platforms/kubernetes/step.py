"""What to do next with one release: a pure function over what is wanted and what is so.

`platform.py` calls `decide` on every look and executes at most one step, so it converges from
whatever a killed controller, a killed Helm or a hand left behind. What has to be known for that is
on the Deployment itself: the hash it was installed with, the newest revision whose replicas all
became ready, and the update that was refused, if one was (docs/decisions/0008-helm-releases.md).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from exo_inference.platforms.base import ObservedReplica, ReplicaPhase
from exo_inference.platforms.kubernetes.drift import is_edited
from exo_inference.platforms.kubernetes.names import (
    NAME_LABEL,
    NODES_ANNOTATION,
    PARAMETERS_ANNOTATION,
    PODS_ANNOTATION,
    PUT_BACK_AT,
    REFUSED_AT,
    REFUSED_PODS,
    REFUSED_REASON,
    SETTLED_PODS,
    SETTLED_REVISION,
    SETTLED_SPEC,
    SPEC_LABEL,
    annotation,
    label,
    read_flags,
)
from exo_inference.platforms.kubernetes.release_values import SURGE, Release, Strategy
from exo_inference.resources import ROLL_ANNOTATION

_REVISION = re.compile(r"[1-9][0-9]{0,8}")

_MAX_FLAGS = 300
"""Characters of flags in a message, which is read in tables."""

CRASH_LOOP_RESTARTS = 3
"""A new replica that crashed so often ends an update, as nothing of it serves yet."""


@dataclass(frozen=True, slots=True)
class Live:
    """A release as its Deployment shows it.

    Attributes:
        spec_hash, pods_hash: of what was installed last; empty where something else made it.
        name: of the deployment, on its pods.
        replicas: wanted of the Deployment; None where it does not say.
        affinity: of the pods.
        settled_revision: newest revision whose replicas all became ready; None if there was none.
        settled_spec, settled_pods: the hashes of that revision.
        refused_pods: hash of an update that failed and was rolled back.
        refused_at, refused_reason: when, and why.
        overdue: the rollout made no progress for longer than a start may take.
        missing: kind of an object of the release that somebody deleted.
        edited: somebody changed what the pods are made of.
        put_back_at: when such a change was last undone.
        nodes: pods of one replica.
        parameters: flags of the engine that the pods have; None where it does not say.
        roll: which request for new replicas the pods are of.
    """

    spec_hash: str = ""
    pods_hash: str = ""
    name: str = ""
    replicas: int | None = None
    strategy: Strategy = SURGE
    affinity: Mapping[str, Any] | None = None
    settled_revision: int | None = None
    settled_spec: str = ""
    settled_pods: str = ""
    refused_pods: str = ""
    refused_at: datetime | None = None
    refused_reason: str = ""
    overdue: bool = False
    missing: str = ""
    edited: bool = False
    put_back_at: datetime | None = None
    nodes: int = 1
    parameters: tuple[str, ...] | None = None
    roll: str = ""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Install the release, or bring it to the wanted values."""


@dataclass(frozen=True, slots=True)
class Rescale:
    """Only set the number of replicas of the version that serves while an update is refused."""

    replicas: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Write down that the present revision works, and forget what was refused before."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """Write down why the update is refused, then bring the version before it back."""

    revision: int
    reason: str


@dataclass(frozen=True, slots=True)
class BringBack:
    """Install the version before anew; write down that it is in effect, and why the wanted one is not.

    It does what `RollBack` cannot once the Deployment is gone that knew the revision to go back to, or
    where new replicas of that version were asked for.
    """

    before: Release
    reason: str


Step = Upgrade | Rescale | Settle | RollBack | BringBack


def decide(
    wanted: Release,
    live: Live | None,
    replicas: Sequence[ObservedReplica],
    *,
    restarted_at: datetime | None = None,
) -> Step | None:
    """Return the next step; None when there is nothing to do but to wait.

    Args:
        wanted: what is asked for.
        live: what is so; None before the first installation.
        replicas: as observed; `current` are those of the wanted `pods_hash`.
        restarted_at: when a user last asked to try again.
    """
    if live is None:
        return Upgrade()
    if is_refused(wanted, live, restarted_at):
        return _keep_serving(wanted, live)
    if live.spec_hash != wanted.spec_hash or wanted.replicas not in (None, live.replicas):
        return Upgrade()
    if live.missing or live.edited:
        return Upgrade()  # which makes it again and leaves the rest as it is
    reason = find_failed_update(wanted, live, replicas)
    if reason and live.settled_revision is not None:
        return RollBack(live.settled_revision, reason)
    settled = live.settled_spec == wanted.spec_hash and not live.refused_pods
    if not settled and _is_settled(wanted, replicas):
        return Settle()
    return None


def repair(wanted: Release, live: Live | None, *, restarted_at: datetime | None = None) -> Step:
    """Return the step for a release that looks right, but on which a Helm did not come to its end."""
    if live is None or live.settled_revision is None or not is_refused(wanted, live, restarted_at):
        return Upgrade()
    if live.pods_hash == live.settled_pods:
        # A roll-back would bring back the replicas of then, and end those that were asked for since.
        return Rescale((live.replicas if wanted.replicas is None else wanted.replicas) or 0)
    return RollBack(live.settled_revision, live.refused_reason)


def is_refused(wanted: Release, live: Live, restarted_at: datetime | None) -> bool:
    """Whether the wanted version was tried, failed, and is not to be tried again yet."""
    # Asking for new replicas makes no other version of it; earlier versions wrote `pods_hash`.
    is_same = live.refused_pods and live.refused_pods in (wanted.pods_hash, wanted.unrolled_hash)
    if not is_same or live.settled_pods == wanted.pods_hash:
        return False
    return restarted_at is None or live.refused_at is None or restarted_at <= live.refused_at


def find_lost_refusal(
    wanted: Release, live: Live | None, replicas: Sequence[ObservedReplica], refusal: str
) -> str:
    """Return why the version before has to be brought back, where the Deployment cannot say it; or empty.

    So it is when somebody deleted the Deployment, or what was written down on it.

    Args:
        wanted: what is asked for.
        live: what is so.
        replicas: as observed.
        refusal: why the wanted version was refused, as it was last told; empty if it was not.
    """
    if live is None:
        return refusal
    if live.settled_pods == wanted.pods_hash:
        return ""
    if live.settled_revision is not None:
        return "" if live.refused_pods else refusal
    # The Deployment was lost during the update, so what it has is the new version.
    return refusal or (_find_failure(live, replicas) if live.spec_hash == wanted.spec_hash else "")


def _keep_serving(wanted: Release, live: Live) -> Step | None:
    if live.pods_hash in (live.refused_pods, wanted.pods_hash) or live.edited:
        if live.settled_revision is None:
            return None
        return RollBack(live.settled_revision, live.refused_reason)
    if wanted.replicas not in (None, live.replicas):
        return Rescale(wanted.replicas or 0)
    return Rescale(live.replicas or 0) if live.missing else None


def find_failed_update(wanted: Release, live: Live, replicas: Sequence[ObservedReplica]) -> str:
    """Return why the update that is under way cannot succeed; empty if it may, or nothing was before it."""
    is_first = live.settled_revision is None or live.settled_pods == wanted.pods_hash
    if is_first or live.spec_hash != wanted.spec_hash:
        return ""
    return _find_failure(live, replicas)


def explain_roll_back(
    reason: str,
    wanted: Release,
    replicas: Sequence[ObservedReplica],
    live: Live | None = None,
) -> str:
    """Return what is told of an update that was rolled back, and of the version before it."""
    serves = any(not each.current and each.phase is ReplicaPhase.READY for each in replicas)
    before = "serves on" if serves else "is being started"
    if wanted.replicas == 0:
        before = "is what starts when it is scaled up"
    return (
        f"the update was rolled back: {reason.rstrip('. ')}. The version before it {before}"
        f"{_explain_flags(wanted, live)}. Change the "
        "parameters; or, to try the same again, run `exo dedicated-inference deployment update` without "
        "a flag"
    )


def _explain_flags(wanted: Release, live: Live | None) -> str:
    """Return which flags serve, once the refused ones are off the pods."""
    if live is None or live.parameters is None or live.pods_hash == wanted.pods_hash:
        return ""
    if not live.parameters:
        return ", without flags of the engine"
    text = shlex.join(live.parameters)
    return f", with {text if len(text) <= _MAX_FLAGS else text[:_MAX_FLAGS] + '…'}"


def _find_failure(live: Live, replicas: Sequence[ObservedReplica]) -> str:
    current = [replica for replica in replicas if replica.current]
    for replica in current:
        if replica.phase is ReplicaPhase.FAILED:
            return replica.details or "a new replica failed"
    if any(replica.phase is ReplicaPhase.READY for replica in current):
        return ""
    for replica in current:
        if replica.phase is ReplicaPhase.BACKOFF and replica.restarts >= CRASH_LOOP_RESTARTS:
            return replica.details or f"a new replica crashed {replica.restarts} times"
    if live.overdue:
        waiting = [r for r in current if r.phase not in (ReplicaPhase.READY, ReplicaPhase.DRAINING)]
        details = next((replica.details for replica in waiting if replica.details), "")
        return f"the new replicas did not become ready in time{': ' if details else ''}{details}"
    return ""


def _is_settled(wanted: Release, replicas: Sequence[ObservedReplica]) -> bool:
    active = [replica for replica in replicas if replica.phase is not ReplicaPhase.DRAINING]
    all_ready = all(replica.current and replica.phase is ReplicaPhase.READY for replica in active)
    return bool(active) and all_ready and wanted.replicas in (None, len(active))


def read_live(deployment: Mapping[str, Any] | None) -> Live | None:
    """Return what a Deployment says of its release."""
    if deployment is None:
        return None
    spec = deployment["spec"]
    rolling = spec.get("strategy", {}).get("rollingUpdate", {})
    template = spec["template"]
    conditions = {c["type"]: c for c in deployment.get("status", {}).get("conditions", ())}
    revision = annotation(deployment, SETTLED_REVISION)
    return Live(
        spec_hash=label(deployment, SPEC_LABEL),
        pods_hash=annotation(template, PODS_ANNOTATION) if "metadata" in template else "",
        name=label(template, NAME_LABEL) if "metadata" in template else "",
        replicas=spec.get("replicas"),
        strategy=Strategy(
            _whole(rolling.get("maxSurge"), 1), _whole(rolling.get("maxUnavailable"), 0)
        ),
        affinity=template.get("spec", {}).get("affinity"),
        settled_revision=int(revision) if _REVISION.fullmatch(revision) else None,
        settled_spec=annotation(deployment, SETTLED_SPEC),
        settled_pods=annotation(deployment, SETTLED_PODS),
        refused_pods=annotation(deployment, REFUSED_PODS),
        refused_at=_time(annotation(deployment, REFUSED_AT)),
        refused_reason=annotation(deployment, REFUSED_REASON),
        edited=is_edited(deployment),
        put_back_at=_time(annotation(deployment, PUT_BACK_AT)),
        nodes=int(annotation(deployment, NODES_ANNOTATION) or 1),
        parameters=read_flags(
            annotation(template, PARAMETERS_ANNOTATION) if "metadata" in template else ""
        ),
        roll=annotation(template, ROLL_ANNOTATION) if "metadata" in template else "",
        overdue=conditions.get("Progressing", {}).get("reason") == "ProgressDeadlineExceeded",
    )


def settled_annotations(wanted: Release, revision: int) -> dict[str, str | None]:
    """Return what `Settle` writes."""
    return {
        SETTLED_REVISION: str(revision),
        SETTLED_SPEC: wanted.spec_hash,
        SETTLED_PODS: wanted.pods_hash,
        REFUSED_PODS: None,
        REFUSED_AT: None,
        REFUSED_REASON: None,
    }


def settled_revision(revision: int) -> dict[str, str | None]:
    """Return what says that a later revision is the same version."""
    return {SETTLED_REVISION: str(revision)}


def refused_annotations(wanted: Release, reason: str, now: datetime) -> dict[str, str | None]:
    """Return what `RollBack` writes."""
    return {
        REFUSED_PODS: wanted.unrolled_hash or wanted.pods_hash,
        REFUSED_AT: now.astimezone(UTC).isoformat(),
        REFUSED_REASON: reason[:1000],
    }


def _whole(value: object, default: int) -> int:
    return value if isinstance(value, int) else default


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
