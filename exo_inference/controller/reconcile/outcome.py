"""What one pass of a reconciler came to; both reconcilers of models and that of deployments answer so."""

from __future__ import annotations

from dataclasses import dataclass

from exo_inference.resources import InferenceDeployment, InferenceModel

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
    """Return the uid to write down of an object: for good, so only one that it has."""
    return obj.status.uid if obj.metadata.uid_problem is not None else obj.metadata.uid
