"""Small objects for the tests of pure parts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from exo_inference.controller.conditions import condition, merge
from exo_inference.controller.reconcile import decision
from exo_inference.platforms.base import ObservedDeployment, ObservedReplica, ReplicaPhase
from exo_inference.resources import (
    Condition,
    DeploymentSpec,
    DeploymentStatus,
    InferenceDeployment,
    InferenceModel,
    ModelSpec,
    ModelStatus,
    ObjectMeta,
)

NOW = datetime(2026, 11, 20, 20, 0, tzinfo=UTC)


def deployment(
    *,
    replicas: int = 1,
    conditions: Sequence[Condition] = (),
    observed: int = 1,
    generation: int = 1,
    deleting: bool = False,
) -> InferenceDeployment:
    return InferenceDeployment(
        metadata=ObjectMeta(
            name="chat",
            uid="uid-1",
            generation=generation,
            creation_timestamp=NOW,
            deletion_timestamp=NOW if deleting else None,
        ),
        spec=DeploymentSpec(model="org/m1", gpu_type="cpu", replicas=replicas),
        status=DeploymentStatus(conditions=tuple(conditions), observed_generation=observed),
    )


def model(*conditions: Condition, path: str | None = None) -> InferenceModel:
    return InferenceModel(
        metadata=ObjectMeta(name="m", uid="uid-m", generation=1, creation_timestamp=NOW),
        spec=ModelSpec(source="org/m1"),
        status=ModelStatus(conditions=conditions, path=path),
    )


def ready_model() -> InferenceModel:
    ready = [condition(type_, True, type_) for type_ in ("Resolved", "Downloaded", "Ready")]
    return model(*ready, path="/models/m")


def replica(
    name: str,
    phase: ReplicaPhase | str = "ready",
    *,
    current: bool = True,
    details: str = "",
    restarts: int = 0,
) -> ObservedReplica:
    return ObservedReplica(
        name=name,
        phase=ReplicaPhase(phase),
        current=current,
        details=details,
        restarts=restarts,
        address=f"unix:replicas/{name}/engine.sock",
    )


def assess(
    obj: InferenceDeployment,
    *replicas: ObservedReplica,
    autoscaled: int | None = None,
    failure: str = "",
) -> InferenceDeployment:
    """Return the deployment with the status that these replicas give it.

    Args:
        obj: the deployment.
        replicas: what is there.
        autoscaled: the number that an autoscaler asks for.
        failure: why what was asked for is not carried out.
    """
    observed = ObservedDeployment(replicas, autoscaled=autoscaled, failure=failure)
    found = decision.assess_deployment(obj, observed)
    generation = obj.metadata.generation
    status = DeploymentStatus(
        conditions=merge(obj.status.conditions, found.conditions, generation=generation, now=NOW),
        observed_generation=generation,
        replicas=tuple(decision.to_state(r, obj.spec.model) for r in replicas),
        ready_replicas=sum(r.phase == ReplicaPhase.READY for r in replicas),
        autoscaled_replicas=autoscaled,
    )
    return obj.model_copy(update={"status": status})
