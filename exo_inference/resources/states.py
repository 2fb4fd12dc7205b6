"""The state words of the API, derived from conditions. Pure; never stored.

Deployments: creating, preparing, deploying, ready, scaling, updating, error. Models: created,
creating, downloading, ready, error. The details say where it stands, for people. The API has no
word for what is being deleted: that is an `updating` deployment or a `created` model, and the details
begin with `deleting`.
"""

from __future__ import annotations

from exo_inference.resources.base import Condition, find_condition, is_true
from exo_inference.resources.deployment import InferenceDeployment
from exo_inference.resources.model import InferenceModel
from exo_inference.wire import DeploymentState, ModelState

_PROGRESS = {
    "Deploying": DeploymentState.DEPLOYING,
    "Scaling": DeploymentState.SCALING,
    "Updating": DeploymentState.UPDATING,
}

_REPLACING = ("Recovering", "Updating", "Scaling")
"""Why replicas come to a deployment that has had all that were asked for."""

_STARTING = ("pending", "starting")

_SCALED_TO_0 = "scaled to 0"


def deployment_state(deployment: InferenceDeployment) -> tuple[DeploymentState, str]:
    """Return the state of a deployment and what to say about it.

    One that is scaled to 0 says so wherever else it stands, as nothing comes of that before it is scaled up.
    """
    state, details = _state_of(deployment)
    is_said = _SCALED_TO_0 in details or deployment.metadata.deletion_timestamp is not None
    if wanted_replicas(deployment) or is_said:
        return state, details
    return state, f"{details}; {_SCALED_TO_0}"


def _state_of(deployment: InferenceDeployment) -> tuple[DeploymentState, str]:
    metadata, status = deployment.metadata, deployment.status
    conditions = status.conditions
    if metadata.deletion_timestamp is not None:
        progressing = find_condition(conditions, "Progressing")
        if progressing is None or progressing.reason != "Deleting":
            return DeploymentState.UPDATING, "deleting"
        return DeploymentState.UPDATING, f"deleting: {progressing.message}"
    if not conditions:
        return DeploymentState.CREATING, "waiting for the controller"
    is_asked_again = status.observed_restart != deployment.restart
    if status.observed_generation < metadata.generation or is_asked_again:
        return _pending_state(deployment)
    if is_true(conditions, "Failed"):
        return DeploymentState.ERROR, _message(conditions, "Failed")
    if not is_true(conditions, "ModelReady"):
        return DeploymentState.PREPARING, _message(conditions, "ModelReady")
    progressing = find_condition(conditions, "Progressing")
    if progressing is not None and is_true(conditions, "Progressing"):
        if progressing.reason in _PROGRESS:
            return _PROGRESS[progressing.reason], progressing.message
        available = is_true(conditions, "Available")  # some serve while others recover
        state = DeploymentState.READY if available else DeploymentState.DEPLOYING
        return state, progressing.message
    if is_true(conditions, "Available"):
        return DeploymentState.READY, _message(conditions, "Available")
    return DeploymentState.DEPLOYING, _message(conditions, "Available")


def wanted_replicas(deployment: InferenceDeployment) -> int:
    """Return how many replicas are asked for: by an autoscaler on the pods, else by the specification."""
    autoscaled = deployment.status.autoscaled_replicas
    return deployment.spec.replicas if autoscaled is None else autoscaled


def awaits_replicas(deployment: InferenceDeployment) -> bool:
    """Whether replicas of a deployment that has served before are on their way.

    Those of the first start are not meant: it may take long, and who asks wants to know how far it is.
    """
    conditions = deployment.status.conditions
    if deployment.metadata.deletion_timestamp is not None:
        return False
    if is_true(conditions, "Failed") and not _is_brought_back(deployment):
        return False
    progressing = find_condition(conditions, "Progressing")
    if progressing is None or not is_true(conditions, "Progressing"):
        return False
    return progressing.reason in _REPLACING and wanted_replicas(deployment) > 0


def _is_brought_back(deployment: InferenceDeployment) -> bool:
    """Whether the version before a change that failed is started again, or will be with the next step."""
    status = deployment.status
    failed = find_condition(status.conditions, "Failed")
    if not status.refused_reason or failed is None:
        return False
    states = {replica.state for replica in status.replicas} - {"draining"}
    return failed.reason != "ChangeFailed" or not states or not states.isdisjoint(_STARTING)


def model_state(model: InferenceModel) -> tuple[ModelState, str]:
    """Return the state of a model and what to say about it.

    One that is being deleted is no longer ready, whatever its files are.
    """
    if model.metadata.deletion_timestamp is not None:
        return ModelState.CREATED, _message(model.status.conditions, "Deleting") or "deleting"
    return files_state(model)


def files_state(model: InferenceModel) -> tuple[ModelState, str]:
    """Return where a model's files stand, be it that the model is being deleted."""
    conditions = model.status.conditions
    if not conditions:
        return ModelState.CREATED, "waiting for the controller"
    if is_true(conditions, "Failed"):
        return ModelState.ERROR, _message(conditions, "Failed")
    if is_true(conditions, "Ready"):
        return ModelState.READY, ""
    if is_true(conditions, "Resolved"):
        return ModelState.DOWNLOADING, _message(conditions, "Downloaded")
    return ModelState.CREATING, _message(conditions, "Resolved")


def _pending_state(deployment: InferenceDeployment) -> tuple[DeploymentState, str]:
    """A change was recorded that the controller has not looked at yet."""
    wanted = wanted_replicas(deployment)
    present = [r for r in deployment.status.replicas if r.state != "draining"]
    if len(present) != wanted and _has_as_many_as_asked(deployment.status.conditions):
        return DeploymentState.SCALING, f"from {len(present)} to {wanted} replicas"
    return DeploymentState.UPDATING, "waiting for the controller"


def _has_as_many_as_asked(conditions: tuple[Condition, ...]) -> bool:
    """Whether the replicas are as many as were asked for until now.

    In the middle of an update, or after one that failed, there are more.
    """
    if find_condition(conditions, "Available") is None or is_true(conditions, "Failed"):
        return False
    progressing = find_condition(conditions, "Progressing")
    return progressing is None or progressing.reason != "Updating"


def _message(conditions: tuple[Condition, ...], type_: str) -> str:
    found = find_condition(conditions, type_)
    return found.message if found is not None else ""
