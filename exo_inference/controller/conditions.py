"""Conditions: building, finding and merging them. Pure; used by what reconciles and decides."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from exo_inference.controller.stores.base import NewEvent
from exo_inference.resources import Condition, ConditionStatus, ObjectMeta, find_condition

REFUSED_REASON = "SpecRefused"
"""Of a specification that came past the API and cannot be."""

WARNING_REASONS = frozenset(
    {
        "ReplicaFailed",
        "CrashLoop",
        "PlatformBusy",
        "ModelFailed",
        "ModelMissing",
        "ChangeFailed",
        "Recovering",
        REFUSED_REASON,
        "VolumeGone",
        "UnknownScope",
        "InvalidUid",
        "UidChanged",
        "DuplicateUid",
    }
)
"""Reasons that are bad news, whatever the status of their condition."""


def condition(type_: str, holds: bool | None, reason: str, message: str = "") -> Condition:
    """Return a condition without times; `holds` None is Unknown."""
    if holds is None:
        status = ConditionStatus.UNKNOWN
    else:
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
    return Condition(type=type_, status=status, reason=reason, message=message)


def waits_for_others(metadata: ObjectMeta) -> str:
    """Return why an object of which nothing is left is still there."""
    others = ", ".join(each[:64] for each in metadata.finalizers[:4])
    return f"nothing of it is left; the object stays until its finalizers go, which others set: {others}"


def with_ready(found: Sequence[Condition]) -> tuple[Condition, ...]:
    """Return a deployment's conditions with `Ready`, which sums them up.

    Tools that know no condition of ours, such as `kubectl wait` and kstatus, look at this one. It holds
    when all is as asked for, and else has the reason and the words of the condition that stands in the way.
    """
    told = tuple(entry for entry in found if entry.type != "Ready")
    # Whichever of these is first in the way; Available is left.
    looked_at = (("Failed", True), ("ModelReady", False), ("Progressing", True))
    for type_, is_bad in looked_at:
        cause = find_condition(told, type_)
        if cause is not None and (cause.status == ConditionStatus.TRUE) is is_bad:
            return (*told, condition("Ready", False, cause.reason, cause.message))
    available = find_condition(told, "Available")
    if available is None:
        return (*told, condition("Ready", None, "NotObserved"))
    holds = available.status == ConditionStatus.TRUE
    return (*told, condition("Ready", holds, available.reason, available.message))


def merge(
    old: Sequence[Condition], new: Sequence[Condition], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """Return `new` with times: a condition whose status stays keeps the moment of its change."""
    merged = []
    for entry in new:
        before = find_condition(old, entry.type)
        same = before is not None and before.status == entry.status
        since = before.last_transition_time if before is not None and same else now
        merged.append(
            entry.model_copy(
                update={"observed_generation": generation, "last_transition_time": since}
            )
        )
    return tuple(merged)


def changes(old: Sequence[Condition], new: Sequence[Condition]) -> list[NewEvent]:
    """Return one event for each condition with something to say that is not as it was."""
    events: list[NewEvent] = []
    for entry in new:
        before = find_condition(old, entry.type)
        if before is not None and (before.status, before.reason) == (entry.status, entry.reason):
            continue
        bad = entry.reason in WARNING_REASONS
        event = NewEvent("Warning" if bad else "Normal", entry.reason, entry.message)
        if entry.message and event not in events:  # several conditions may have one cause
            events.append(event)
    return events


def checking_conditions() -> list[Condition]:
    """Return the conditions of a model whose files are being checked where they are."""
    return [
        condition("Resolved", False, "Checking", "checking its files; they are used in place"),
        condition("Ready", False, "NotFetched"),
    ]
