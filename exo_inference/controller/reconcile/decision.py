"""What to do for a deployment, and what its replicas mean. Pure: snapshot in, decision out.

The reconciler loads, calls `decide`, executes, calls `assess_deployment` on what it then
sees, and writes the status. No clock, no I/O, nothing remembered. When one replica that ended starts again is its
platform's decision: `platforms/local/restart_backoff.py`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from exo_inference.controller.admission.host_room import need_of
from exo_inference.controller.conditions import REFUSED_REASON, condition
from exo_inference.controller.stores.base import NewEvent
from exo_inference.foreign_files.errors import shown
from exo_inference.platforms.base import (
    DesiredDeployment,
    ObservedDeployment,
    ObservedReplica,
    ReplicaPhase,
)
from exo_inference.resources import (
    Condition,
    InferenceDeployment,
    InferenceModel,
    ReplicaState,
    find_condition,
    is_true,
)
from exo_inference.resources.settled_spec import spec_before
from exo_inference.resources.states import files_state
from exo_inference.wire import ModelState

CRASH_LOOP_RESTARTS = 3
"""A replica that crashed so often, with none serving, makes the deployment an error."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing can be done before the model is ready."""

    conditions: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """Ask the platform for its next step."""

    desired: DesiredDeployment


@dataclass(frozen=True, slots=True)
class TearDown:
    """The deployment is being deleted: routes first, then the platform, then the object."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the observed replicas mean."""

    conditions: tuple[Condition, ...]
    events: tuple[NewEvent, ...]


def decide(
    deployment: InferenceDeployment, model: InferenceModel | None, *, unrouted: frozenset[str]
) -> Hold | Apply | TearDown:
    """Decide the next step; `unrouted` are replicas that the gateway sends no requests to."""
    if deployment.metadata.deletion_timestamp is not None:
        return TearDown()
    if model is None:
        name = shown(deployment.spec.model)
        missing = (
            f"there is no model {name}; create it with "
            f"`exo dedicated-inference model create {shlex.quote(name)}`, or apply an "
            "InferenceModel with that source"
        )
        return Hold(_held("ModelMissing", missing, failed=True))
    state, details = files_state(model)
    path = model.status.path
    if state == ModelState.ERROR:
        text = f"the model {model.spec.source} cannot be used: {details}"
        return Hold(_held("ModelFailed", text, failed=True))
    if state != ModelState.READY or path is None:
        waiting = details if state == ModelState.DOWNLOADING else f"model {state}: {details}"
        return Hold(_held("ModelNotReady", waiting.rstrip(": "), failed=False))
    return Apply(
        DesiredDeployment(
            uid=deployment.metadata.uid,
            name=deployment.metadata.name,
            spec=deployment.spec,
            model_path=path,
            model_size_bytes=model.status.size_bytes,
            need=need_of(deployment, model.status.size_bytes),
            unrouted=unrouted,
            release=deployment.status.release,
            roll=deployment.roll,
            restarted_at=datetime.fromisoformat(deployment.restart) if deployment.restart else None,
        )
    )


def held_beside(
    found: Sequence[Condition], observed: ObservedDeployment, wanted: int
) -> tuple[Condition, ...]:
    """Return the conditions of a deployment that is held, while the version before it serves on."""
    ready = [r for r in observed.replicas if r.phase == ReplicaPhase.READY]
    others = [each for each in found if each.type != "Available"]
    return (*others, _available(ready, wanted, is_autoscaled=False))


def assess_deployment(deployment: InferenceDeployment, observed: ObservedDeployment) -> Assessment:
    """Say what the replicas mean for the deployment."""
    wanted = _wanted(deployment, observed)
    ready = [r for r in observed.replicas if r.phase == ReplicaPhase.READY]
    failed = _find_failure(observed, any_ready=bool(ready))
    progressing = _progressing(deployment, observed)
    conditions = (
        condition("Admitted", True, "Admitted"),
        condition("ModelReady", True, "ModelReady"),
        progressing,
        _available(
            ready,
            wanted,
            is_autoscaled=observed.autoscaled is not None,
            is_tried=spec_before(deployment) is None,
        ),
        failed or condition("Failed", False, "NoFailure"),
    )
    events = _replica_events(deployment.status.replicas, observed.replicas)
    if observed.notice:
        events.append(NewEvent("Warning", "ChangedByHand", observed.notice))
    return Assessment(conditions=conditions, events=tuple(events))


