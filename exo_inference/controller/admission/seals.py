"""The seal of a specification that the API admitted, so that it is not judged again."""

from __future__ import annotations

import hmac

from exo_inference.controller.secret_box import SecretBox
from exo_inference.resources import ADMITTED_ANNOTATION, DeploymentSpec, InferenceDeployment


def admission_annotation(secret_box: SecretBox, uid: str, spec: DeploymentSpec) -> dict[str, str]:
    """Return what the API writes with a specification that it admitted."""
    digest = spec.full_digest
    return {ADMITTED_ANNOTATION: f"{digest}.{secret_box.admission_seal(uid, digest)}"}


def is_sealed(deployment: InferenceDeployment, secret_box: SecretBox) -> bool:
    """Whether the API admitted the present specification of this very object."""
    expected = admission_annotation(secret_box, deployment.metadata.uid, deployment.spec)
    found = deployment.metadata.annotations.get(ADMITTED_ANNOTATION, "")
    sealed = expected[ADMITTED_ANNOTATION].encode()
    return hmac.compare_digest(found.encode(errors="replace"), sealed)
