"""A deployment whose number of replicas an autoscaler decides, and not `spec.replicas`."""

from __future__ import annotations

import pytest

from exo_inference.controller.conditions import with_ready
from exo_inference.controller.http.views import view_deployment
from exo_inference.resources import InferenceDeployment, is_true
from exo_inference.resources.states import deployment_state
from tests.controller.builders import assess, deployment, replica

THREE = (replica("a"), replica("b"), replica("c"))


def state_of(obj: InferenceDeployment) -> tuple[str, str]:
    state, details = deployment_state(obj)
    return state.value, details


def is_ready(obj: InferenceDeployment) -> bool:
    return is_true(with_ready(obj.status.conditions), "Ready")


@pytest.mark.parametrize("asked", [0, 1, 3])
def test_it_is_ready_with_the_number_that_the_autoscaler_asks_for(asked: int) -> None:
    found = assess(deployment(replicas=2), *THREE[:asked], autoscaled=asked)
    assert is_ready(found)
    assert state_of(found)[0] == "ready"


def test_it_shows_that_number_and_its_specification_stays() -> None:
    found = assess(deployment(replicas=1), *THREE, autoscaled=3)
    view = view_deployment(found, {}, details=True)
    assert (view.replicas, view.ready_replicas) == (3, 3)
    assert found.spec.replicas == 1


def test_a_new_number_is_scaling_until_it_is_there() -> None:
    settled = assess(deployment(replicas=1), THREE[0], autoscaled=1)
    up = assess(settled, THREE[0], replica("b", "starting"), autoscaled=3)
    assert state_of(up) == ("scaling", "ready 1 of 3: replica b: starting")
    assert not is_ready(up)
    more = assess(up, *THREE[:2], replica("c", "starting"), autoscaled=3)
    assert state_of(more)[0] == "scaling"
    assert state_of(assess(more, *THREE, autoscaled=3))[0] == "ready"


def test_fewer_are_scaling_while_the_others_finish_their_requests() -> None:
    settled = assess(deployment(replicas=1), *THREE, autoscaled=3)
    down = assess(settled, *THREE[:2], replica("c", "draining"), autoscaled=2)
    assert state_of(down) == ("scaling", "ready 2 of 2: 1 finishing their requests")
    assert state_of(assess(down, *THREE[:2], autoscaled=2))[0] == "ready"


def test_a_replica_that_is_lost_is_no_scaling() -> None:
    settled = assess(deployment(replicas=1), *THREE, autoscaled=3)
    lost = assess(settled, *THREE[:2], autoscaled=3)
    assert state_of(lost) == ("ready", "ready 2 of 3")
    assert not is_ready(lost)
    assert state_of(assess(lost, *THREE[:2], replica("d", "starting"), autoscaled=3))[0] == "ready"


def test_scaled_to_zero_says_who_scales_it_up() -> None:
    found = assess(deployment(replicas=1), autoscaled=0)
    assert state_of(found) == (
        "ready",
        "scaled to 0 by the autoscaler: requests are answered 503 until it starts a replica",
    )


def test_a_change_that_nobody_has_looked_at_yet_is_no_scaling() -> None:
    settled = assess(deployment(replicas=1), *THREE, autoscaled=3)
    metadata = settled.metadata.model_copy(update={"generation": 2})
    changed = settled.model_copy(update={"metadata": metadata})
    assert state_of(changed) == ("updating", "waiting for the controller")
