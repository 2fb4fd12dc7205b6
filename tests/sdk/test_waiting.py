from __future__ import annotations

import pytest

from exo_inference import errors
from exo_inference.sdk import AsyncClient, Client
from exo_inference.sdk._waiting import operation_interval
from exo_inference.wire import Operation

from .fake_api import Answer, FakeApi, VirtualTime

PENDING = {"id": "o-1", "state": "pending"}
FAILED = {
    "id": "o-1",
    "state": "failure",
    "reason": "busy",
    "message": "not enough GPUs",
    "reference": {"id": "d-1", "command": "get-deployment"},
}
DEPLOYMENT = {"id": "d-1", "name": "chat", "model": {"name": "org/x"}, "deployment-url": ""}
BROKEN = Answer(b"oops", status=501)


def deployment(state: str, details: str = "") -> dict[str, object]:
    return {**DEPLOYMENT, "state": state, "state-details": details}


def test_poll_curve_is_that_of_the_real_clients_but_begins_with_a_second():
    assert [operation_interval(t) for t in (0, 3)] == pytest.approx([1.03, 1.227], abs=0.001)
    assert operation_interval(60) == pytest.approx(4.96, abs=0.01)
    assert operation_interval(900) == pytest.approx(60, abs=0.01)
    assert operation_interval(5000) == 60


def test_operation_that_ended_costs_no_request(api: FakeApi, client: Client):
    done = Operation.model_validate({"id": "o-1", "state": "success"})
    assert client.operations.wait(done) is done
    assert api.seen == []


def test_pending_operation_is_polled_after_a_pause(
    api: FakeApi, client: Client, clock: VirtualTime
):
    api.on("GET", "/operation/o-1", PENDING, {"id": "o-1", "state": "success"})
    done = client.operations.wait(Operation.model_validate(PENDING))
    assert done.state == "success"
    assert clock.sleeps == pytest.approx([1.03, 1.097], abs=0.001)


def test_operation_named_by_its_id_is_polled_at_once(
    api: FakeApi, client: Client, clock: VirtualTime
):
    api.on("GET", "/operation/o-1", {"id": "o-1", "state": "success"})
    client.operations.wait("o-1")
    assert clock.sleeps == []


@pytest.mark.parametrize("state", ["failure", "timeout", "a-new-state"])
def test_operation_that_ends_otherwise_is_an_error_with_its_message(
    api: FakeApi, client: Client, state: str
):
    api.on("GET", "/operation/o-1", {**FAILED, "state": state})
    with pytest.raises(errors.OperationFailed, match="not enough GPUs") as caught:
        client.operations.wait("o-1")
    assert caught.value.reason == "busy"
    assert "get-deployment d-1" in caught.value.message


def test_failure_without_a_reason_is_still_an_error(api: FakeApi, client: Client):
    api.on("GET", "/operation/o-1", {"id": "o-1", "state": "failure"})
    with pytest.raises(errors.OperationFailed) as caught:
        client.operations.wait("o-1")
    assert caught.value.reason == "unknown"


def test_four_failing_polls_in_a_row_are_tolerated(api: FakeApi, client: Client):
    ok = Answer({"id": "o-1", "state": "success"})
    api.on("GET", "/operation/o-1", *[BROKEN] * 4, Answer(PENDING), *[BROKEN] * 4, ok)
    assert client.operations.wait("o-1").state == "success"


def test_five_failing_polls_in_a_row_end_the_wait(api: FakeApi, client: Client):
    api.on("GET", "/operation/o-1", BROKEN)
    with pytest.raises(errors.ServerError):
        client.operations.wait("o-1")
    assert len(api.seen) == 5


def test_unknown_operation_ends_the_wait_at_once(api: FakeApi, client: Client):
    with pytest.raises(errors.NotFound):
        client.operations.wait("o-1")
    assert len(api.seen) == 1


def test_operation_still_pending_in_the_end_says_so(
    api: FakeApi, client: Client, clock: VirtualTime
):
    api.on("GET", "/operation/o-1", PENDING)
    with pytest.raises(errors.NotReady, match="still pending after 10 s") as caught:
        client.operations.wait("o-1", timeout=10)
    assert caught.value.exit_code == 8
    assert clock.now == pytest.approx(10)


def test_waiting_reports_each_change_and_returns_the_ready_object(api: FakeApi, client: Client):
    api.on(
        "GET",
        "/ai/deployment/d-1",
        deployment("deploying", "loading weights 10 %"),
        deployment("deploying", "loading weights 10 %"),
        deployment("deploying", "loading weights 90 %"),
        deployment("ready"),
    )
    seen: list[str] = []
    ready = client.deployments.wait_until_ready(
        "d-1", timeout=60, on_change=lambda d: seen.append(d.state_details or d.state)
    )
    assert ready.state == "ready"
    assert seen == ["loading weights 10 %", "loading weights 90 %", "ready"]


