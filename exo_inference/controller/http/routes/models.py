"""`/ai/model`: create, list, show, delete, events."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from exo_inference.controller import admission
from exo_inference.controller.admission.fields import Fields
from exo_inference.controller.admission.model import check_new_model, try_resolve
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.conditions import checking_conditions, condition
from exo_inference.controller.context import context_of
from exo_inference.controller.http import operations
from exo_inference.controller.http.body import parse_object
from exo_inference.controller.http.routes.requests import answer, has_argument, load, route
from exo_inference.controller.http.views import view_model
from exo_inference.controller.secret_box import TOKEN_SECRET
from exo_inference.controller.stores.base import (
    NameTaken,
    NewEvent,
    ObjectNotFound,
    Recording,
    Store,
)
from exo_inference.hub import is_in_place
from exo_inference.hub.base import ResolvedModel
from exo_inference.resources import (
    MODEL_FINALIZER,
    InferenceModel,
    ModelSpec,
    ModelStatus,
    ObjectMeta,
    find_older_model,
    model_object_name,
)
from exo_inference.simulated_gpus import MODEL_REVISION
from exo_inference.wire import CreateModel, EventList, ModelList


async def create_model(request: Request) -> Response:
    """Record a model, if its source knows it (or cannot be asked now)."""
    context = context_of(request)
    is_dry_run = has_argument(request, "dry-run")
    fields = Fields(CreateModel, parse_object(await request.body()))
    identity = await operations.identify_request(request)
    if done := await operations.find_repeated_operation(context.store, identity):
        return answer(done)
    is_cluster = context.models is not None
    values = check_new_model(fields, context.find_source, is_cluster=is_cluster)
    source, revision = values["name"], values.get("revision")
    token = (
        values["huggingface_token"].get_secret_value() if "huggingface_token" in values else None
    )
    if not is_dry_run:
        await _refuse_taken(context.store, source)
    found = await try_resolve(context.find_source(source), source, revision=revision, token=token)
    if is_dry_run:
        # Last, so that a model that is to take another's place is judged while that is still there.
        await _refuse_taken(context.store, source, found)
        return answer(operations.dry_run("model", None, more=_size_text(source, found)))
    async with context.writing:
        if done := await operations.find_repeated_operation(context.store, identity):
            return answer(done)
        uid = operations.new_uid(identity)
        model = _new_model(uid, source, revision, found)
        operation = operations.succeeded("model", uid, _size_text(source, found) or None)
        sealed = {}
        if token is not None:
            sealed[TOKEN_SECRET] = context.secret_box.encrypt(token, owner=uid, name=TOKEN_SECRET)
        recording = Recording(
            operation,
            replace(identity, result_id=operation.id),
            sealed,
            (NewEvent("Normal", "Created", f"model {source} was created"),),
        )
        try:
            await context.store.create(model, recording)
        except NameTaken as exc:
            raise _taken(source) from exc
    return answer(operation)


async def list_models(request: Request) -> Response:
    """List all models, oldest first."""
    models = await context_of(request).store.list(InferenceModel)
    views = [view_model(model, find_older_model(model, models)) for model in models]
    return answer(ModelList(models=views))


async def get_model(request: Request) -> Response:
    """Show one model."""
    store = context_of(request).store
    model = await load(store, InferenceModel, request)
    older = find_older_model(model, await store.list(InferenceModel))
    return answer(view_model(model, older))


async def delete_model(request: Request) -> Response:
    """Mark a model for deletion, unless a deployment uses it."""
    context = context_of(request)
    is_dry_run = has_argument(request, "dry-run")
    identity = await operations.identify_change(request)
    if done := await operations.find_repeated_operation(context.store, identity):
        return answer(await operations.end_deletion(context.store, done, InferenceModel))
    async with context.writing:
        model = await load(context.store, InferenceModel, request)
        admission.admit_model_deletion(model, await context.load_world())
        uid = model.metadata.uid
        if is_dry_run:
            return answer(operations.dry_run("model", uid))
        deletion = await operations.delete(context.store, "model", model, identity)
    return answer(await operations.end_deletion(context.store, deletion, InferenceModel))


async def list_model_events(request: Request) -> Response:
    """List what happened to a model."""
    store = context_of(request).store
    model = await load(store, InferenceModel, request)
    return answer(EventList(events=await store.list_events(model.metadata.uid)))


async def _refuse_taken(
    store: Store, source: str, found: ResolvedModel | str | None = None
) -> None:
    """Refuse a second model of a source; the store itself decides when it is recorded.

    Args:
        store: where models are.
        source: of the new one.
        found: what its source said, where that was asked before; a text is why it could not be.
    """
    try:
        await store.get_by_name(InferenceModel, model_object_name(source))
    except ObjectNotFound:
        return
    if isinstance(found, str):
        raise Refused(
            412,
            "Model not judged",
            f"whether the model {source!r} can be had is not known now: {found}",
            hint="The one that is there stays; repeat this later.",
        )
    raise _taken(source)


def _new_model(
    uid: str, source: str, revision: str | None, found: ResolvedModel | str
) -> InferenceModel:
    name = model_object_name(source)
    return InferenceModel(
        metadata=ObjectMeta(name=name, uid=uid, finalizers=(MODEL_FINALIZER,)),
        spec=ModelSpec(source=source, revision=revision),
        status=_first_status(source, found),
    )


def _first_status(source: str, found: ResolvedModel | str) -> ModelStatus:
    if isinstance(found, str):
        text = f"{found}; it is asked again"
        return ModelStatus(conditions=(condition("Resolved", False, "SourceUnreachable", text),))
    is_checked_next = is_in_place(source)
    resolved = condition("Resolved", True, "Resolved")
    return ModelStatus(
        revision=found.revision,
        size_bytes=found.size_bytes,
        conditions=tuple(checking_conditions()) if is_checked_next else (resolved,),
    )


def _size_text(source: str, found: ResolvedModel | str) -> str:
    """Return how much is fetched, where that is known and anything is."""
    if isinstance(found, str) or is_in_place(source) or found.revision == MODEL_REVISION:
        return ""
    size, count = found.size_bytes, len(found.files)
    shown = f"{size / 1e9:.2f} GB" if size >= 10**7 else f"{size / 1e6:.2f} MB"
    return f"{shown} in {count} {'file' if count == 1 else 'files'} to fetch"


def _taken(source: str) -> Refused:
    return Refused(
        409,
        "Model exists",
        f"there is a model {source!r} already",
        hint="Use it, or delete it first; a model being deleted goes when nothing uses it.",
    )


_DRY = ("dry-run",)

ROUTES = [
    route("/v2/ai/model", {"POST": _DRY}, GET=list_models, POST=create_model),
    route("/v2/ai/model/{id}", {"DELETE": _DRY}, GET=get_model, DELETE=delete_model),
    route("/v2/ai/model/{id}/events", GET=list_model_events),
]
