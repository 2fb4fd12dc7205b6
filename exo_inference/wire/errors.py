"""Error bodies: problem details of RFC 9457, plus `message` for clients that read only that."""

from __future__ import annotations

from pydantic import Field

from exo_inference.wire.base import WireModel

SIGNATURE_PROBLEM = "urn:exo-inference:problem:signature"
"""`type` of a 403 that is about the caller's signature, and not about what was asked for."""


class FieldProblem(WireModel):
    """One problem with one field. `location` is a JSON path such as `$['replicas']`."""

    detail: str
    location: str | None = None


class Problem(WireModel):
    """Body of every answer of 400 and above."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    message: str
    errors: list[FieldProblem] | None = None
    deployments: list[str] | None = Field(default=None, description="deleting a model in use: 412")
