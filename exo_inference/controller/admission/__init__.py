"""Whether a wanted change may be recorded: the one seam where requests and objects are judged. Pure."""

from exo_inference.controller.admission.deployment import (
    AdmittedDeployment,
    admit_create,
    admit_model_deletion,
    admit_replace,
    admit_scale,
    admit_update,
    find_draft_name,
    keep,
)

__all__ = [
    "AdmittedDeployment",
    "admit_create",
    "admit_model_deletion",
    "admit_replace",
    "admit_scale",
    "admit_update",
    "find_draft_name",
    "keep",
]
