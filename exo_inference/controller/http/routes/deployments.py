"""`/ai/deployment`: create, list, show, update, replace, scale, restart, delete, key, events.

`app.py` takes the table `ROUTES`; who calls was checked before (`middleware.py`). What changes a specification is
judged by `controller/admission/` and recorded in one write, through `deployment_changes.py`; to do it is the reconciler's.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from exo_inference.controller import admission
from exo_inference.controller.admission import AdmittedDeployment
from exo_inference.controller.admission.bodies import read_update, read_wanted
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.admission.seals import admission_annotation
from exo_inference.controller.admission.world import World
from exo_inference.controller.context import Context, context_of
from exo_inference.controller.http import operations, versions
from exo_inference.controller.http.body import parse_object
from exo_inference.controller.http.deployment_list import listed_of
from exo_inference.controller.http.routes.deployment_changes import (
    Asked,
    Change,
    Models,
    change,
    name_taken,
)
from exo_inference.controller.http.routes.requests import answer, has_argument, load, route
from exo_inference.controller.http.views import view_deployment
from exo_inference.controller.secret_box import KEY_SECRET, new_api_key
from exo_inference.controller.stores.base import (
    NameTaken,
    NewEvent,
    Recording,
)
from exo_inference.platforms.base import ReplicaPhase
from exo_inference.resources import (
    DEPLOYMENT_FINALIZER,
    MEMORY_ANNOTATION,
    RESTART_ANNOTATION,
    ROLL_ANNOTATION,
    InferenceDeployment,
    InferenceModel,
    ObjectMeta,
    is_true,
)
from exo_inference.resources.settled_spec import note_memory, read_refusal, spec_before
from exo_inference.resources.states import wanted_replicas
from exo_inference.resources.wanted import WantedDeployment
from exo_inference.wire import (
    CreateDeployment,
    DeploymentApiKey,
    DeploymentList,
    EventList,
    ModelRef,
    ScaleDeployment,
)

_RESTARTED = (ReplicaPhase.FAILED, ReplicaPhase.BACKOFF)
"""Replicas in one of these are started by an update that changes nothing else."""

_ONE_FOR_NONE = "replicas: 0 was taken as 1; scale the deployment to 0 to stop its replica"


async def create_deployment(request: Request) -> Response:
    """Record a deployment with its key; with `?stopped=stopped` one of 0 replicas."""
    context = context_of(request)
    is_dry_run, is_forced = has_argument(request, "dry-run"), has_argument(request, "force")
    is_stopped = has_argument(request, "stopped")
    wanted, issues = read_wanted(CreateDeployment, parse_object(await request.body()))
    identity = await operations.identify_request(request)
    families = await context.families()
    draft_name = admission.find_draft_name(wanted, families)
    async with context.hold_world(families, wanted.model or ModelRef(), draft_name) as world:
        if done := await operations.find_repeated_operation(context.store, identity):
            return answer(done)
        admitted = await asyncio.to_thread(
            admission.admit_create,
            wanted,
            world,
            issues,
            force=is_forced,
            is_stopped=is_stopped,
        )
        if is_dry_run:
            return answer(operations.dry_run("deployment", None, admitted.plan))
        uid = operations.new_uid(identity)
        # The vendor's program sends 0 when its user says nothing.
        message = _ONE_FOR_NONE if wanted.replicas == 0 and not is_stopped else None
        operation = operations.succeeded("deployment", uid, message, plan=admitted.plan)
        deployment = InferenceDeployment(
            metadata=ObjectMeta(
                name=admitted.name,
                uid=uid,
                finalizers=(DEPLOYMENT_FINALIZER,),
                annotations=_annotations(context, uid, admitted),
            ),
            spec=admitted.spec,
        )
        key = context.secret_box.encrypt(new_api_key(), owner=uid, name=KEY_SECRET)
        recording = Recording(
            operation,
            replace(identity, result_id=operation.id),
            {KEY_SECRET: key},
            (
                NewEvent("Normal", "Created", f"deployment {admitted.name} was created"),
                *admitted.events,
            ),
            admitted.guard,
        )
        try:
            await context.store.create(deployment, recording)
        except NameTaken as exc:
            raise name_taken(admitted.name) from exc
    return answer(operation)


async def list_deployments(request: Request) -> Response:
    """List all deployments, oldest first; `visibility=public` has none here."""
    context = context_of(request)
    visibilities = request.query_params.getlist("visibility")
    if visibilities == ["public"]:
        return answer(DeploymentList())
    model_ids = await _model_ids(context)
    return listed_of(request).answer(await context.store.list(InferenceDeployment), model_ids)


async def get_deployment(request: Request) -> Response:
    """Show one deployment."""
    context = context_of(request)
    deployment = await load(context.store, InferenceDeployment, request)
    view = view_deployment(deployment, await _model_ids(context), details=True)
    found = answer(view)
    found.headers["etag"] = f'"{view.version}"'
    return found


async def update_deployment(request: Request) -> Response:
    """Change name, parameters or version; start replicas again that have failed.

    A body without fields does the latter alone: it is how a user says that the cause is mended.
    """
    context = context_of(request)
    is_dry_run, is_forced = has_argument(request, "dry-run"), has_argument(request, "force")
    wanted, issues = read_update(parse_object(await request.body()))
    families = await context.families()

    def models(present: InferenceDeployment) -> Models:
        whole = wanted.over(WantedDeployment.of(present))
        return ModelRef(name=present.spec.model), admission.find_draft_name(whole, families)

    def judge(present: InferenceDeployment, world: World) -> Change:
        admitted = admission.admit_update(wanted, present, world, issues, force=is_forced)
        return _changed(context, present, admitted), admitted

    event = NewEvent("Normal", "Updated", "a change was asked for")
    asked = Asked(judge, event, is_dry_run, models, families)
    return answer(await change(context, request, asked))


async def replace_deployment(request: Request) -> Response:
    """Let another specification take a deployment's place: id, URL and key stay.

    It is judged as a create, before anything is changed; then one write decides.
    """
    context = context_of(request)
    is_dry_run, is_forced = has_argument(request, "dry-run"), has_argument(request, "force")
    body = parse_object(await request.body())
    wanted, issues = read_wanted(CreateDeployment, body, may_lack=("name",))
    families = await context.families()

    def models(present: InferenceDeployment) -> Models:
        draft_name = admission.find_draft_name(admission.keep(wanted, present), families)
        return wanted.model or ModelRef(), draft_name

    def judge(present: InferenceDeployment, world: World) -> Change:
        admitted = admission.admit_replace(wanted, present, world, issues, force=is_forced)
        return _changed(context, present, admitted), admitted

    event = NewEvent("Normal", "Replaced", "another specification was asked for")
    asked = Asked(judge, event, is_dry_run, models, families)
    return answer(await change(context, request, asked))


async def scale_deployment(request: Request) -> Response:
    """Change the number of replicas."""
    context = context_of(request)
    is_dry_run, is_forced = has_argument(request, "dry-run"), has_argument(request, "force")
    wanted, issues = read_wanted(ScaleDeployment, parse_object(await request.body()))

    def judge(present: InferenceDeployment, world: World) -> Change:
        admitted = admission.admit_scale(wanted, present, world, issues, force=is_forced)
        return present.metadata, admitted

    count = wanted.replicas
    replicas = "1 replica was" if count == 1 else f"{count} replicas were"
    event = NewEvent("Normal", "Scaled", f"{replicas} asked for")
    asked = Asked(judge, event, is_dry_run, families=await context.families())
    return answer(await change(context, request, asked))


async def restart_deployment(request: Request) -> Response:
    """Ask for new replicas in place of all that run, as an update replaces them: without loss.

    After an update that was rolled back, those of the version that serves: to try it again is an update.
    The annotation ends with which request it was, so that one that comes again has them restarted once.
    """
    context = context_of(request)
    is_dry_run = has_argument(request, "dry-run")
    identity = await operations.identify_change(request)
    mark = hashlib.sha256(identity.key.encode()).hexdigest()[:16]

    def judge(present: InferenceDeployment, world: World) -> Change:
        if wanted_replicas(present) == 0:
            raise Refused(
                412,
                "Deployment not restarted",
                f"{present.metadata.name} is scaled to 0, so nothing of it runs",
                hint="Scale it up instead.",
            )
        if present.metadata.annotations.get(ROLL_ANNOTATION, "").endswith(f" {mark}"):
            return present.metadata, AdmittedDeployment(present.metadata.name, present.spec)
        now = datetime.now(UTC).isoformat()
        annotations = {**present.metadata.annotations, ROLL_ANNOTATION: f"{now} {mark}"}
        if spec_before(present) is None or not read_refusal(present):
            annotations[RESTART_ANNOTATION] = now
        metadata = present.metadata.model_copy(update={"annotations": annotations})
        return metadata, AdmittedDeployment(metadata.name, present.spec)

    event = NewEvent("Normal", "Restarted", "new replicas in place of all that run were asked for")
    return answer(await change(context, request, Asked(judge, event, is_dry_run)))


async def delete_deployment(request: Request) -> Response:
    """Mark a deployment for deletion; its replicas finish their requests first."""
    context = context_of(request)
    is_dry_run = has_argument(request, "dry-run")
    identity = await operations.identify_change(request)
    if done := await operations.find_repeated_operation(context.store, identity):
        return answer(await operations.end_deletion(context.store, done, InferenceDeployment))
    await versions.catch_up(context.store, request)
    async with context.writing:
        deployment = await load(context.store, InferenceDeployment, request)
        versions.check_unchanged(request, deployment)
        uid = deployment.metadata.uid
        if is_dry_run:
            return answer(operations.dry_run("deployment", uid))
        deletion = await operations.delete(context.store, "deployment", deployment, identity)
    return answer(await operations.end_deletion(context.store, deletion, InferenceDeployment))


async def reveal_api_key(request: Request) -> Response:
    """Show the deployment's own inference key."""
    context = context_of(request)
    deployment = await load(context.store, InferenceDeployment, request)
    uid = deployment.metadata.uid
    sealed = await context.store.get_secret(uid, KEY_SECRET)
    if sealed is None:
        raise _no_key(deployment)
    value = context.secret_box.decrypt(sealed, owner=uid, name=KEY_SECRET)
    return answer(DeploymentApiKey(api_key=value))


