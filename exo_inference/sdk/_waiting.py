"""How waiting goes: poll intervals and verdicts, pure. The clients' loops only sleep and ask."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from exo_inference.errors import (
    ConnectionFailed,
    NotFound,
    NotReady,
    OperationFailed,
    Overwritten,
    ServerError,
)
from exo_inference.wire import Deployment, Model, Operation, OperationState

MAX_FAILED_POLLS = 5
"""So many polls in a row may fail for the server's or the network's reasons before a wait ends."""

ROLLED_BACK = "the update was rolled back"
"""What the details of a deployment begin with whose update failed, while the version before it is back."""

TOLERATED = (ConnectionFailed, ServerError)

Waitable = TypeVar("Waitable", Model, Deployment)


def operation_interval(elapsed_seconds: float) -> float:
    """Return the pause before the next poll of an operation: 1 s at first, 60 s after 15 minutes.

    The curve is that of Exoscale's own clients (egoscale, `client.go`), which begin with 3 s; their
    SDK for Java polls each second.
    """
    return min(60.0, 57.0 / 870.0 * elapsed_seconds + 1.03)


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
        NotReady: it is in error or scaled to 0, so that waiting longer is of no use.
    """
    if isinstance(obj, Deployment) and obj.replicas == 0:
        error = _never_ready(obj, " is scaled to 0, so nothing becomes ready")
        error.hint = f"Run `exo dedicated-inference deployment scale {obj.name} 1`."
        raise error
    return _is_well(obj)


def _is_well(obj: Model | Deployment) -> bool:
    if obj.state == "error":
        reason = obj.state_details or "the API gave no details"
        raise _never_ready(
            obj, f": {reason}" if is_rolled_back(obj) else f" cannot become ready: {reason}"
        )
    return obj.state == "ready"


def is_in_effect(
    obj: Model | Deployment, change: Operation | None, asked: Mapping[str, Any] | None
) -> bool:
    """Whether what was read has a change in it; an older state, as another server may know it, has not.

    An API that tells no versions cannot be asked: then it is taken for granted.

    Raises:
        Overwritten: a later change took it back.
    """
    if change is None or change.generation is None or not isinstance(obj, Deployment):
        return True
    if obj.generation is None or obj.version == change.version:
        return True
    if obj.generation < change.generation:
        return False
    if asked is not None and all(getattr(obj, name) == value for name, value in asked.items()):
        return True
    raise _overwritten(obj, asked)


def _overwritten(obj: Deployment, asked: Mapping[str, Any] | None) -> Overwritten:
    lost = [name for name, value in (asked or {}).items() if getattr(obj, name) != value]
    now = ", ".join(f"{name.replace('_', '-')} is {getattr(obj, name)!r} now" for name in lost)
    last = obj.last_change
    who = "" if last is None else f" with the key {last.by} at {last.at:%H:%M:%SZ}"
    return Overwritten(
        f'deployment "{obj.name}" was changed again{who}, and what was asked for is not in effect'
        f"{': ' if now else ''}{now}",
        state=str(obj.state),
        state_details=obj.state_details or "",
        hint=f"Run `exo dedicated-inference deployment show {obj.name}`, and repeat the change if it is "
        "still wanted.",
    )


def is_scaled(obj: Deployment) -> bool:
    """Whether as many replicas as wanted are ready, be it of the version before a rolled-back update.

    Raises:
        NotReady: it is in error, so that waiting longer is of no use.
    """
    if not is_rolled_back(obj):
        return _is_well(obj)
    failed = next((each for each in obj.replica_status or () if each.state == "failed"), None)
    if failed is not None:
        reason = failed.details or "it failed"
        raise _never_ready(obj, f" cannot become ready: replica {failed.name}: {reason}")
    return obj.ready_replicas == obj.replicas


def has_any(obj: Deployment, names: Collection[str]) -> bool:
    """Whether a replica with one of these names is still there."""
    return any(each.name in names for each in obj.replica_status or ())


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


def deleted_meanwhile(obj: Model | Deployment, wanted: str) -> NotFound:
    """Return the error of a wait whose object somebody else deleted."""
    is_said = (obj.state_details or "").startswith("deleting")
    last = "it was being deleted" if is_said else f"it was {obj.state} and never {wanted}"
    return NotFound(
        f'{_kind(obj)} "{obj.name}" was deleted while it was waited for; {last}',
        status_code=404,
        hint=f"Run `exo dedicated-inference {_kind(obj)} list` to see what there is.",
    )


def _kind(obj: Model | Deployment) -> str:
    return "model" if isinstance(obj, Model) else "deployment"


def _look_hint(obj: Model | Deployment) -> str:
    command = "logs" if isinstance(obj, Deployment) else "show"
    return f"Run `exo dedicated-inference {_kind(obj)} {command} {obj.name}`."
