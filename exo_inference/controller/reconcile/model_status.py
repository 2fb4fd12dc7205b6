"""What the reconcilers of models write, however the files come: status, and the steps of a deletion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from exo_inference.controller import conditions
from exo_inference.controller.conditions import condition
from exo_inference.controller.reconcile.outcome import Outcome, adopted_uid
from exo_inference.controller.stores.base import (
    ObjectNotFound,
    Recording,
    Store,
    VersionConflict,
)
from exo_inference.resources import (
    MODEL_FINALIZER,
    Condition,
    InferenceDeployment,
    InferenceModel,
    find_condition,
    find_older_model,
)
from exo_inference.resources.settled_spec import read_settled

DUPLICATE_REASON = "Duplicate"


async def write_status(
    store: Store, model: InferenceModel, found: Sequence[Condition], fields: Mapping[str, object]
) -> Outcome:
    """Write conditions and fields of a status, and events about what is new.

    Args:
        store: where it is kept.
        model: as it was read.
        found: all conditions.
        fields: further ones that change.
    """
    old = model.status
    generation = model.metadata.generation
    merged = conditions.merge(old.conditions, found, generation=generation, now=datetime.now(UTC))
    update = {
        **fields,
        "conditions": merged,
        "observed_generation": generation,
        "uid": adopted_uid(model),
    }
    status = old.model_copy(update=update)
    if status == old:
        return Outcome()
    recording = Recording(events=conditions.changes(old.conditions, merged))
    try:
        await store.update_status(model.model_copy(update={"status": status}), recording)
    except (VersionConflict, ObjectNotFound):
        return Outcome(again_after_seconds=0.0)
    return Outcome(changed=True)


async def refuse_duplicate(store: Store, model: InferenceModel) -> Outcome | None:
    """Say that an older model of the same source is used in place of this one; None if none is."""
    older = find_older_model(model, await store.list(InferenceModel))
    if older is None:
        return None
    text = (
        f"duplicate: the InferenceModel with the id {older.metadata.uid} has the source "
        f"{model.spec.source[:256]} too, is older, and is the one that is used; delete this one"
    )
    found = [
        condition("Resolved", False, DUPLICATE_REASON, text),
        condition("Ready", False, DUPLICATE_REASON, text),
        condition("Failed", True, DUPLICATE_REASON, text),
    ]
    return await write_status(store, model, found, {})


async def refuse_uid(store: Store, model: InferenceModel) -> Outcome | None:
    """Say why a model is not known by the id that it asks for; None if it is."""
    if model.metadata.uid_problem is None:
        return None
    reason, text = model.metadata.uid_problem
    found = [condition("Ready", False, reason, text)]
    failed = find_condition(model.status.conditions, "Failed")
    is_refused = failed is not None and failed.reason == reason
    if model.status.uid and not is_refused:  # what is there stays as it is
        kept = ("Resolved", "Downloaded")
        found += [entry for entry in model.status.conditions if entry.type in kept]
    else:
        found += [condition("Resolved", False, reason, text)]
        found += [condition("Failed", True, reason, text)]
    return await write_status(store, model, found, {})


async def wait_for_users(store: Store, model: InferenceModel) -> Outcome | None:
    """Say which deployments a deletion waits for; None when there are none, as for a duplicate."""
    if find_older_model(model, await store.list(InferenceModel)) is not None:
        return None
    users = [
        deployment.metadata.name
        for deployment in await store.list(InferenceDeployment)
        if model.spec.source in _models_of(deployment)
    ]
    if not users:  # all of them are being deleted, else admission had refused
        return None
    text = f"deleting: waiting for the end of {', '.join(users)}"
    found = [c for c in model.status.conditions if c.type != "Deleting"]
    found.append(condition("Deleting", True, "InUse", text))
    return await write_status(store, model, found, {})


def _models_of(deployment: InferenceDeployment) -> set[str]:
    """Return the models that a deployment needs: also the one before, until the present one serves.

    One that is scaled to 0 keeps none for that: it may never serve.
    """
    settled = read_settled(deployment)
    is_kept = settled is not None and deployment.spec.replicas > 0
    return {deployment.spec.model} | ({settled.model} if settled is not None and is_kept else set())


async def release(store: Store, model: InferenceModel) -> Outcome:
    """Take the finalizer away: nothing is left of the model, and the object goes."""
    metadata = model.metadata.without_finalizer(MODEL_FINALIZER)
    if metadata.finalizers and metadata == model.metadata:
        text = f"deleting: {conditions.waits_for_others(metadata)}"
        found = [c for c in model.status.conditions if c.type != "Deleting"]
        return await write_status(
            store, model, [*found, condition("Deleting", True, "Held", text)], {}
        )
    try:
        await store.update(model.model_copy(update={"metadata": metadata}))
    except VersionConflict:
        return Outcome(again_after_seconds=0.0)
    return Outcome(changed=True)
