"""The client library against the real controller (with a fake platform below it)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from exo_inference import errors
from exo_inference.planner import load_models
from exo_inference.sdk import AsyncClient, Client
from exo_inference.sdk import _requests as sdk_requests
from exo_inference.state_dir import StateDir
from tests.controller.conftest import Controller
from tests.controller.fakes import GPU_FAMILIES, log_line


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Controller]:
    made = Controller(StateDir(tmp_path / "state"))
    with made.running():
        yield made


@pytest.fixture
def client(controller: Controller) -> Iterator[Client]:
    with Client(controller.key, controller.secret, endpoint=controller.endpoint) as made:
        yield made


def deploy(client: Client, name: str = "chat") -> str:
    operation = client.deployments.create(name, model="org/m1", gpu_type="cpu", replicas=2)
    return client.operations.wait(operation).reference.id


def test_whole_flow(client: Client, controller: Controller):
    model = client.models.create("org/m1", huggingface_token="hf_ok", revision="v1")
    states: list[str] = []
    ready = client.models.wait_until_ready(
        model.reference.id, timeout=20, on_change=lambda m: states.append(m.state)
    )
    assert (ready.name, ready.revision, states[-1]) == ("org/m1", "v1", "ready")
    assert client.models.find("org/m1").id == client.models.find(ready.id).id
    uid = deploy(client)
    deployment = client.deployments.wait_until_ready(uid, timeout=20)
    assert deployment.ready_replicas == 2
    assert deployment.deployment_url.endswith(f"/{uid}/v1")
    client.operations.wait(client.deployments.scale(uid, 1))
    client.operations.wait(client.deployments.update(uid, engine_parameters=["--max-model-len=64"]))
    updated = client.deployments.wait_until_ready(uid, timeout=20)
    assert updated.inference_engine_parameters == ["--max-model-len=64"]
    assert updated.replicas == 1
    assert client.deployments.reveal_api_key(uid) == client.deployments.reveal_api_key(uid)
    assert client.deployments.events(uid)
    assert client.models.events(ready.id)
    with pytest.raises(errors.PreconditionFailed) as caught:
        client.models.delete(ready.id)
    assert caught.value.deployments == ("chat",)
    client.operations.wait(client.deployments.delete(uid))
    client.deployments.wait_until_deleted(uid, timeout=20)
    client.operations.wait(client.models.delete(ready.id))
    client.models.wait_until_deleted(ready.id, timeout=20)
    assert client.models.list() == client.deployments.list() == []


def test_operations_stay_readable(client: Client):
    operation = client.models.create("org/m1")
    assert client.operations.get(operation.id).id == operation.id
    assert client.operations.wait(operation.id).state == "success"


def test_repeated_create_makes_one_object(client: Client):
    """What a retry sends after a lost answer: the same request with the same idempotency key."""
    call = sdk_requests.create_model("org/m1", huggingface_token=None, revision=None, dry_run=False)
    first, second = client.send(call), client.send(call)
    assert first.reference == second.reference
    assert len(client.models.list()) == 1
    with pytest.raises(errors.Conflict):
        client.models.create("org/m1")


def test_dry_run_records_nothing_and_still_refuses(client: Client):
    assert client.models.create("org/m1", dry_run=True).state == "success"
    assert client.models.list() == []
    with pytest.raises(errors.BadRequest):
        client.deployments.create("x", model="org/none", gpu_type="cpu", dry_run=True)


def test_all_problems_of_a_request_come_with_their_fields(client: Client):
    with pytest.raises(errors.ApiError) as caught:
        client.deployments.create("No_Name", model="org/none", gpu_type="h900", gpu_count=0)
    where = {location for location, _ in caught.value.problems}
    assert {"name", "model", "gpu-type", "gpu-count"} <= where


def test_wrong_secret_is_an_authentication_error(controller: Controller):
    with Client(controller.key, "wrong", endpoint=controller.endpoint) as client:
        with pytest.raises(errors.AuthenticationFailed) as caught:
            client.models.list()
        assert client.zones.list()[0].name == "ch-dk-2"
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("name", "token"), [("gated/model", None), ("org/m", "hf_bad")], ids=["gated", "bad token"]
)
def test_a_model_that_the_hub_refuses_is_no_authentication_error(
    client: Client, name: str, token: str | None
):
    with pytest.raises(errors.ApiError) as caught:
        client.models.create(name, huggingface_token=token)
    assert caught.value.status_code == 403
    assert not isinstance(caught.value, errors.AuthenticationFailed)
    assert caught.value.exit_code == 1
    assert caught.value.hint is None


def test_configuration_of_a_state_directory_is_enough(controller: Controller):
    file = controller.state.config_file
    file.write_text(file.read_text().replace(":1/v2", f":{controller.port}/v2"))
    with Client(state_dir=controller.state.root) as client:
        assert client.models.list() == []
        assert client.status()["zone"] == "ch-dk-2"
        assert client.for_zone("ch-dk-2").deployments.list() == []


def test_error_state_ends_a_wait_with_its_reason(client: Client, controller: Controller):
    client.models.create("org/m1")
    controller.platform.fails = "CUDA out of memory"
    uid = deploy(client)
    with pytest.raises(errors.NotReady, match="CUDA out of memory"):
        client.deployments.wait_until_ready(uid, timeout=60)


def test_logs_are_read_and_followed(client: Client, controller: Controller):
    client.models.create("org/m1")
    uid = deploy(client)
    client.deployments.wait_until_ready(uid, timeout=20)
    controller.platform.log_lines = [log_line(n) for n in range(20)]
    assert [e.message for e in client.deployments.logs(uid, tail=2)] == ["line 18", "line 19"]
    assert len(list(client.deployments.logs(uid, since=log_line(5).time))) == 15
    entries = client.deployments.logs(uid, tail=3, follow=True)
    assert [next(entries).message for _ in range(3)] == ["line 17", "line 18", "line 19"]
    # The fake's stream ends there, as when a controller restarts; what is written then is new.
    controller.platform.log_lines.append(log_line(20))
    assert next(entries).message == "line 20"
    entries.close()


def test_followed_log_ends_with_its_deployment(client: Client, controller: Controller):
    client.models.create("org/m1")
    uid = deploy(client)
    client.deployments.wait_until_ready(uid, timeout=20)
    controller.platform.log_lines = [log_line(1)]
    seen: list[str] = []

    def follow() -> None:
        seen.extend(e.message for e in client.deployments.logs(uid, follow=True))

    thread = threading.Thread(target=follow)
    thread.start()
    client.deployments.delete(uid)
    thread.join(20)
    assert not thread.is_alive()
    assert seen in ([], ["line 1"])


async def test_asynchronous_flow(controller: Controller):
    credentials = (controller.key, controller.secret)
    async with AsyncClient(*credentials, endpoint=controller.endpoint, zone="ch-dk-2") as client:
        model = await client.models.create("org/m1")
        await client.models.wait_until_ready(model.reference.id, timeout=20)
        made = await client.deployments.create("chat", model="org/m1", gpu_type="cpu")
        await client.deployments.wait_until_ready(made.reference.id, timeout=20)
        controller.platform.log_lines = [log_line(n) for n in range(3)]
        lines = [e.message async for e in client.deployments.logs(made.reference.id, tail=1)]
        assert lines == ["line 2"]
        key = await client.api_keys.create("ci", "public")
        assert key.value not in repr(key)
        assert [k.name for k in await client.api_keys.list()] == ["ci"]
        await client.api_keys.delete(key.id)
        with pytest.raises(errors.NotFound):
            await client.api_keys.get(key.id)


MINISTRAL = "mistralai/Ministral-3-8B-Instruct-2512"


@pytest.fixture
def gpu_client(controller: Controller, client: Client) -> Client:
    """A client of a control plane with GPUs and one model of the catalogue."""
    controller.platform.families = GPU_FAMILIES
    controller.create_model(MINISTRAL)
    return client


def test_a_refusal_carries_its_plan(gpu_client: Client):
    with pytest.raises(errors.PreconditionFailed) as caught:
        gpu_client.deployments.create("m", model=MINISTRAL, gpu_type="gpua5000")
    plan = caught.value.plan
    assert plan is not None
    assert (plan.verdict, plan.max_model_len) == ("refused", 262144)
    flags = next(advice.flags for advice in plan.advice if advice.kinds == ["max-model-len"])
    operation = gpu_client.deployments.create(
        "m", model=MINISTRAL, gpu_type="gpua5000", engine_parameters=flags
    )
    assert operation.plan is not None
    assert operation.plan.verdict == "fits"


def test_force_admits_what_memory_refuses(gpu_client: Client):
    made = gpu_client.deployments.create("m", model=MINISTRAL, gpu_type="gpua5000", force=True)
    assert made.plan.verdict == "refused"
    uid = made.reference.id
    with pytest.raises(errors.PreconditionFailed):
        gpu_client.deployments.update(uid, engine_parameters=["--max-model-len=200000"])
    forced = gpu_client.deployments.update(
        uid, engine_parameters=["--max-model-len=200000"], force=True
    )
    assert forced.plan.max_model_len == 200000


def test_a_plan_says_the_same_as_the_refusal_without_raising(gpu_client: Client):
    plan = gpu_client.plan(model=MINISTRAL, gpu_type="gpua5000")
    assert plan.verdict == "refused"
    assert plan.advice
    assert not gpu_client.plan(model=MINISTRAL, gpu_type="gpua5000", with_advice=False).advice
    config = load_models()["Qwen/Qwen3-8B"]["config"]
    sent = gpu_client.plan(
        model_config=config,
        gpu_type="H100",
        gpu_count=2,
        engine_parameters=["--max-model-len=8192"],
        engine_version="0.28.0",
        engine="vllm",
    )
    assert (sent.verdict, sent.gpu_type, sent.tensor_parallel_size) == ("fits", "H100", 2)
    with pytest.raises(errors.BadRequest, match="there is no GPU"):
        gpu_client.plan(model=MINISTRAL, gpu_type="H1000")


async def test_the_asynchronous_client_plans_too(controller: Controller):
    async with AsyncClient(
        controller.key, controller.secret, endpoint=controller.endpoint
    ) as client:
        plan = await client.plan(model="Qwen/Qwen3-8B", gpu_type="RTX 4090")
        assert plan.gpu == "NVIDIA GeForce RTX 4090"


def test_parameters_are_those_of_the_engine_asked_for(client: Client):
    own = {parameter.name for parameter in client.deployments.parameters()}
    vllm = {parameter.name for parameter in client.deployments.parameters("0.28.0", engine="vllm")}
    assert len(vllm) > len(own)


class LosesAnswers(httpx.HTTPTransport):
    """Loses the first answer to a deletion, as a connection that breaks too late does."""

    has_lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.method == "DELETE" and not self.has_lost:
            self.has_lost = True
            answer.close()
            raise httpx.ReadTimeout("lost", request=request)
        return answer


def test_a_deletion_whose_answer_was_lost_is_answered_when_its_object_is_gone(
    controller: Controller,
):
    lossy = LosesAnswers()
    with Client(
        controller.key, controller.secret, endpoint=controller.endpoint, transport=lossy
    ) as client:
        model = client.models.create("org/m1", huggingface_token="hf_ok").reference.id
        assert client.models.delete(model).state == "success"
        assert lossy.has_lost
        with pytest.raises(errors.NotFound):
            client.models.delete(model)
