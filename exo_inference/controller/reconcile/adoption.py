"""Objects that came past the API (kubectl, Argo CD, Flux) get what the API would have given them.

The reconcilers call it before they do anything else for an object: a finalizer, so that it does not
go before what it holds, and for a deployment its own key and the engine of its GPUs, where it names
none. Whether the wanted state can be had is not judged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from exo_inference.controller.admission.world import find_family
from exo_inference.controller.secret_box import KEY_SECRET, SecretBox, new_api_key
from exo_inference.controller.stores.base import NewEvent, Recording, Store
from exo_inference.platforms.base import InstanceTypeInfo
from exo_inference.resources import (
    DEPLOYMENT_FINALIZER,
    MODEL_FINALIZER,
    InferenceDeployment,
    InferenceModel,
    ObjectMeta,
)

R = TypeVar("R", InferenceDeployment, InferenceModel)

_EVENT = NewEvent(
    "Normal", "Adopted", "it was created past the API and is looked after from now on"
)


async def adopt_deployment(
    store: Store, secret_box: SecretBox, deployment: InferenceDeployment
) -> InferenceDeployment:
    """Return the deployment with its finalizer and its key; writes what is missing.

    A key that was there and was deleted is not replaced: the clients that have it would be locked out.

    Raises:
        ObjectNotFound, VersionConflict: it changed meanwhile.
    """
    held = _held(deployment, DEPLOYMENT_FINALIZER)
    if held == deployment and deployment.status.key_sha256:
        return deployment
    uid = deployment.metadata.uid
    has_key = await store.get_secret(uid, KEY_SECRET) is not None
    if has_key and held == deployment:
        return deployment
    key = secret_box.encrypt(new_api_key(), owner=uid, name=KEY_SECRET)
    events = () if held == deployment else (_EVENT,)
    return await store.update(
        held, Recording(None, None, {} if has_key else {KEY_SECRET: key}, events)
    )


async def choose_engine(
    store: Store, deployment: InferenceDeployment, families: Sequence[InstanceTypeInfo]
) -> InferenceDeployment:
    """Return the deployment with the engine of its GPUs; writes it where none is named.

    It stays without one while the platform has no such GPUs.

    Raises:
        ObjectNotFound, VersionConflict: it changed meanwhile.
    """
    spec = deployment.spec
    family = find_family(spec.gpu_type, families)
    if spec.engine.name is not None or family is None:
        return deployment
    engine = spec.engine.model_copy(update={"name": family.engine})
    chosen = spec.model_copy(update={"engine": engine})
    return await store.update(deployment.model_copy(update={"spec": chosen}))


async def adopt_model(store: Store, model: InferenceModel) -> InferenceModel:
    """Return the model with its finalizer; writes it if it is missing.

    Raises:
        ObjectNotFound, VersionConflict: it changed meanwhile.
    """
    held = _held(model, MODEL_FINALIZER)
    return model if held == model else await store.update(held, Recording(events=(_EVENT,)))


def _held(obj: R, finalizer: str) -> R:
    metadata: ObjectMeta = obj.metadata
    if finalizer in metadata.finalizers:
        return obj
    added = metadata.model_copy(update={"finalizers": (*metadata.finalizers, finalizer)})
    return obj.model_copy(update={"metadata": added})