async def list_deployment_events(request: Request) -> Response:
    """List what happened to a deployment."""
    store = context_of(request).store
    deployment = await load(store, InferenceDeployment, request)
    return answer(EventList(events=await store.list_events(deployment.metadata.uid)))


def _annotations(context: Context, uid: str, admitted: AdmittedDeployment) -> dict[str, str]:
    """Return what is recorded of an admission with the object itself."""
    seal = admission_annotation(context.secret_box, uid, admitted.spec)
    return {**seal, **admitted.annotations}


def _changed(
    context: Context, present: InferenceDeployment, admitted: AdmittedDeployment
) -> ObjectMeta:
    """Return the metadata of a deployment that becomes what was admitted."""
    annotations = dict(present.metadata.annotations)
    if admitted.spec != present.spec:
        if admitted.need is not None:
            annotations.update(note_memory(present))
        annotations.pop(MEMORY_ANNOTATION, None)  # of what it was before
        annotations.update(_annotations(context, present.metadata.uid, admitted))
    if _has_failed(present):
        annotations[RESTART_ANNOTATION] = datetime.now(UTC).isoformat()
    changed = {"name": admitted.name, "annotations": annotations}
    return present.metadata.model_copy(update=changed)


def _has_failed(present: InferenceDeployment) -> bool:
    """Whether replicas have failed, or a change was rolled back, so that an update tries again."""
    if is_true(present.status.conditions, "Failed"):
        return True
    return any(replica.state in _RESTARTED for replica in present.status.replicas)


