"""Operations: what every write answers with."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import OpenEnum, WireModel
from exo_inference.wire.plans import DeploymentPlan, PlanProblem


class OperationState(OpenEnum):
    """Where an operation stands."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILURE = "failure"
    TIMEOUT = "timeout"


class OperationReason(OpenEnum):
    """Why an operation failed."""

    BUSY = "busy"
    CONFLICT = "conflict"
    FAULT = "fault"
    FORBIDDEN = "forbidden"
    INCORRECT = "incorrect"
    INTERRUPTED = "interrupted"
    NOT_FOUND = "not-found"
    PARTIAL = "partial"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"
    UNSUPPORTED = "unsupported"


class Reference(WireModel):
    """The object an operation is about; `id` is set from the first answer on."""

    id: str
    link: str | None = None
    command: str | None = None


class Operation(WireModel):
    """Answer of every write, and of `GET /operation/{id}`."""

    id: str
    state: OperationState
    reason: OperationReason | None = None
    message: str | None = None
    reference: Reference | None = None
    plan: DeploymentPlan | None = Field(
        default=None, description="additive: what a created or updated deployment takes and gives"
    )
    warnings: list[PlanProblem] | None = Field(
        default=None,
        description="additive: what is to be said of the number of replicas that a deployment was scaled to",
    )
    version: str | None = Field(
        default=None, description="additive: the version that a changed deployment has now"
    )
    generation: int | None = Field(
        default=None, description="additive: the number of the specification that was asked for"
    )