def test_waiting_fails_early_when_the_object_is_in_error(
    api: FakeApi, client: Client, clock: VirtualTime
):
    api.on("GET", "/ai/deployment/d-1", deployment("deploying"), deployment("error", "bad shard"))
    with pytest.raises(errors.NotReady, match='"chat" cannot become ready: bad shard') as caught:
        client.deployments.wait_until_ready("d-1", timeout=600)
    assert caught.value.state_details == "bad shard"
    assert "logs chat" in caught.value.hint
    assert clock.now < 1


ROLLED_BACK = deployment("error", "the update was rolled back: unknown flag --x")


def test_waiting_for_an_update_that_was_rolled_back_says_so(api: FakeApi, client: Client):
    api.on("GET", "/ai/deployment/d-1", ROLLED_BACK)
    expected = '"chat": the update was rolled back: unknown flag --x'
    with pytest.raises(errors.NotReady, match=expected):
        client.deployments.wait_until_ready("d-1", timeout=600)


def test_scaling_after_a_roll_back_waits_for_the_version_before(api: FakeApi, client: Client):
    looks = [{**ROLLED_BACK, "replicas": 1, "ready-replicas": ready} for ready in (0, 0, 1)]
    api.on("GET", "/ai/deployment/d-1", *looks)
    assert client.deployments.wait_until_scaled("d-1", timeout=600).ready_replicas == 1
    assert len(api.seen) == 3


def test_scaling_ends_at_once_when_the_version_before_fails_too(api: FakeApi, client: Client):
    failed = {"name": "r-1", "state": "failed", "details": "no GPU memory"}
    look = {**ROLLED_BACK, "replicas": 1, "ready-replicas": 0, "replica-status": [failed]}
    api.on("GET", "/ai/deployment/d-1", look)
    with pytest.raises(errors.NotReady, match="cannot become ready: replica r-1: no GPU memory"):
        client.deployments.wait_until_scaled("d-1", timeout=600)


def test_scaling_what_is_in_error_otherwise_fails_early(api: FakeApi, client: Client):
    api.on("GET", "/ai/deployment/d-1", deployment("error", "bad shard"))
    with pytest.raises(errors.NotReady, match='"chat" cannot become ready: bad shard'):
        client.deployments.wait_until_scaled("d-1", timeout=600)


def test_wait_that_runs_out_says_where_it_stood(api: FakeApi, client: Client, clock: VirtualTime):
    api.on("GET", "/ai/deployment/d-1", deployment("deploying", "loading weights 43 %"))
    with pytest.raises(
        errors.NotReady, match=r"not ready after 30 s: deploying \(loading"
    ) as caught:
        client.deployments.wait_until_ready("d-1", timeout=30)
    assert caught.value.exit_code == 8
    assert 30 <= clock.now < 36


def test_waiting_survives_a_restart_of_the_server(api: FakeApi, client: Client):
    hang_up = Answer(hang_up=True)
    api.on("GET", "/ai/deployment/d-1", *[hang_up] * 6, Answer(deployment("ready")))
    assert client.deployments.wait_until_ready("d-1", timeout=60).state == "ready"


def test_unknown_state_is_waited_through(api: FakeApi, client: Client):
    api.on("GET", "/ai/deployment/d-1", deployment("migrating"), deployment("ready"))
    assert client.deployments.wait_until_ready("d-1", timeout=60).state == "ready"


@pytest.mark.parametrize(
    ("state", "details", "said"),
    [
        ("updating", "deleting: 1 replica ends", "it was being deleted$"),
        ("updating", "1 of 2 replicas replaced", "it was updating and never ready$"),
    ],
)
def test_waiting_for_what_is_deleted_says_so(
    api: FakeApi, client: Client, state: str, details: str, said: str
):
    api.on("GET", "/ai/deployment/d-1", deployment(state, details), Answer({}, status=404))
    with pytest.raises(errors.NotFound, match=f"was deleted while it was waited for; {said}"):
        client.deployments.wait_until_ready("d-1", timeout=60)


def test_waiting_for_deletion_ends_when_it_is_not_found(api: FakeApi, client: Client):
    gone = Answer({}, status=404)
    api.on("GET", "/ai/deployment/d-1", Answer(deployment("ready")), gone)
    client.deployments.wait_until_deleted("d-1", timeout=60)
    assert len(api.seen) == 2


def test_waiting_for_deletion_runs_out(api: FakeApi, client: Client):
    api.on("GET", "/ai/deployment/d-1", deployment("ready"))
    with pytest.raises(errors.NotReady, match="is not gone after 5 s"):
        client.deployments.wait_until_deleted("d-1", timeout=5)


async def test_asynchronous_waits_are_the_same(api: FakeApi, async_client: AsyncClient):
    api.on("GET", "/ai/deployment/d-1", deployment("deploying"), deployment("ready"))
    api.on("GET", "/operation/o-1", PENDING, {"id": "o-1", "state": "success"})
    async with async_client as client:
        assert (await client.deployments.wait_until_ready("d-1", timeout=9)).state == "ready"
        assert (await client.operations.wait("o-1")).state == "success"
