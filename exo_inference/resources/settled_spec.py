"""What was in effect last of a deployment, and whether what it asks for now was refused. Pure.

The reconciler keeps both in the status (`controller/reconcile/rollback.py`).
"""

from __future__ import annotations

from pydantic import ValidationError

from exo_inference.resources.deployment import (
    MEMORY_ANNOTATION,
    MEMORY_BEFORE_ANNOTATION,
    DeploymentSpec,
    InferenceDeployment,
)


def read_settled(deployment: InferenceDeployment) -> DeploymentSpec | None:
    """Return the specification that was in effect last; None where none was, or nobody can read it."""
    try:
        return DeploymentSpec.model_validate_json(deployment.status.settled_spec)
    except ValidationError:
        return None


def spec_before(deployment: InferenceDeployment) -> DeploymentSpec | None:
    """Return what was in effect before the present specification, with as many replicas as are wanted now.

    None where nothing was, or where that is still in effect.
    """
    settled = read_settled(deployment)
    if settled is None or settled.digest == deployment.spec.digest:
        return None
    return settled.model_copy(update={"replicas": deployment.spec.replicas})


def note_memory(deployment: InferenceDeployment) -> dict[str, str]:
    """Return the annotation that keeps what the version in effect was admitted with, once another is asked for."""
    if spec_before(deployment) is not None:
        return {}  # the present one has not served; what is noted is of the one that has
    need = deployment.metadata.annotations.get(MEMORY_ANNOTATION, "")
    return {MEMORY_BEFORE_ANNOTATION: f"{deployment.spec.digest} {need}"}


def with_spec_before(deployment: InferenceDeployment, spec: DeploymentSpec) -> InferenceDeployment:
    """Return the deployment as it was with `spec`, and with the memory that was admitted for it then."""
    metadata = deployment.metadata
    digest, _, need = metadata.annotations.get(MEMORY_BEFORE_ANNOTATION, "").partition(" ")
    if digest == spec.digest:
        annotations = {**metadata.annotations, MEMORY_ANNOTATION: need}
        metadata = metadata.model_copy(update={"annotations": annotations})
    return deployment.model_copy(update={"metadata": metadata, "spec": spec})


def read_refusal(deployment: InferenceDeployment) -> str:
    """Return why the present specification is not tried (again); empty where it is."""
    status = deployment.status
    is_same = status.refused_spec == deployment.spec.digest
    return status.refused_reason if is_same and status.refused_restart == deployment.restart else ""
