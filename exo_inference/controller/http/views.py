"""Resources as the API shows them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from exo_inference.controller.http.versions import last_change, version_of
from exo_inference.engine_names import facts_of
from exo_inference.engines import DEFAULT_VERSION
from exo_inference.engines.registry import engine_release
from exo_inference.resources import (
    Condition,
    DeploymentSpec,
    EngineRef,
    InferenceApiKey,
    InferenceDeployment,
    InferenceModel,
    ObjectMeta,
    ReplicaState,
)
from exo_inference.resources.settled_spec import spec_before
from exo_inference.resources.states import deployment_state, model_state, wanted_replicas
from exo_inference.wire import (
    ApiKey,
    Deployment,
    InEffect,
    Model,
    ModelRef,
    ModelState,
    ReplicaView,
)


def view_model(model: InferenceModel, older: InferenceModel | None) -> Model:
    """Return a model as the API shows it.

    Args:
        model: the resource.
        older: another one with its source, which has the name then; a duplicate has its object's.
    """
    state, details = model_state(model)
    status = model.status
    return Model(
        id=model.metadata.uid,
        name=model.spec.source if older is None else model.metadata.name,
        state=state,
        model_size=status.size_bytes,
        state_details=details or None,
        downloaded_bytes=None if state == ModelState.CREATING else status.downloaded_bytes,
        revision=status.revision or model.spec.revision,
        created_at=_created(model.metadata),
        updated_at=_updated(model.metadata, status.conditions),
    )


def deletion_details(obj: InferenceModel | InferenceDeployment) -> str:
    """Return where the deletion of an object stands."""
    if isinstance(obj, InferenceModel):
        return model_state(obj)[1]
    return deployment_state(obj)[1]


def view_deployment(
    deployment: InferenceDeployment, model_ids: Mapping[str, str], *, details: bool
) -> Deployment:
    """Return a deployment as the API shows it.

    Args:
        deployment: the resource.
        model_ids: ids of the models by source.
        details: with what only `get` shows: details, parameters, version, replicas.
    """
    state, state_details = deployment_state(deployment)
    spec, status = deployment.spec, deployment.status
    view = Deployment(
        id=deployment.metadata.uid,
        name=deployment.metadata.name,
        state=state,
        deployment_url=status.url,
        model=ModelRef(id=model_ids.get(spec.model), name=spec.model),
        gpu_type=spec.gpu_type,
        gpu_count=spec.gpu_count,
        replicas=wanted_replicas(deployment),
        ready_replicas=status.ready_replicas,
        version=version_of(deployment.metadata),
        generation=deployment.metadata.generation,
        created_at=_created(deployment.metadata),
        updated_at=_updated(deployment.metadata, status.conditions),
    )
    if not details:
        is_going = deployment.metadata.deletion_timestamp is not None
        # The API has no state for it, so that lists say it too.
        return view.model_copy(update={"state_details": state_details}) if is_going else view
    engine, before = spec.engine, spec_before(deployment)
    # The API's field holds releases of vLLM alone; that of another engine is in `inference-engine`.
    takes_vllm_flags = facts_of(engine.name).takes_vllm_flags
    more = {
        "state_details": state_details,
        "inference_engine_parameters": list(spec.engine_parameters),
        "inference_engine_version": engine.version or DEFAULT_VERSION if takes_vllm_flags else None,
        "inference_engine": _view_engine(engine) or None,
        "last_change": last_change(deployment),
        "last_in_effect": None if before is None else _view_in_effect(before),
        "replica_status": [_view_replica(replica) for replica in status.replicas],
    }
    return view.model_copy(update=more)


def _view_engine(engine: EngineRef) -> str:
    return f"{engine.name or ''} {engine_release(engine.name, engine.version)}".strip()


def _view_in_effect(spec: DeploymentSpec) -> InEffect:
    return InEffect(
        model=spec.model,
        gpu_type=spec.gpu_type,
        gpu_count=spec.gpu_count,
        inference_engine=_view_engine(spec.engine),
        inference_engine_parameters=list(spec.engine_parameters),
    )


def _view_replica(replica: ReplicaState) -> ReplicaView:
    return ReplicaView(
        name=replica.name,
        state=replica.state,
        details=replica.details,
        pid=replica.pid,
        restarts=replica.restarts,
    )


def view_api_key(key: InferenceApiKey, org_uuid: str) -> ApiKey:
    """Return a key, without its value, as the API shows it."""
    created = _created(key.metadata)
    return ApiKey(
        id=key.metadata.uid,
        org_uuid=org_uuid,
        name=key.spec.display_name,
        scope=key.spec.scope,
        created_at=created,
        updated_at=key.metadata.update_timestamp or created,
    )


def _created(metadata: ObjectMeta) -> datetime:
    assert metadata.creation_timestamp is not None, "a stored object has its creation time"
    return metadata.creation_timestamp


def _updated(metadata: ObjectMeta, conditions: tuple[Condition, ...]) -> datetime:
    moments = [c.last_transition_time for c in conditions if c.last_transition_time is not None]
    return max([metadata.update_timestamp or _created(metadata), *moments])