async def _model_ids(context: Context) -> dict[str, str]:
    models = await context.store.list(InferenceModel)
    # Of several with one source the oldest, which comes first, is the one that is used.
    return {model.spec.source: model.metadata.uid for model in reversed(models)}


def _no_key(deployment: InferenceDeployment) -> Refused:
    metadata, problem = deployment.metadata, deployment.metadata.uid_problem
    text, hint = f"the deployment {metadata.name!r} has no key: ", "Ask again in a moment."
    if problem is not None:
        return Refused(412, "No key yet", text + problem.message, hint="Mend its uid first.")
    if (
        not deployment.status.key_sha256
    ):  # it came past the API, and its key is made when it is adopted
        return Refused(412, "No key yet", text + "it was not taken over yet", hint=hint)
    return Refused(
        412,
        "Key lost",
        f"the key of the deployment {metadata.name!r} cannot be shown: where it was kept (on a cluster the "
        f"Secret exo-{metadata.uid}-{KEY_SECRET}) it was deleted, and nothing else has it. It still opens "
        "the deployment for clients that have it",
        hint="Put it back from a backup; or make another key with `exo dedicated-inference api-key create "
        f"<name> --deployment {metadata.name}`, which can be rotated.",
    )


_DRY = ("dry-run",)
_JUDGED = ("dry-run", "force")

ROUTES = [
    route(
        "/v2/ai/deployment",
        {"POST": (*_JUDGED, "stopped")},
        GET=list_deployments,
        POST=create_deployment,
    ),
    route(
        "/v2/ai/deployment/{id}",
        {"PATCH": _JUDGED, "PUT": _JUDGED, "DELETE": _DRY},
        has_versions=True,
        GET=get_deployment,
        PUT=replace_deployment,
        PATCH=update_deployment,
        DELETE=delete_deployment,
    ),
    route(
        "/v2/ai/deployment/{id}/scale", {"POST": _JUDGED}, has_versions=True, POST=scale_deployment
    ),
    route(
        "/v2/ai/deployment/{id}/restart", {"POST": _DRY}, has_versions=True, POST=restart_deployment
    ),
    route("/v2/ai/deployment/{id}/api-key", GET=reveal_api_key),
    route("/v2/ai/deployment/{id}/events", GET=list_deployment_events),
]
