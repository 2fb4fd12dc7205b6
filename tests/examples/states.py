"""Objects in every state as a cluster has them, made by the code that writes their status.

The health checks of Argo CD and Flux are tried on all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exo_inference.controller.conditions import condition, merge, with_ready
from exo_inference.controller.reconcile import decision
from exo_inference.controller.reconcile.model_fetch import (
    checking_conditions,
    failure_of,
    ready_conditions,
)
from exo_inference.hub.base import ModelGated, SourceUnreachable
from exo_inference.platforms.base import ObservedDeployment, ObservedReplica
from exo_inference.resources import Condition, InferenceDeployment, InferenceModel
from tests.controller.builders import NOW, deployment, model, replica


@dataclass(frozen=True)
class Seen:
    """An object and what a person would say of it.

    Attributes:
        state: what it is called.
        body: as the API server has it.
        verdict: `waiting`, `well` or `broken`.
        words: part of what the health check says.
    """

    state: str
    body: dict[str, Any]
    verdict: str
    words: str = ""


def _body(obj: InferenceDeployment | InferenceModel) -> dict[str, Any]:
    return obj.model_dump(mode="json", exclude_none=True)


def _told(
    obj: InferenceDeployment, found: Sequence[Condition], *, generation: int = 1
) -> InferenceDeployment:
    merged = merge(obj.status.conditions, with_ready(found), generation=generation, now=NOW)
    update = {"conditions": merged, "observed_generation": generation}
    return obj.model_copy(update={"status": obj.status.model_copy(update=update)})


def _assessed(
    obj: InferenceDeployment, *replicas: ObservedReplica, failure: str = ""
) -> InferenceDeployment:
    observed = ObservedDeployment(replicas, failure=failure)
    found = decision.assess_deployment(obj, observed).conditions
    return _told(obj, found, generation=obj.metadata.generation)


def _held(found_model: InferenceModel | None) -> InferenceDeployment:
    action = decision.decide(deployment(), found_model, unrouted=frozenset())
    assert isinstance(action, decision.Hold)
    return _told(deployment(), action.conditions)


def _with(found: Sequence[Condition]) -> InferenceModel:
    obj = model()
    status = obj.status.model_copy(
        update={
            "conditions": merge((), found, generation=1, now=NOW),
            "observed_generation": 1,
        }
    )
    return obj.model_copy(update={"status": status})


_SERVING = _assessed(deployment(replicas=2), replica("a"), replica("b"))
_EDITED = _SERVING.model_copy(
    update={"metadata": _SERVING.metadata.model_copy(update={"generation": 2})}
)
_STARTING = replica("a", "starting", details="loading weights 43 %")
_LOOPING = replica("a", "backoff", details="CUDA out of memory", restarts=3)
_DOWNLOADING = (
    condition("Resolved", True, "Resolved"),
    condition("Downloaded", False, "Downloading", "downloading 8 %"),
    condition("Ready", False, "Downloading"),
)
_GATED = failure_of(ModelGated("the licence is not accepted"), is_resolved=False, delay=None)
_UNREACHABLE = failure_of(SourceUnreachable("no route"), is_resolved=False, delay=2.0)

DEPLOYMENTS = [
    Seen("nobody looked", _body(deployment(observed=0)), "waiting", "waiting for the controller"),
    Seen("deploying", _body(_assessed(deployment(), _STARTING)), "waiting", "weights 43 %"),
    Seen("serving", _body(_SERVING), "well"),
    Seen("scaled to zero", _body(_assessed(deployment(replicas=0))), "well", "scaled to 0"),
    Seen("edited", _body(_EDITED), "waiting", "waiting for the controller"),
    Seen(
        "rolling",
        _body(_assessed(_EDITED, replica("a", current=False), replica("c", "starting"))),
        "waiting",
        "previous version still serving",
    ),
    Seen(
        "one of two lost",
        _body(_assessed(_SERVING, replica("a"))),
        "waiting",
        "ready 1 of 2",
    ),
    Seen(
        "rolled back",
        _body(_assessed(_EDITED, replica("a"), replica("b"), failure="it was rolled back")),
        "broken",
        "rolled back",
    ),
    Seen(
        "refused",
        _body(_told(_SERVING, decision.refused_conditions(_SERVING, "no such flag"))),
        "broken",
        "no such flag",
    ),
    Seen("crashing", _body(_assessed(deployment(), _LOOPING)), "broken", "out of memory"),
    Seen(
        "platform busy",
        _body(_told(_SERVING, decision.blocked_conditions(_SERVING.status.conditions, "API away"))),
        "waiting",
        "API away",
    ),
    Seen("model on its way", _body(_held(_with(_DOWNLOADING))), "waiting", "downloading 8 %"),
    Seen("model not there yet", _body(_held(None)), "waiting", "there is no model"),
    Seen("model unusable", _body(_held(_with(_GATED))), "broken", "licence"),
]
"""Every state of a deployment."""

MODELS = [
    Seen("nobody looked", _body(model()), "waiting", "waiting for the controller"),
    Seen("being checked", _body(_with(checking_conditions())), "waiting", "used in place"),
    Seen("downloading", _body(_with(_DOWNLOADING)), "waiting", "downloading 8 %"),
    Seen("ready", _body(_with(ready_conditions())), "well", "ready to be deployed"),
    Seen("unreachable", _body(_with(_UNREACHABLE)), "waiting", "trying again"),
    Seen("gated", _body(_with(_GATED)), "broken", "licence"),
]
"""Every state of a model."""

ALL = [*DEPLOYMENTS, *MODELS]
