"""The states of the API as a function of what was observed, step by step as a user sees them."""

from __future__ import annotations

import pytest

from exo_inference.controller.conditions import condition
from exo_inference.controller.reconcile import rollback
from exo_inference.platforms.base import ObservedDeployment
from exo_inference.resources import InferenceDeployment
from exo_inference.resources.states import awaits_replicas, deployment_state, model_state
from tests.controller.builders import assess, deployment, model, ready_model, replica


def scaled(obj: InferenceDeployment, replicas: int) -> InferenceDeployment:
    spec = obj.spec.model_copy(update={"replicas": replicas})
    metadata = obj.metadata.model_copy(update={"generation": obj.metadata.generation + 1})
    return obj.model_copy(update={"spec": spec, "metadata": metadata})


def edited(obj: InferenceDeployment) -> InferenceDeployment:
    metadata = obj.metadata.model_copy(update={"generation": obj.metadata.generation + 1})
    return obj.model_copy(update={"metadata": metadata})


SETTLED = assess(deployment(), replica("a"))
SETTLED_2 = assess(deployment(replicas=2), replica("a"), replica("b"))


@pytest.mark.parametrize(
    ("obj", "state", "words"),
    [
        pytest.param(deployment(observed=0), "creating", "waiting", id="just recorded"),
        pytest.param(assess(deployment()), "deploying", "ready 0 of 1", id="nothing yet"),
        pytest.param(
            assess(deployment(), replica("a", "starting", details="loading weights 43 %")),
            "deploying",
            "replica a: loading weights 43 %",
            id="starting",
        ),
        pytest.param(
            assess(deployment(replicas=2), replica("a"), replica("b", "starting")),
            "deploying",
            "ready 1 of 2: replica b: starting",
            id="one of two",
        ),
        pytest.param(SETTLED, "ready", "", id="all ready"),
        pytest.param(scaled(SETTLED, 3), "scaling", "from 1 to 3", id="scale recorded"),
        pytest.param(
            assess(scaled(SETTLED, 2), replica("a"), replica("b", "starting")),
            "scaling",
            "ready 1 of 2",
            id="scaling up",
        ),
        pytest.param(
            assess(scaled(SETTLED_2, 1), replica("a"), replica("b", "draining")),
            "scaling",
            "1 finishing their requests",
            id="scaling down",
        ),
        pytest.param(
            assess(scaled(SETTLED, 0)), "ready", "scaled to 0", id="scaled to nothing is ready"
        ),
        pytest.param(
            scaled(SETTLED, 0), "scaling", "from 1 to 0 replicas; scaled to 0", id="0 asked"
        ),
        pytest.param(
            scaled(assess(deployment(), replica("a", "starting")), 0),
            "scaling",
            "from 1 to 0 replicas; scaled to 0",
            id="0 asked before it ever served",
        ),
        pytest.param(
            assess(
                scaled(assess(deployment(), replica("a", "starting")), 0), replica("a", "draining")
            ),
            "deploying",
            "scaled to 0: 1 finishing their requests",
            id="scaled to nothing before it ever served",
        ),
        pytest.param(
            deployment(replicas=0, observed=0),
            "creating",
            "scaled to 0",
            id="nothing from the beginning",
        ),
        pytest.param(
            deployment(
                conditions=[condition("ModelReady", False, "ModelNotReady", "downloading")],
                replicas=0,
            ),
            "preparing",
            "downloading; scaled to 0",
            id="nothing, and its model is on its way",
        ),
        pytest.param(edited(SETTLED), "updating", "waiting", id="update recorded"),
        pytest.param(
            assess(edited(SETTLED), replica("a", current=False), replica("b", "starting")),
            "updating",
            "1 of the previous version still serving",
            id="rolling",
        ),
        pytest.param(
            edited(assess(edited(SETTLED), replica("a", current=False), replica("b", "starting"))),
            "updating",
            "waiting",
            id="another update while one is rolled out",
        ),
        pytest.param(
            edited(assess(edited(SETTLED), replica("a", current=False), replica("b", "failed"))),
            "updating",
            "waiting",
            id="another update after one that failed",
        ),
        pytest.param(
            assess(
                assess(edited(SETTLED), replica("a", current=False), replica("b", "starting")),
                replica("b", "starting"),
            ),
            "updating",
            "replica b: starting",
            id="an update stays one when the old replicas are gone",
        ),
        pytest.param(
            assess(
                edited(SETTLED),
                replica("a", current=False),
                replica("b", "failed", details="unknown flag --x"),
            ),
            "error",
            "replica b: unknown flag --x; the replicas that are ready still serve",
            id="failed update",
        ),
        pytest.param(
            assess(deployment(), replica("a", "failed", details="no tokenizer")),
            "error",
            "replica a: no tokenizer",
            id="failed",
        ),
        pytest.param(
            assess(deployment(), replica("a", "backoff", details="exit 1", restarts=2)),
            "deploying",
            "replica a: exit 1",
            id="crashed twice",
        ),
        pytest.param(
            assess(deployment(), replica("a", "backoff", details="exit 1", restarts=3)),
            "error",
            "crashed 3 times: exit 1",
            id="crash loop",
        ),
        pytest.param(
            assess(SETTLED, replica("a", "backoff", details="killed", restarts=1)),
            "deploying",
            "replica a: killed",
            id="the only replica recovers",
        ),
        pytest.param(
            assess(SETTLED_2, replica("a"), replica("b", "backoff", details="killed", restarts=9)),
            "ready",
            "ready 1 of 2: replica b: killed",
            id="one of two recovers, the other serves",
        ),
        pytest.param(
            assess(assess(SETTLED_2, replica("a")), replica("a"), replica("c", "starting")),
            "ready",
            "ready 1 of 2: replica c: starting",
            id="a vanished replica is replaced",
        ),
        pytest.param(deployment(deleting=True), "updating", "deleting", id="being deleted"),
    ],
)
def test_deployment_states(obj: InferenceDeployment, state: str, words: str) -> None:
    found, details = deployment_state(obj)
    assert found == state
    assert words in details


