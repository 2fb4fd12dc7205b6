"""Operations: what a write answers with, and the memory that makes a repeated create harmless.

A write is finished when it has been admitted and recorded, so its operation is a success from the
start; refusals are 4xx and have no operation. The operation of a deletion alone is recorded as
pending and ends when its object is gone: that is looked up whenever it is read, so nothing has to
be written at the end, and nothing can be lost. Called by the routes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import uuid
from collections.abc import Sequence
from datetime import UTC, date, datetime

from starlette.requests import Request

from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.context import context_of
from exo_inference.controller.http.views import deletion_details
from exo_inference.controller.stores.base import (
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
    RecordStore,
    Store,
)
from exo_inference.resources import InferenceApiKey, InferenceDeployment, InferenceModel, Resource
from exo_inference.wire import DeploymentPlan, Operation, OperationState, PlanProblem, Reference

ANSWER_WITHIN_SECONDS = 2.0
"""How long the answer to a deletion waits for its end: the Go client polls a pending one only after 3 s."""

_KEY = re.compile(r"[\x21-\x7e]{1,255}")

_REQUESTS = uuid.UUID("6c0b1f0e-6f0e-4d58-9a53-0d9f3b4b7c11")
"""The namespace of uids that are made of idempotent requests."""

_DELETIONS = uuid.UUID("4b9f0c52-8f1c-4a57-9a1e-6c1f2f0a7d33")
"""The namespace of the ids of deletions: one per object, so that all who delete it share it."""

_COMMANDS = {
    "model": ("get-model", "/v2/ai/model/"),
    "deployment": ("get-deployment", "/v2/ai/deployment/"),
    "api-key": ("get-ai-api-key", "/v2/ai/api-key/"),
}


def succeeded(
    noun: str,
    uid: str | None,
    message: str | None = None,
    plan: DeploymentPlan | None = None,
    warnings: Sequence[PlanProblem] = (),
) -> Operation:
    """Return the operation of a write that was recorded, about the object it changed."""
    command, prefix = _COMMANDS[noun]
    reference = None if uid is None else Reference(id=uid, link=prefix + uid, command=command)
    return Operation(
        id=str(uuid.uuid4()),
        state=OperationState.SUCCESS,
        message=message,
        reference=reference,
        plan=plan,
        warnings=list(warnings) or None,
    )


async def delete(
    store: Store, noun: str, obj: InferenceModel | InferenceDeployment, identity: RecordedRequest
) -> Operation:
    """Mark an object for deletion, and return the one operation of it, as recorded.

    A deletion of what is being deleted already joins it: it changes nothing and has the same id.

    Args:
        store: of the object.
        noun: of the object.
        obj: to be deleted.
        identity: of the request, under which the operation is found when it comes again.
    """
    uid = obj.metadata.uid
    deletion = Operation(
        id=_deletion_id(uid),
        state=OperationState.PENDING,
        reference=succeeded(noun, uid).reference,
    )
    if obj.metadata.deletion_timestamp is not None:
        try:
            return await store.get_operation(deletion.id)
        except ObjectNotFound:  # it was begun past the API
            await store.delete(type(obj), uid, Recording(deletion))
            return deletion
    event = NewEvent("Normal", "Deleting", "deletion was asked for")
    made = dataclasses.replace(identity, result_id=deletion.id)
    await store.delete(type(obj), uid, Recording(deletion, made, events=(event,)))
    return deletion


async def remove(store: Store, key: InferenceApiKey, identity: RecordedRequest) -> Operation:
    """Remove a key, which is gone at once, and return the one operation of that."""
    uid = key.metadata.uid
    removal = succeeded("api-key", uid).model_copy(update={"id": _deletion_id(uid)})
    made = dataclasses.replace(identity, result_id=removal.id)
    await store.delete(InferenceApiKey, uid, Recording(removal, made))
    return removal


def _deletion_id(uid: str) -> str:
    return str(uuid.uuid5(_DELETIONS, uid))


async def end_deletion(store: Store, operation: Operation, kind: type[Resource]) -> Operation:
    """Return the operation of a deletion as it stands, having waited a moment for its end."""
    assert operation.reference is not None, "it is about an object"
    uid = operation.reference.id
    await store.wait_until_gone(kind, uid, timeout_seconds=ANSWER_WITHIN_SECONDS)
    return await as_it_stands(store, operation)


async def as_it_stands(store: Store, operation: Operation) -> Operation:
    """Return a recorded operation as it is now; only a deletion is ever recorded as pending."""
    if operation.state != OperationState.PENDING or operation.reference is None:
        return operation
    uid = operation.reference.id
    try:
        if operation.reference.command == _COMMANDS["model"][0]:
            details = deletion_details(await store.get(InferenceModel, uid))
        else:
            details = deletion_details(await store.get(InferenceDeployment, uid))
    except ObjectNotFound:
        ended = {"state": OperationState.SUCCESS, "message": "deleted"}
        return operation.model_copy(update=ended)
    return operation.model_copy(update={"message": details})


def dry_run(
    noun: str,
    uid: str | None,
    plan: DeploymentPlan | None = None,
    warnings: Sequence[PlanProblem] = (),
    more: str = "",
) -> Operation:
    """Return the answer of an admitted dry run; it is recorded nowhere.

    Args:
        noun: what was to be written.
        uid: of it, where it is there.
        plan: of a deployment.
        warnings: beside the plan.
        more: what else is said.
    """
    text = "dry run: admitted, nothing was recorded" + (more and f"; {more}")
    return succeeded(noun, uid, text, plan, warnings)


async def identify_request(request: Request) -> RecordedRequest:
    """Return what makes a create this one and no other; `result_id` is open.

    That is the signature, as the vendor's clients send the same one again when they retry, and the
    key of an `Idempotency-Key` header, if there is one. Nobody signs the header, so it does not take
    the signature's place. So a retry is known after a restart, and to another controller, whatever its header.

    Raises:
        Refused: the key is not one, and the request was not done before.
    """
    signature = signature_key(request.state.signature)
    key = request.headers.get("idempotency-key", signature)
    if not _KEY.fullmatch(key):
        if await context_of(request).store.find_request(signature) is None:
            raise Refused(
                400,
                "Idempotency key not usable",
                "the header Idempotency-Key must be 1 to 255 printable ASCII characters",
                hint="A random UUID for each new create is a good key.",
            )
        key = signature
    fingerprint = await _fingerprint(request)
    return RecordedRequest(key, fingerprint, "", None if key == signature else signature)


async def _fingerprint(request: Request) -> str:
    text = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return hashlib.sha256(text).hexdigest()


async def identify_change(request: Request) -> RecordedRequest:
    """Return what makes a change this one and no other: its signature; `result_id` is open.

    So one that was captured is not made again after a restart, or by another controller.
    """
    key = signature_key(request.state.signature)
    return RecordedRequest(key, await _fingerprint(request), "")


def signature_key(signature: str) -> str:
    """Return what a write with this signature is known under."""
    return f"signature:{signature}"


def answered_before() -> Refused:
    """Return the refusal of what was answered before, where the answer is not kept."""
    return Refused(
        409,
        "Answered before",
        "this very request was answered before, and the answer is not kept any more",
        hint="Look at what is there, and sign a new request if something is missing.",
    )


def new_uid(request: RecordedRequest) -> str:
    """Return the uid of a new object: the same one whenever a create is repeated.

    So a repeat after a crash goes on with what was begun, instead of beginning beside it. It holds for one
    day, no longer than requests are remembered: the same Idempotency-Key of a later day makes another object,
    and never the value again that a key had which was deleted or rotated since.
    """
    return str(uuid.uuid5(_REQUESTS, f"{request.key}:{request.fingerprint}:{today()}"))


def today() -> date:
    """Return the date in UTC."""
    return datetime.now(UTC).date()


async def find_repeated(store: RecordStore, request: RecordedRequest) -> str | None:
    """Return the result id of the same create, if it was done before.

    Raises:
        Refused: 409, the key was used for another create, or the write was refused.
    """
    for key in reversed(request.keys):  # the signature first: an unsigned header spoils no repeat
        before = await store.find_request(key)
        if before is None:
            continue
        if before.is_refused:
            raise answered_before()
        if before.fingerprint == request.fingerprint:
            return before.result_id
        raise Refused(
            409,
            "Idempotency key used before",
            "the same Idempotency-Key came with another request",
            hint="Use a new key for a new create.",
        )
    return None


async def find_repeated_operation(store: RecordStore, request: RecordedRequest) -> Operation | None:
    """Return the operation of the same create or change, if it was done before.

    Raises:
        Refused: 409, the key was used for another create, or the write was refused.
    """
    result_id = await find_repeated(store, request)
    if result_id is None:
        return None
    try:
        return await store.get_operation(result_id)
    except ObjectNotFound:  # operations are kept longer than keys, so this is not expected
        return None
