"""Error bodies: problem details of RFC 9457, plus `message` for clients that read only that."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import WireModel
from exo_inference.wire.plans import DeploymentPlan

SIGNATURE_PROBLEM = "urn:exo-inference:problem:signature"
"""`type` of a 403 that is about the caller's signature, and not about what was asked for."""


class FieldProblem(WireModel):
    """One problem with one field, or a way out where `location` is missing.

    `location` is a JSON path such as `$['replicas']`.
    """

    detail: str
    location: str | None = None


class Problem(WireModel):
    """Body of every answer of 400 and above.

    `detail` says what is wrong, or how many things are where `errors` lists them; `message` is the
    whole text, for clients that read nothing else.
    """

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    message: str
    errors: list[FieldProblem] | None = None
    deployments: list[str] | None = Field(default=None, description="deleting a model in use: 412")
    plan: DeploymentPlan | None = Field(
        default=None, description="additive: why a deployment is refused, and what would fit"
    )