def is_restarting(observed: ObservedDeployment | None) -> bool:
    """Whether a replica that served until it crashed is about to be started again.

    However often it did so before: it waits only seconds, and is no replica that never gets ready.
    """
    replicas = () if observed is None else observed.replicas
    return any(replica.phase == ReplicaPhase.BACKOFF and replica.served for replica in replicas)


def coming_models(observed: ObservedDeployment | None) -> list[str]:
    """Return the names that replicas answer to which served before and are on their way again."""
    away = (ReplicaPhase.STARTING, ReplicaPhase.PENDING, ReplicaPhase.BACKOFF)
    replicas = () if observed is None else observed.replicas
    found = [each for each in replicas if each.has_served and each.phase in away]
    return sorted({name for replica in found for name in replica.models})


def blocked_conditions(previous: Sequence[Condition], message: str) -> tuple[Condition, ...]:
    """Return the conditions while the platform cannot take a step now; what was so stays so."""
    before = find_condition(previous, "Progressing")
    kept = before is not None and before.reason in ("Scaling", "Updating")
    reason = before.reason if before is not None and kept else "Deploying"
    others = [entry for entry in previous if entry.type in ("Available", "Failed")]
    return (
        condition("Admitted", True, "Admitted"),
        condition("ModelReady", True, "ModelReady"),
        condition("Progressing", True, reason, message),
        *others,
    )


def refused_conditions(
    deployment: InferenceDeployment, message: str, reason: str = REFUSED_REASON
) -> tuple[Condition, ...]:
    """Return the conditions of what cannot be, such as a specification; what runs serves on."""
    kept = find_condition(deployment.status.conditions, "Available")
    if kept is None or not deployment.status.replicas:
        kept = condition("Available", False, "NoReplicas", message)
    return (
        condition("Admitted", False, reason, message),
        condition("ModelReady", True, "ModelReady"),
        condition("Progressing", False, reason, message),
        kept,
        condition("Failed", True, reason, message),
    )


def _held(reason: str, message: str, *, failed: bool) -> tuple[Condition, ...]:
    return (
        condition("Admitted", True, "Admitted"),
        condition("ModelReady", False, reason, message),
        condition("Progressing", not failed, "Deploying", message),
        condition("Available", False, "NoReplicas", message),
        condition("Failed", failed, reason if failed else "NoFailure", message if failed else ""),
    )


def _wanted(deployment: InferenceDeployment, observed: ObservedDeployment) -> int:
    """Return how many replicas there should be; an autoscaler on the pods goes first."""
    return deployment.spec.replicas if observed.autoscaled is None else observed.autoscaled


def _progressing(deployment: InferenceDeployment, observed: ObservedDeployment) -> Condition:
    previous, wanted = deployment.status.conditions, _wanted(deployment, observed)
    replicas = observed.replicas
    active = [r for r in replicas if r.phase != ReplicaPhase.DRAINING]
    settled = len(active) == len(replicas) == wanted and all(
        r.current and r.phase == ReplicaPhase.READY for r in replicas
    )
    if settled:
        return condition("Progressing", False, "Settled", "all replicas are as asked for")
    before = find_condition(previous, "Progressing")
    ongoing = before.reason if before is not None and is_true(previous, "Progressing") else None
    if any(not r.current for r in replicas) or ongoing == "Updating":
        reason = "Updating"
    elif before is None or ongoing == "Deploying":
        reason = "Deploying"
    elif ongoing == "Scaling" or len(active) != len(replicas) or _is_new_size(deployment, observed):
        reason = "Scaling"
    else:
        reason = "Recovering"
    return condition("Progressing", True, reason, _explain(replicas, wanted))


def _is_new_size(deployment: InferenceDeployment, observed: ObservedDeployment) -> bool:
    """Whether another number of replicas is wanted than at the last look."""
    status = deployment.status
    if observed.autoscaled is not None:
        return status.autoscaled_replicas not in (None, observed.autoscaled)
    before = [r for r in status.replicas if r.state != ReplicaPhase.DRAINING]
    is_new = status.observed_generation < deployment.metadata.generation
    return is_new and len(before) != deployment.spec.replicas


