"""What one pass of a reconciler came to; both reconcilers of models and that of deployments answer so."""

from __future__ import annotations

from dataclasses import dataclass

from exo_inference.kubernetes_api.identity import DUPLICATE_REASON
from exo_inference.resources import DeploymentStatus, InferenceDeployment, InferenceModel

TEARDOWN_CHECK_SECONDS = 0.3
"""How soon to look again while what was deleted is being taken down."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one pass came to.

    Attributes:
        again_after_seconds: when to look again; None is when something changes.
        failed: look again with growing delays instead.
        changed: the status was written.
    """

    again_after_seconds: float | None = None
    failed: bool = False
    changed: bool = False


def adopted_uid(obj: InferenceDeployment | InferenceModel) -> str:
    """Return the uid to write down of an object, for good: one that it has.

    Of an object that asked for the uid of another it is its own, or it would inherit by waiting.
    """
    problem, status = obj.metadata.uid_problem, obj.status
    adopted = status.url if isinstance(status, DeploymentStatus) else status.path
    is_refused = problem is not None and problem.reason == DUPLICATE_REASON
    if problem is None or (is_refused and not status.uid and not adopted):
        return obj.metadata.uid
    return status.uid
