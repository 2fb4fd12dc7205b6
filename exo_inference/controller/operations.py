"""Operations: what a write answers with, and the memory that makes a repeated create harmless.

A write is finished when it has been admitted and recorded, so its operation is a success from the
start; refusals are 4xx and have no operation. Called by the routes.
"""

from __future__ import annotations

import hashlib
import re
import uuid

from starlette.requests import Request

from exo_inference.controller.problems import Refused
from exo_inference.controller.stores.base import ObjectNotFound, RecordedRequest, RecordStore
from exo_inference.wire import DeploymentPlan, Operation, OperationState, Reference

_KEY = re.compile(r"[\x21-\x7e]{1,255}")

_REQUESTS = uuid.UUID("6c0b1f0e-6f0e-4d58-9a53-0d9f3b4b7c11")
"""The namespace of uids that are made of idempotent requests."""

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
    )


def dry_run(noun: str, uid: str | None, plan: DeploymentPlan | None = None) -> Operation:
    """Return the answer of an admitted dry run; it is recorded nowhere."""
    return succeeded(noun, uid, "dry run: admitted, nothing was recorded", plan)


async def identify_request(request: Request) -> RecordedRequest | None:
    """Return what an `Idempotency-Key` header and the body say about a create; `result_id` is open.

    Raises:
        Refused: the key is not one.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise Refused(
            400,
            "Idempotency key not usable",
            "the header Idempotency-Key must be 1 to 255 printable ASCII characters",
            hint="A random UUID for each new create is a good key.",
        )
    text = f"{request.method} {request.url.path}\n".encode() + await request.body()
    return RecordedRequest(key, hashlib.sha256(text).hexdigest(), result_id="")


def new_uid(request: RecordedRequest | None) -> str:
    """Return the uid of a new object: the same one whenever an idempotent create is repeated.

    So a repeat after a crash goes on with what was begun, instead of beginning beside it.
    """
    if request is None:
        return str(uuid.uuid4())
    return str(uuid.uuid5(_REQUESTS, f"{request.key}:{request.fingerprint}"))


async def find_repeated(store: RecordStore, request: RecordedRequest | None) -> str | None:
    """Return the result id of the same create, if it was done before.

    Raises:
        Refused: 409, the key was used for another create.
    """
    if request is None:
        return None
    before = await store.find_request(request.key)
    if before is None:
        return None
    if before.fingerprint != request.fingerprint:
        raise Refused(
            409,
            "Idempotency key used before",
            "the same Idempotency-Key came with another request",
            hint="Use a new key for a new create.",
        )
    return before.result_id


async def find_repeated_operation(
    store: RecordStore, request: RecordedRequest | None
) -> Operation | None:
    """Return the operation of the same create, if it was done before.

    Raises:
        Refused: 409, the key was used for another create.
    """
    result_id = await find_repeated(store, request)
    if result_id is None:
        return None
    try:
        return await store.get_operation(result_id)
    except ObjectNotFound:  # operations are kept longer than keys, so this is not expected
        return None
