"""What was in effect last of a deployment, and whether what it asks for now was refused. Pure.

The reconciler keeps both in the status (`controller/reconcile/rollback.py`).
"""

from __future__ import annotations

from pydantic import ValidationError

from exo_inference.resources.deployment import DeploymentSpec, InferenceDeployment


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


def read_refusal(deployment: InferenceDeployment) -> str:
    """Return why the present specification is not tried (again); empty where it is."""
    status = deployment.status
    is_same = status.refused_spec == deployment.spec.digest
    return status.refused_reason if is_same and status.refused_restart == deployment.restart else ""
