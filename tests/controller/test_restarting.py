"""`POST /ai/deployment/{id}/restart`: new replicas in place of all that run."""

from __future__ import annotations

from exo_inference.platforms.local.lifecycle import spec_hash
from exo_inference.resources import ROLL_ANNOTATION, DeploymentSpec, InferenceDeployment, ObjectMeta
from tests.controller.conftest import Controller
from tests.controller.test_reconciling import replica_names
from tests.desired_deployments import altered, desired_deployment


def test_all_replicas_are_replaced_and_none_is_stopped_before_it_is_unrouted(
    controller: Controller,
) -> None:
    controller.create_model()
    uid = controller.create_deployment(replicas=2)
    client = controller.client()
    for _ in range(2):  # the second request is another one, however soon it comes
        before = set(replica_names(controller))
        answer = controller.call("POST", f"/v2/ai/deployment/{uid}/restart")
        assert (answer.status_code, answer.json()["state"]) == (200, "success")
        assert client.get_deployment(id=uid)["state"] == "updating"
        controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
        assert before.isdisjoint(replica_names(controller))
        assert before <= set(controller.platform.stopped)
    events = controller.call("GET", f"/v2/ai/deployment/{uid}/events").json()["events"]
    assert "Restarted" in {event["reason"] for event in events}


def test_a_dry_run_restarts_nothing(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    before = controller.client().get_deployment(id=uid)
    answer = controller.call("POST", f"/v2/ai/deployment/{uid}/restart?dry-run=dry-run")
    assert answer.status_code == 200
    assert controller.client().get_deployment(id=uid) == before


def test_what_has_no_replicas_cannot_be_restarted(controller: Controller) -> None:
    controller.create_model()
    uid = controller.create_deployment()
    client = controller.client()
    client.scale_deployment(id=uid, replicas=0)
    answer = controller.call("POST", f"/v2/ai/deployment/{uid}/restart")
    assert (answer.status_code, "scaled to 0" in answer.text) == (412, True)


def test_replicas_from_before_there_were_restarts_stay_as_they_are() -> None:
    desired = desired_deployment(
        uid="u", name="n", model="m", model_path="/m", gpu_type="cpu", gpu_count=1, replicas=1
    )
    assert spec_hash(desired) == "41eeca6bf04bdb30"
    assert spec_hash(altered(desired, roll="a")) != spec_hash(altered(desired, roll="b"))


def test_whatever_an_annotation_holds_is_safe_to_hand_on() -> None:
    evil = InferenceDeployment(
        metadata=ObjectMeta(
            name="n", uid="u", annotations={ROLL_ANNOTATION: "x\n{{evil}}" * 10**5}
        ),
        spec=DeploymentSpec(model="m", gpu_type="cpu"),
    )
    assert len(evil.roll) == 16
    assert evil.roll.isalnum()
