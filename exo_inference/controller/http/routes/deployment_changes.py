"""One change of a deployment: looked up, judged and recorded, so that nothing in between makes it wrong.

`deployments.py` says what is asked for. The models that a change is judged by are looked up while others write; where
it turns out under the lock that they are others by now, as after a replacement, those are looked up, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from starlette.requests import Request

from exo_inference.controller.admission import AdmittedDeployment
from exo_inference.controller.admission.problems import Refused
from exo_inference.controller.admission.world import World
from exo_inference.controller.context import Context
from exo_inference.controller.http import operations, versions
from exo_inference.controller.http.routes.requests import load
from exo_inference.controller.stores.base import (
    NameTaken,
    NewEvent,
    RecordedRequest,
    Recording,
    VersionConflict,
)
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import InferenceDeployment, ObjectMeta
from exo_inference.wire import ModelRef, Operation

_MAX_ATTEMPTS = 10
"""A change is tried again when the reconciler wrote a status meanwhile."""

Change = tuple[ObjectMeta, AdmittedDeployment]
"""What a deployment shall be."""

Judge = Callable[[InferenceDeployment, World], Change]
"""Says what a deployment shall become, by everything that is there; raises Refused."""

Models = tuple[ModelRef, str | None]
"""Those that a change is judged by: the model, and the draft model that flags name."""


def _no_models(present: InferenceDeployment) -> Models:
    return ModelRef(), None


@dataclass(frozen=True, slots=True)
class Asked:
    """A change that somebody asks for.

    Attributes:
        judge: called while no other change is judged.
        models: says which models are looked up for it, of a deployment as it is.
        families: what the platform has; none where GPUs are not judged.
    """

    judge: Judge
    event: NewEvent
    is_dry_run: bool
    models: Callable[[InferenceDeployment], Models] = _no_models
    families: Sequence[InstanceTypeInfo] = ()


async def change(context: Context, request: Request, asked: Asked) -> Operation:
    """Read, judge and record a change, again if a status was written in between.

    One that was recorded before is not made again: it gets the operation of then.
    """
    identity = await operations.identify_change(request)
    await versions.catch_up(context.store, request)
    while True:
        names = asked.models(await load(context.store, InferenceDeployment, request))
        # One change at a time in this process.
        async with context.hold_world(asked.families, *names) as world:
            operation = await _record(context, request, asked, names, world, identity)
        if operation is not None:
            return operation


async def _record(
    context: Context,
    request: Request,
    asked: Asked,
    names: Models,
    world: World,
    identity: RecordedRequest,
) -> Operation | None:
    """Judge and record a change; None: it is to be judged by other models than those in `world`.

    The loop is for statuses and for other controllers.
    """
    for attempt in range(_MAX_ATTEMPTS):
        present = await load(context.store, InferenceDeployment, request)
        if done := await operations.find_repeated_operation(context.store, identity):
            return done
        if asked.models(present) != names:
            return None
        if present.metadata.deletion_timestamp is not None:
            raise Refused(
                409,
                "Deployment going",
                f"the deployment {present.metadata.name!r} is being deleted",
                hint="Create it again when it is gone.",
            )
        versions.check_unchanged(request, present)
        # In a thread: to judge takes milliseconds, in which others want answers.
        metadata, admitted = await asyncio.to_thread(asked.judge, present, world)
        uid = present.metadata.uid
        if asked.is_dry_run:
            return operations.dry_run("deployment", uid, admitted.plan, admitted.warnings)
        after = versions.after_change(present, metadata, admitted.spec)
        operation = operations.succeeded(
            "deployment", uid, plan=admitted.plan, warnings=admitted.warnings
        ).model_copy(update={"version": versions.version_of(after), "generation": after.generation})
        is_another = (metadata, admitted.spec) != (present.metadata, present.spec)
        # A new name leaves the plan as it was: only another spec has something to say of it.
        told = admitted.events if admitted.spec != present.spec else ()
        events = (asked.event, *told) if is_another else ()
        made = replace(identity, result_id=operation.id)
        recording = Recording(operation, made, events=events, guard=admitted.guard)
        by = request.state.key_id
        metadata = versions.note_change(present, metadata, admitted.spec, by=by)
        new = {"metadata": metadata, "spec": admitted.spec}
        try:
            await context.store.update(present.model_copy(update=new), recording)
        except NameTaken as exc:
            raise name_taken(admitted.name) from exc
        except VersionConflict:
            if attempt == _MAX_ATTEMPTS - 1:
                raise
            continue
        return operation
    raise AssertionError("the loop returns or raises")


def name_taken(name: str) -> Refused:
    """Return the refusal of a name that another deployment has."""
    return Refused(
        409,
        "Name taken",
        f"another deployment has the name {name!r}",
        hint="Choose another name, or delete that deployment first.",
    )
