"""The `exoscale` package from PyPI, which nobody here wrote, does the whole flow on a real stack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from exoscale.api.exceptions import (
    ExoscaleAPIAuthException,
    ExoscaleAPIClientException,
)
from exoscale.api.v2 import Client

from tests.controller.openapi import check_answer

from .conftest import Stack


class Recorder:
    """Holds every answer that passes through the client's session to the package's document."""

    def __init__(self) -> None:
        self.validated = 0

    def __call__(self, response: Any, *_: Any, **__: Any) -> None:
        request = response.request
        path = request.path_url.split("?")[0].removeprefix("/v2")
        check_answer(request.method, path, response.status_code, response.json())
        self.validated += 1


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def client(stack: Stack, recorder: Recorder) -> Iterator[Client]:
    client = Client(stack.key, stack.secret, url=stack.endpoint)
    client.http_client.hooks["response"].append(recorder)
    yield client
    client.http_client.close()


def wait_for(read: Any, done: Any) -> Any:
    """Wait until `done` says so: engines give way, so a start takes 20 s beside work on every core.

    Beside ten times as much it takes minutes: what is no start at all is found by the test's own limit.
    """
    deadline = time.monotonic() + 300
    while not done(value := read()):
        assert value.get("state") != "error", value
        assert time.monotonic() < deadline, value
        time.sleep(0.2)
    return value


@pytest.mark.slow
@pytest.mark.timeout(1200)  # three starts of an engine, of 300 s each at most
def test_whole_flow(client: Client, recorder: Recorder) -> None:
    operation = client.create_model(name="exo/tiny-draft")
    model_id = operation["reference"]["id"]
    assert client.wait(operation["id"])["state"] == "success"
    model = wait_for(lambda: client.get_model(id=model_id), lambda m: m["state"] == "ready")
    assert model["model-size"] > 0
    assert model_id in [m["id"] for m in client.list_models()["models"]]

    operation = client.create_deployment(
        name="flow",
        model={"name": "exo/tiny-draft"},
        gpu_type="cpu",
        gpu_count=1,
        replicas=1,
        inference_engine_parameters=["--max-model-len=512"],
    )
    deployment_id = operation["reference"]["id"]
    assert client.wait(operation["id"])["state"] == "success"

    def get() -> dict[str, Any]:
        return client.get_deployment(id=deployment_id)

    deployment = wait_for(get, lambda d: d["state"] == "ready")
    assert deployment["deployment-url"].startswith("http://127.0.0.1:")
    assert deployment["inference-engine-parameters"] == ["--max-model-len=512"]
    logs = client.get_deployment_logs(id=deployment_id, tail=5)["logs"]
    assert 1 <= len(logs) <= 5
    assert client.get_deployment_logs(id=deployment_id, stream=True, tail=3)["logs"]

    client.wait(
        client.update_deployment(
            id=deployment_id, name="flowed", inference_engine_parameters=["--max-num-seqs=4"]
        )["id"]
    )
    deployment = wait_for(get, lambda d: d["state"] == "ready")
    assert deployment["name"] == "flowed"
    assert deployment["inference-engine-parameters"] == ["--max-num-seqs=4"]
    client.wait(client.scale_deployment(id=deployment_id, replicas=2)["id"])
    wait_for(get, lambda d: d["state"] == "ready" and d["replicas"] == 2)
    assert client.reveal_deployment_api_key(id=deployment_id)["api-key"]

    with pytest.raises(ExoscaleAPIClientException, match="flowed"):
        client.delete_model(id=model_id)

    client.wait(client.delete_deployment(id=deployment_id)["id"])
    deadline = time.monotonic() + 60
    while deployment_id in [d["id"] for d in client.list_deployments()["deployments"]]:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    client.wait(client.delete_model(id=model_id)["id"])
    assert recorder.validated > 20


def test_scoped_keys_live_and_die(client: Client) -> None:
    created = client.create_ai_api_key(name="ci key", scope="public")
    assert created["value"]
    listed = client.list_ai_api_keys()["ai-api-keys"]
    assert created["id"] in [key["id"] for key in listed]
    assert all("value" not in key for key in listed)
    assert client.get_ai_api_key(id=created["id"])["name"] == "ci key"
    client.wait(client.delete_ai_api_key(id=created["id"])["id"])
    with pytest.raises(ExoscaleAPIClientException):
        client.get_ai_api_key(id=created["id"])


def test_the_rest_of_the_api_answers(client: Client) -> None:
    assert client.list_zones()["zones"][0]["api-endpoint"].endswith("/v2")
    families = client.list_ai_instance_types()["instance-types"]
    assert {"family": "cpu", "authorized": True}.items() <= next(
        f for f in families if f["family"] == "cpu"
    ).items()
    assert client.get_inference_engine_help()["parameters"]
    assert client.get_inference_engine_help(version="0.25.0")["parameters"]
    assert isinstance(client.list_quotas()["quotas"], list)


def test_wrong_secret_is_an_authentication_error(stack: Stack) -> None:
    wrong = Client(stack.key, "wrong", url=stack.endpoint)
    with pytest.raises(ExoscaleAPIAuthException, match="403"):
        wrong.list_models()
    wrong.http_client.close()


@pytest.mark.parametrize(
    "name",
    ["../up", "a/b", 'quo"te', "ümlaut", "UPPER", "", " ", "x" * 64, "-dash", "a\nb"],
    ids=repr,
)
def test_bad_deployment_names_are_refused(client: Client, name: str) -> None:
    with pytest.raises(ExoscaleAPIClientException, match="400"):
        client.create_deployment(
            name=name, model={"name": "exo/tiny-chat"}, gpu_type="cpu", gpu_count=1, replicas=1
        )


def test_what_does_not_exist_is_404(client: Client) -> None:
    nobody = "00000000-0000-4000-8000-000000000000"
    for call in (
        lambda: client.get_model(id=nobody),
        lambda: client.delete_model(id=nobody),
        lambda: client.get_deployment(id=nobody),
        lambda: client.scale_deployment(id=nobody, replicas=1),
        lambda: client.update_deployment(id=nobody, name="x"),
        lambda: client.delete_deployment(id=nobody),
        lambda: client.get_deployment_logs(id=nobody),
        lambda: client.reveal_deployment_api_key(id=nobody),
        lambda: client.get_operation(id=nobody),
    ):
        with pytest.raises(ExoscaleAPIClientException, match="404"):
            call()


def test_a_request_without_a_body_is_refused(client: Client) -> None:
    with pytest.raises(ExoscaleAPIClientException, match="400"):
        client.create_model()
