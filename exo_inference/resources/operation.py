"""InferenceOperation: the memory of a write, on a cluster where there is no table for it.

Two uses of one kind: the outcome of a write, under its operation's id, and the memory of an
idempotent create, under a name made of its key's hash. `stores/kubernetes` alone writes them.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field

from exo_inference.resources.base import Resource, ResourceModel, cel_rules


class OperationSubject(ResourceModel):
    """The object a write is about, by its name in the cluster and by the id that clients know."""

    kind: str
    name: str
    uid: str


class OperationResult(ResourceModel):
    """What the API answers about the write.

    Attributes:
        state: of the operation, for who lists them.
        answer: all of it, in the JSON of the API, which has words of its own.
    """

    state: str
    answer: str


class IdempotentRequest(ResourceModel):
    """A create that carried an idempotency key; the key itself is not kept."""

    fingerprint: str
    result_id: str


class OperationSpec(ResourceModel):
    """What was written; one of `result` and `request` is there."""

    model_config = ConfigDict(
        json_schema_extra=cel_rules(
            ("has(self.result) != has(self.request)", "needs either result or request")
        )
    )

    subject: OperationSubject
    result: OperationResult | None = None
    request: IdempotentRequest | None = None


class OperationStatus(ResourceModel):
    """Whether the write is known to have been made; until then its subject has to be looked for."""

    recorded: bool = False


class InferenceOperation(Resource):
    """The memory of one write."""

    KIND: ClassVar[str] = "InferenceOperation"
    PLURAL: ClassVar[str] = "inferenceoperations"

    kind: Literal["InferenceOperation"] = "InferenceOperation"
    spec: OperationSpec
    status: OperationStatus = Field(default_factory=OperationStatus)