@pytest.mark.parametrize(
    ("conditions", "state", "words"),
    [
        pytest.param([], "created", "waiting", id="just recorded"),
        pytest.param(
            [condition("Resolved", False, "SourceUnreachable", "cannot reach the Hub")],
            "creating",
            "cannot reach",
            id="source unreachable",
        ),
        pytest.param([condition("Resolved", True, "Resolved")], "downloading", "", id="resolved"),
        pytest.param(
            [
                condition("Resolved", True, "Resolved"),
                condition("Downloaded", False, "Downloading", "downloading 1.2 of 15.0 GiB (8 %)"),
            ],
            "downloading",
            "8 %",
            id="downloading",
        ),
        pytest.param(
            [
                condition("Resolved", True, "Resolved"),
                condition("Failed", True, "NotUsable", "its SHA-256 differs"),
            ],
            "error",
            "SHA-256",
            id="failed",
        ),
        pytest.param(list(ready_model().status.conditions), "ready", "", id="ready"),
    ],
)
def test_model_states(conditions: list, state: str, words: str) -> None:
    found, details = model_state(model(*conditions))
    assert found == state
    assert words in details


@pytest.mark.parametrize(
    ("obj", "awaits"),
    [
        pytest.param(assess(deployment(), replica("a", "starting")), False, id="first start"),
        pytest.param(SETTLED, False, id="all ready"),
        pytest.param(assess(SETTLED, replica("a", "backoff")), True, id="it crashed"),
        pytest.param(assess(SETTLED), True, id="it is gone"),
        pytest.param(assess(SETTLED, replica("a", "starting")), True, id="it starts again"),
        pytest.param(
            assess(SETTLED, replica("a", "backoff", restarts=3)), False, id="it crashes in a loop"
        ),
        pytest.param(assess(SETTLED, replica("a", "failed")), False, id="it cannot work"),
        pytest.param(assess(scaled(SETTLED, 0)), False, id="scaled to nothing"),
    ],
)
def test_requests_wait_for_a_replacement_only(obj, awaits):
    assert awaits_replicas(obj) is awaits


def rolled_back(*phases: str, refusal: str = "no wings", replicas: int = 1) -> InferenceDeployment:
    """Return a deployment of which the version before its change has replicas in these phases."""
    observed = ObservedDeployment(tuple(replica(p, p) for p in phases))
    observed = rollback.as_rolled_back(observed, "no wings")
    asked = edited(scaled(SETTLED, replicas))
    found = assess(asked, *observed.replicas, failure=observed.failure)
    status = found.status.model_copy(update={"refused_reason": refusal})
    return found.model_copy(update={"status": status})


def just_refused() -> InferenceDeployment:
    """Return a deployment whose change failed in this very look."""
    found = assess(edited(SETTLED), replica("b", "failed"))
    status = found.status.model_copy(update={"refused_reason": "no wings"})
    return found.model_copy(update={"status": status})


@pytest.mark.parametrize(
    ("obj", "awaits"),
    [
        pytest.param(just_refused(), True, id="it comes with the next step"),
        pytest.param(rolled_back(), True, id="it is about to come"),
        pytest.param(rolled_back("draining"), True, id="the new one goes"),
        pytest.param(rolled_back("pending"), True, id="it waits for room"),
        pytest.param(rolled_back("failed", "starting"), True, id="it starts"),
        pytest.param(rolled_back("failed"), False, id="it cannot work either"),
        pytest.param(rolled_back("backoff"), False, id="it crashes"),
        pytest.param(rolled_back(replicas=0), False, id="scaled to nothing"),
        pytest.param(rolled_back("starting", refusal=""), False, id="nothing is rolled back"),
    ],
)
def test_requests_wait_for_the_version_before_a_change_that_failed(obj, awaits):
    assert deployment_state(obj)[0] == "error"
    assert awaits_replicas(obj) is awaits
