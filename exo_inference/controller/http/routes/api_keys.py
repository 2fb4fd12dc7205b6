"""`/ai/api-key`: scoped inference keys. A value is stored as a hash, and encrypted to be shown again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.problems import Issue, Refused, field_issue, refuse
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.http import operations
from exo_inference.controller.http.body import parse_object
from exo_inference.controller.http.routes.requests import answer, has_argument, load, route
from exo_inference.controller.http.views import view_api_key
from exo_inference.controller.secret_box import KEY_SECRET, hash_api_key
from exo_inference.controller.stores.base import (
    NameTaken,
    NewEvent,
    ObjectNotFound,
    RecordedRequest,
    Recording,
    VersionConflict,
)
from exo_inference.kubernetes_api.identity import is_uuid
from exo_inference.resources import (
    PUBLIC_SCOPE,
    ApiKeySpec,
    InferenceApiKey,
    InferenceDeployment,
    ObjectMeta,
    api_key_object_name,
)
from exo_inference.wire import ApiKeyList, ApiKeyValue, CreateApiKey, CreatedApiKey, UpdateApiKey

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9 _'()-]*[A-Za-z0-9])?")
_TITLE = "API key not created"
_MAX_ATTEMPTS = 5
_NOT_UPDATED = "API key not updated"


async def create_api_key(request: Request) -> Response:
    """Make a key and show its value."""
    context = context_of(request)
    fields = Fields(CreateApiKey, parse_object(await request.body()))
    identity = await operations.identify_request(request)
    async with context.writing:
        repeated = await operations.find_repeated(context.store, identity)
        if repeated is not None:
            return answer(await _show_again(context, identity, repeated))
        keys = await context.store.list(InferenceApiKey)
        name, scope = await _admit(context, fields, keys)
        uid = operations.new_uid(identity)
        value = context.secret_box.repeatable_api_key(uid)
        key = InferenceApiKey(
            metadata=ObjectMeta(name=_object_name(name, uid, keys), uid=uid),
            spec=ApiKeySpec(display_name=name, scope=scope, sha256=hash_api_key(value)),
        )
        recording = Recording(
            request=replace(identity, result_id=uid),
            secrets={KEY_SECRET: context.secret_box.encrypt(value, owner=uid, name=KEY_SECRET)},
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


async def update_api_key(request: Request) -> Response:
    """Change the name or the scope of a key; its value stays, and opens what the answer says alone.

    A repeat changes nothing, and shows the key as it is by then.
    """
    context = context_of(request)
    fields = Fields(UpdateApiKey, parse_object(await request.body()))
    identity = await operations.identify_change(request)
    async with context.writing:
        for attempt in range(_MAX_ATTEMPTS):
            present = await load(context.store, InferenceApiKey, request)
            if await operations.find_repeated(context.store, identity):
                return answer(view_api_key(present, context.org_uuid))
            name, scope = await _admit_update(context, fields, present)
            spec = present.spec.model_copy(update={"display_name": name, "scope": scope})
            made = replace(identity, result_id=present.metadata.uid)
            events = (NewEvent("Normal", "Updated", "a change was asked for"),)
            changed = present.model_copy(update={"spec": spec})
            try:
                stored = await context.store.update(changed, Recording(request=made, events=events))
            except VersionConflict:  # a status was written in between, or another controller did it
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
                continue
            break
    if scope != present.spec.scope:
        await context.routing.wait_for_scope(spec.sha256, scope)
    return answer(view_api_key(stored, context.org_uuid))


async def rotate_api_key(request: Request) -> Response:
    """Give a key a new value and show it; the old one is refused from the gateway's next table on.

    A repeat makes no value: it is shown that of the first, as long as that one opens anything. One that was cut off
    is finished, unless the key was changed since (`ChangeSuperseded`): else it would bring an old value back.
    """
    context = context_of(request)
    identity = await operations.identify_request(request)
    async with context.writing:
        for attempt in range(_MAX_ATTEMPTS):
            repeated = await operations.find_repeated(context.store, identity)
            result = repeated or operations.new_uid(identity)
            value = context.secret_box.repeatable_api_key(f"rotation:{result}")
            present = await load(context.store, InferenceApiKey, request, current=True)
            if hash_api_key(value) == present.spec.sha256:  # done before, perhaps without a note
                break
            if repeated is not None:
                raise _rotated_since("rotation", present)
            try:
                request_done = replace(identity, result_id=result)
                await _record_rotation(context, present, value, request_done)
            except VersionConflict:  # a status was written in between, or another controller did it
                if attempt == _MAX_ATTEMPTS - 1:
                    raise
                continue
            break
    await context.routing.wait_for_key(hash_api_key(value), accepted=True)
    if present.spec.sha256 != hash_api_key(value):
        await context.routing.wait_for_key(present.spec.sha256, accepted=False)
    return answer(ApiKeyValue(value=value))


async def _record_rotation(
    context: Context, present: InferenceApiKey, value: str, request: RecordedRequest
) -> None:
    uid = present.metadata.uid
    spec = present.spec.model_copy(update={"sha256": hash_api_key(value)})
    recording = Recording(
        request=request,
        secrets={KEY_SECRET: context.secret_box.encrypt(value, owner=uid, name=KEY_SECRET)},
        events=(NewEvent("Normal", "Rotated", "a new value was asked for"),),
    )
    await context.store.update(present.model_copy(update={"spec": spec}), recording)


async def reveal_api_key(request: Request) -> Response:
    """Show the value of a key again."""
    context = context_of(request)
    key = await load(context.store, InferenceApiKey, request, current=True)
    uid = key.metadata.uid
    sealed = await context.store.get_secret(uid, KEY_SECRET)
    value = sealed and context.secret_box.decrypt(sealed, owner=uid, name=KEY_SECRET)
    # One made by kubectl, or by a version that kept no values, or whose rotation was cut off.
    if not value or hash_api_key(value) != key.spec.sha256:
        raise Refused(
            404,
            "Value not kept",
            f"the value of the API key {key.spec.display_name!r} is not known here",
            hint="Rotate the key: the new value can be revealed.",
        )
    return answer(ApiKeyValue(value=value))


async def delete_api_key(request: Request) -> Response:
    """Remove a key; the gateway refuses it from its next table on."""
    context = context_of(request)
    is_dry_run = has_argument(request, "dry-run")
    identity = await operations.identify_change(request)
    if done := await operations.find_repeated_operation(context.store, identity):
        return answer(done)
    async with context.writing:
        key = await load(context.store, InferenceApiKey, request)
        if is_dry_run:
            return answer(operations.dry_run("api-key", key.metadata.uid))
        operation = await operations.remove(context.store, key, identity)
    await context.routing.wait_for_key(key.spec.sha256, accepted=False)
    return answer(operation)


def _object_name(name: str, uid: str, keys: Sequence[InferenceApiKey]) -> str:
    """Return the name of a new object; a key that was renamed keeps its first one."""
    wanted = api_key_object_name(name)
    if any(key.metadata.name == wanted and key.metadata.uid != uid for key in keys):
        return api_key_object_name(f"{name} {uid}")
    return wanted


async def _admit_update(
    context: Context, fields: Fields, present: InferenceApiKey
) -> tuple[str, str]:
    unknown = sorted(fields.sent - {"name", "scope"})
    fields.issues += [field_issue(each[:64], "cannot be changed") for each in unknown]
    if not fields.sent:
        raise Refused(400, _NOT_UPDATED, "the body has neither name nor scope")
    keys = await context.store.list(InferenceApiKey)
    others = [key for key in keys if key.metadata.uid != present.metadata.uid]
    name, scope = await _admit(context, fields, others, title=_NOT_UPDATED)
    return (
        name if "name" in fields.values else present.spec.display_name,
        scope if "scope" in fields.values else present.spec.scope,
    )


async def _admit(
    context: Context, fields: Fields, keys: Sequence[InferenceApiKey], *, title: str = _TITLE
) -> tuple[str, str]:
    issues = list(fields.issues)
    name, scope = fields.values.get("name"), fields.values.get("scope")
    if isinstance(name, str):
        if not 1 <= len(name) <= 50 or not _NAME.fullmatch(name):
            text = (
                "must be 1 to 50 letters, digits, blanks and _'()-, beginning and ending with a "
                f"letter or digit, found {name[:64]!r}"
            )
            issues.append(field_issue("name", text))
        if any(key.spec.display_name == name for key in keys):
            issues.append(_name_taken(name))
    if isinstance(scope, str) and scope != PUBLIC_SCOPE:
        scope = scope.lower()
        if issue := await _check_scope(context, scope):
            issues.append(issue)
    if issues:
        raise refuse(title, issues)
    return str(name), str(scope)


def _name_taken(name: str) -> Issue:
    text = f"another API key has the name {name!r}"
    return Issue(text, "$['name']", text, 409)


async def _check_scope(context: Context, scope: str) -> Issue | None:
    if not is_uuid(scope.lower()):
        return field_issue("scope", f"must be `public` or a deployment's id, found {scope[:64]!r}")
    try:
        deployment = await context.store.get(InferenceDeployment, scope)
    except ObjectNotFound:
        deployment = None
    if deployment is None or deployment.metadata.deletion_timestamp is not None:
        text = f"there is no deployment with the id {scope!r}"
        return Issue(text, "$['scope']", text, 404)
    return None


async def _show_again(context: Context, identity: RecordedRequest, uid: str) -> CreatedApiKey:
    try:
        key = await context.store.get_current(InferenceApiKey, uid)
    except ObjectNotFound as exc:
        raise Refused(
            409,
            _TITLE,
            "the key that this request created has been deleted since",
            hint="Use a new Idempotency-Key for a new API key.",
        ) from exc
    make = context.secret_box.repeatable_api_key
    # Keys that were created before an update of this program have a value of the latter form.
    for value in (make(uid), make(f"{identity.key}:{identity.fingerprint}")):
        if hash_api_key(value) == key.spec.sha256:
            return _show(context, key, value)
    raise _rotated_since("creation", key)


def _rotated_since(what: str, key: InferenceApiKey) -> Refused:
    """Return the refusal of telling a value again that opens nothing any more."""
    return Refused(
        409,
        "Answered before",
        f"this very {what} was done before, and the API key {key.spec.display_name!r} was rotated "
        "since: its value of then opens nothing any more",
        hint="Reveal the key to see its present value; sign a new request to rotate it once more.",
    )


def _show(context: Context, key: InferenceApiKey, value: str) -> CreatedApiKey:
    view = view_api_key(key, context.org_uuid)
    return CreatedApiKey(**view.model_dump(by_alias=False), value=value)


ROUTES = [
    route("/v2/ai/api-key", GET=list_api_keys, POST=create_api_key),
    route(
        "/v2/ai/api-key/{id}",
        {"DELETE": ("dry-run",)},
        GET=get_api_key,
        PATCH=update_api_key,
        DELETE=delete_api_key,
    ),
    route("/v2/ai/api-key/{id}/reveal", GET=reveal_api_key),
    route("/v2/ai/api-key/{id}/rotate", POST=rotate_api_key),
]