def _explain(replicas: Sequence[ObservedReplica], wanted: int) -> str:
    """Say where it stands: `ready 1 of 2: replica x: loading weights 43 %`."""
    ready = sum(r.phase == ReplicaPhase.READY for r in replicas)
    draining = sum(r.phase == ReplicaPhase.DRAINING for r in replicas)
    waiting = [r for r in replicas if r.phase not in (ReplicaPhase.READY, ReplicaPhase.DRAINING)]
    parts = [f"replica {r.name}: {r.details or r.phase.value}" for r in waiting[:1]]
    if len(waiting) > 1:
        parts.append(f"{len(waiting) - 1} more not ready")
    old = sum(not r.current and r.phase == ReplicaPhase.READY for r in replicas)
    if old:
        parts.append(f"{old} of the previous version still serving")
    if draining:
        parts.append(f"{draining} finishing their requests")
    head = f"ready {ready} of {wanted}" if wanted else "scaled to 0"
    if wanted == 1 and ready == 0 and parts:
        return "; ".join(parts)
    return f"{head}: {'; '.join(parts)}" if parts else head


def _available(
    replicas: Sequence[ObservedReplica],
    wanted: int,
    *,
    is_autoscaled: bool,
    is_tried: bool = True,
) -> Condition:
    ready = len(replicas)
    if wanted == 0 and ready == 0:
        text = "scaled to 0: requests are answered 503 until you scale it up"
        if is_autoscaled:
            text = (
                "scaled to 0 by the autoscaler: requests are answered 503 until it starts a replica"
            )
        if not is_tried:
            text += "; what was changed last has not served yet"
        return condition("Available", True, "ScaledToZero", text)
    # What a ready replica has to say, all of them say: that they are simulated.
    text = replicas[0].details if ready >= wanted else f"ready {ready} of {wanted}"
    return condition("Available", ready > 0, "ReplicasReady" if ready else "NoReplicas", text)


def _find_failure(observed: ObservedDeployment, *, any_ready: bool) -> Condition | None:
    if observed.failure:
        return condition("Failed", True, "ChangeFailed", observed.failure)
    current = [replica for replica in observed.replicas if replica.current]
    for replica in current:
        if replica.phase == ReplicaPhase.FAILED:
            text = f"replica {replica.name}: {replica.details or 'failed'}"
            if any_ready:
                text += "; the replicas that are ready still serve"
            return condition("Failed", True, "ReplicaFailed", text)
    for replica in current:
        looping = replica.restarts >= CRASH_LOOP_RESTARTS and not any_ready
        if replica.phase == ReplicaPhase.BACKOFF and looping:
            text = f"replica {replica.name} crashed {replica.restarts} times: {replica.details}"
            return condition("Failed", True, "CrashLoop", text.rstrip(": "))
    return None


def _replica_events(
    before: Sequence[ReplicaState], now: Sequence[ObservedReplica]
) -> list[NewEvent]:
    known = {replica.name: replica for replica in before}
    events = []
    for replica in now:
        old = known.get(replica.name)
        became = old is None or old.state != replica.phase.value
        if replica.phase == ReplicaPhase.READY and became:
            events.append(NewEvent("Normal", "ReplicaReady", f"replica {replica.name} is ready"))
        elif replica.phase in (ReplicaPhase.BACKOFF, ReplicaPhase.FAILED) and became:
            reason = f"Replica{replica.phase.value.capitalize()}"
            text = f"replica {replica.name}: {replica.details or replica.phase.value}"
            events.append(NewEvent("Warning", reason, text))
        elif old is None:
            events.append(NewEvent("Normal", "ReplicaStarted", f"replica {replica.name} started"))
    return events


def to_state(replica: ObservedReplica, model: str) -> ReplicaState:
    """Return a replica as the status of a deployment keeps it whose model is `model`."""
    return ReplicaState(
        name=replica.name,
        state=replica.phase.value,
        details=replica.details,
        pid=replica.pid,
        restarts=replica.restarts,
        started_at=replica.started_at,
        models=None if replica.models in ((), (model,)) else replica.models,
    )
