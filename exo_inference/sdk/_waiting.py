"""How waiting goes: poll intervals and verdicts, pure. The clients' loops only sleep and ask."""

from __future__ import annotations

from typing import TypeVar

from exo_inference.errors import ConnectionFailed, NotReady, OperationFailed, ServerError
from exo_inference.wire import Deployment, Model, Operation, OperationState

MAX_FAILED_POLLS = 5
"""So many polls in a row may fail for the server's or the network's reasons before a wait ends."""

ROLLED_BACK = "the update was rolled back"
"""What the details of a deployment begin with whose update failed, while the version before it is back."""

TOLERATED = (ConnectionFailed, ServerError)

Waitable = TypeVar("Waitable", Model, Deployment)


def operation_interval(elapsed_seconds: float) -> float:
    """Return the pause before the next poll of an operation: 3 s at first, 60 s after 15 minutes.

    The curve is that of Exoscale's own clients (egoscale, `client.go`).
    """
    return max(3.0, min(60.0, 57.0 / 870.0 * elapsed_seconds + 1.03))


def ready_interval(elapsed_seconds: float) -> float:
    """Return the pause before the next look at an object: quick at first, 5 s in the long run."""
    return max(0.1, min(5.0, elapsed_seconds / 20.0))


def finished(operation: Operation) -> bool:
    """Whether an operation has ended, well or not: any state but pending is an end."""
    return operation.state != OperationState.PENDING


def check_operation(operation: Operation) -> Operation:
    """Return a finished operation if it ended well.

    Raises:
        OperationFailed: it did not.
    """
    if operation.state == OperationState.SUCCESS:
        return operation
    reason = str(operation.reason or "unknown")
    about = ""
    if operation.reference is not None:
        command = f"{operation.reference.command} " if operation.reference.command else ""
        about = f" ({command}{operation.reference.id})"
    message = operation.message or "the API gave no message"
    raise OperationFailed(
        f"operation {operation.id}{about}: {operation.state}, {reason}: {message}", reason=reason
    )


def operation_timed_out(operation_id: str, timeout: float) -> NotReady:
    """Return the error of an operation that is still pending."""
    return NotReady(
        f"operation {operation_id} is still pending after {timeout:g} s",
        state=str(OperationState.PENDING),
        hint="It goes on at the server; look again later.",
    )


def is_ready(obj: Model | Deployment) -> bool:
    """Whether the object can be used.

    Raises:
        NotReady: it is in error, so that waiting longer is of no use.
    """
    if obj.state == "error":
        reason = obj.state_details or "the API gave no details"
        raise _never_ready(
            obj, f": {reason}" if is_rolled_back(obj) else f" cannot become ready: {reason}"
        )
    return obj.state == "ready"


def is_scaled(obj: Deployment) -> bool:
    """Whether as many replicas as wanted are ready, be it of the version before a rolled-back update.

    Raises:
        NotReady: it is in error, so that waiting longer is of no use.
    """
    if not is_rolled_back(obj):
        return is_ready(obj)
    failed = next((each for each in obj.replica_status or () if each.state == "failed"), None)
    if failed is not None:
        reason = failed.details or "it failed"
        raise _never_ready(obj, f" cannot become ready: replica {failed.name}: {reason}")
    return obj.ready_replicas == obj.replicas


def is_rolled_back(obj: Model | Deployment) -> bool:
    """Whether an update failed and the version before it is wanted in its place."""
    return obj.state == "error" and (obj.state_details or "").startswith(ROLLED_BACK)


def _never_ready(obj: Model | Deployment, why: str) -> NotReady:
    return NotReady(
        f'{_kind(obj)} "{obj.name}"{why}',
        state=str(obj.state),
        state_details=obj.state_details or "",
        hint=_look_hint(obj),
    )


def not_ready_in_time(obj: Model | Deployment, timeout: float, wanted: str) -> NotReady:
    """Return the error of a wait that ran out."""
    details = f" ({obj.state_details})" if obj.state_details else ""
    return NotReady(
        f'{_kind(obj)} "{obj.name}" is not {wanted} after {timeout:g} s: {obj.state}{details}',
        state=str(obj.state),
        state_details=obj.state_details or "",
        hint=_look_hint(obj),
    )


def _kind(obj: Model | Deployment) -> str:
    return "model" if isinstance(obj, Model) else "deployment"


def _look_hint(obj: Model | Deployment) -> str:
    command = "logs" if isinstance(obj, Deployment) else "show"
    return f"Run `exo dedicated-inference {_kind(obj)} {command} {obj.name}`."
