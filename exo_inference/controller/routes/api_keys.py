"""`/ai/api-key`: scoped inference keys. A value is shown once and stored as a hash."""

from __future__ import annotations

import re
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from exo_inference.controller import operations
from exo_inference.controller.body import Fields, parse_object
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.problems import Issue, Refused, field_issue, refuse
from exo_inference.controller.routes.requests import answer, is_uuid, load, read_flag, route
from exo_inference.controller.secret_box import hash_api_key, new_api_key
from exo_inference.controller.stores.base import (
    NameTaken,
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
)
from exo_inference.controller.views import view_api_key
from exo_inference.resources import (
    PUBLIC_SCOPE,
    ApiKeySpec,
    InferenceApiKey,
    InferenceDeployment,
    ObjectMeta,
    api_key_object_name,
)
from exo_inference.wire import ApiKeyList, CreateApiKey, CreatedApiKey

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 _'()-]*[A-Za-z0-9])?")
_TITLE = "API key not created"


async def create_api_key(request: Request) -> Response:
    """Make a key and show its value, this once (and to a repeat of the very same request)."""
    context = context_of(request)
    if read_flag(request, "dry-run"):
        raise Refused(400, _TITLE, "creating an API key has no dry run")
    fields = Fields(CreateApiKey, parse_object(await request.body()))
    identity = await operations.identify_request(request)
    async with context.writing:
        repeated = await operations.find_repeated(context.store, identity)
        if identity is not None and repeated is not None:
            return answer(await _show_again(context, identity, repeated))
        name, scope = await _admit(context, fields)
        value = _make_value(context, identity)
        uid = operations.new_uid(identity)
        key = InferenceApiKey(
            metadata=ObjectMeta(name=api_key_object_name(name), uid=uid),
            spec=ApiKeySpec(display_name=name, scope=scope, sha256=hash_api_key(value)),
        )
        recording = Recording(
            request=None if identity is None else replace(identity, result_id=uid),
            events=(NewEvent("Normal", "Created", f"API key {name!r} was created"),),
        )
        try:
            stored = await context.store.create(key, recording)
        except NameTaken as exc:  # by another controller, in this moment
            raise refuse(_TITLE, [_name_taken(name)]) from exc
    await context.routing.wait_for_key(key.spec.sha256, accepted=True)
    return answer(_show(context, stored, value))


async def list_api_keys(request: Request) -> Response:
    """List all keys, without their values."""
    context = context_of(request)
    keys = await context.store.list(InferenceApiKey)
    return answer(ApiKeyList(ai_api_keys=[view_api_key(key, context.org_uuid) for key in keys]))


async def get_api_key(request: Request) -> Response:
    """Show one key, without its value."""
    context = context_of(request)
    key = await load(context.store, InferenceApiKey, request)
    return answer(view_api_key(key, context.org_uuid))


async def delete_api_key(request: Request) -> Response:
    """Remove a key; the gateway refuses it from its next table on."""
    context = context_of(request)
    is_dry_run = read_flag(request, "dry-run")
    async with context.writing:
        key = await load(context.store, InferenceApiKey, request)
        uid = key.metadata.uid
        if is_dry_run:
            return answer(operations.dry_run("api-key", uid))
        operation = operations.succeeded("api-key", uid)
        await context.store.delete(InferenceApiKey, uid, Recording(operation))
    await context.routing.wait_for_key(key.spec.sha256, accepted=False)
    return answer(operation)


async def _admit(context: Context, fields: Fields) -> tuple[str, str]:
    issues = list(fields.issues)
    name, scope = fields.values.get("name"), fields.values.get("scope")
    if isinstance(name, str):
        if not 1 <= len(name) <= 50 or not _NAME.fullmatch(name):
            text = (
                "must be 1 to 50 letters, digits, blanks and _'()-, beginning and ending with a "
                f"letter or digit, found {name[:64]!r}"
            )
            issues.append(field_issue("name", text))
        keys = await context.store.list(InferenceApiKey)
        if any(key.spec.display_name == name for key in keys):
            issues.append(_name_taken(name))
    if isinstance(scope, str) and scope != PUBLIC_SCOPE:
        scope = scope.lower()
        if issue := await _check_scope(context, scope):
            issues.append(issue)
    if issues:
        raise refuse(_TITLE, issues)
    return str(name), str(scope)


def _name_taken(name: str) -> Issue:
    text = f"another API key has the name {name!r}"
    return Issue(text, "$['name']", text, 409)


async def _check_scope(context: Context, scope: str) -> Issue | None:
    if not is_uuid(scope):
        return field_issue("scope", f"must be `public` or a deployment's id, found {scope[:64]!r}")
    try:
        deployment = await context.store.get(InferenceDeployment, scope)
    except ObjectNotFound:
        deployment = None
    if deployment is None or deployment.metadata.deletion_timestamp is not None:
        text = f"there is no deployment with the id {scope!r}"
        return Issue(text, "$['scope']", text, 404)
    return None


def _make_value(context: Context, identity: RecordedRequest | None) -> str:
    if identity is None:
        return new_api_key()
    return context.secret_box.repeatable_api_key(f"{identity.key}:{identity.fingerprint}")


async def _show_again(context: Context, identity: RecordedRequest, uid: str) -> CreatedApiKey:
    value = _make_value(context, identity)
    try:
        key = await context.store.get(InferenceApiKey, uid)
    except ObjectNotFound as exc:
        raise Refused(
            409,
            _TITLE,
            "the key that this request created has been deleted since",
            hint="Use a new Idempotency-Key for a new API key.",
        ) from exc
    return _show(context, key, value)


def _show(context: Context, key: InferenceApiKey, value: str) -> CreatedApiKey:
    view = view_api_key(key, context.org_uuid)
    return CreatedApiKey(**view.model_dump(by_alias=False), value=value)


ROUTES = [
    route("/v2/ai/api-key", GET=list_api_keys, POST=create_api_key),
    route("/v2/ai/api-key/{id}", GET=get_api_key, DELETE=delete_api_key),
]
