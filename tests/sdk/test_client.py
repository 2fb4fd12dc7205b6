from __future__ import annotations

import inspect
import json
import subprocess
import sys
from pathlib import Path

import pytest

import exo_inference
from exo_inference import errors, sdk
from exo_inference.sdk import AsyncClient, Client
from exo_inference.wire import ModelRef

from .fake_api import Answer, FakeApi

ROOT = Path(__file__).parents[2]
OPERATION = {"id": "o-1", "state": "success", "reference": {"id": "m-1"}}
UUID = "7975A975-fef8-405e-88a5-d1e68af90398"


def sent(api: FakeApi) -> object:
    return json.loads(api.seen[-1].body)


def test_public_surface_is_pinned():
    assert sdk.__all__ == ["AsyncClient", "Client"]
    assert exo_inference.Client is Client


def test_generated_client_is_current():
    script = ROOT / "scripts" / "generate_sync.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.stdout == ""
    assert done.returncode == 0


def test_both_clients_have_the_same_calls():
    blocking, awaiting = (
        Client("k", "s", endpoint="http://h/v2"),
        AsyncClient("k", "s", endpoint="http://h/v2"),
    )
    for noun in ("models", "deployments", "api_keys", "operations", "zones"):
        here, there = getattr(blocking, noun), getattr(awaiting, noun)
        names = {name for name in dir(here) if not name.startswith("_")}
        assert names == {name for name in dir(there) if not name.startswith("_")}
        for name in names:
            ours, theirs = (
                inspect.signature(getattr(here, name)),
                inspect.signature(getattr(there, name)),
            )
            assert list(ours.parameters) == list(theirs.parameters)
    blocking.close()


def test_model_create_is_the_request_of_the_real_client(api: FakeApi, client: Client):
    api.on("POST", "/ai/model", OPERATION)
    operation = client.models.create("org/x", huggingface_token="hf_é")
    assert operation.reference.id == "m-1"
    assert api.seen[-1].body == '{"huggingface-token":"hf_é","name":"org/x"}'.encode()
    assert api.seen[-1].headers["content-type"] == "application/json"
    client.models.create("org/x")
    assert api.seen[-1].body == b'{"name":"org/x"}'


def test_deployment_create_is_the_request_of_the_real_client(api: FakeApi, client: Client):
    api.on("POST", "/ai/deployment", OPERATION)
    client.deployments.create("chat", model="org/x", gpu_type="gpua5000")
    assert api.seen[-1].body == (
        b'{"gpu-count":1,"gpu-type":"gpua5000","model":{"name":"org/x"},"name":"chat","replicas":1}'
    )
    client.deployments.create(
        "chat",
        model=UUID,
        gpu_type="cpu",
        gpu_count=2,
        replicas=3,
        engine_parameters=["--a=1"],
        engine_version="0.25.0",
    )
    assert sent(api) == {
        "gpu-count": 2,
        "gpu-type": "cpu",
        "inference-engine-parameters": ["--a=1"],
        "inference-engine-version": "0.25.0",
        "model": {"id": UUID.lower()},
        "name": "chat",
        "replicas": 3,
    }


def test_model_of_a_deployment_may_be_a_reference(api: FakeApi, client: Client):
    api.on("POST", "/ai/deployment", OPERATION)
    client.deployments.create("c", model=ModelRef(id="i", name="n"), gpu_type="cpu")
    assert sent(api)["model"] == {"id": "i", "name": "n"}
    with pytest.raises(errors.UsageError, match="needs the name or the id"):
        client.deployments.create("c", model=ModelRef(), gpu_type="cpu")


def test_update_sends_what_was_given_and_an_empty_list_clears(api: FakeApi, client: Client):
    api.on("PATCH", "/ai/deployment/d-1", OPERATION)
    client.deployments.update("d-1")
    assert api.seen[-1].body == b"{}"
    client.deployments.update("d-1", engine_parameters=[], name="new")
    assert sent(api) == {"inference-engine-parameters": [], "name": "new"}


def test_one_string_of_parameters_is_a_mistake(client: Client):
    with pytest.raises(errors.UsageError, match="must be a list of flags"):
        client.deployments.update("d-1", engine_parameters="--a --b")


@pytest.mark.parametrize("name", ["org/x", "../zone", "a b", "", "é", "x?y"])
def test_name_in_the_place_of_an_id_is_refused_before_anything_is_sent(
    api: FakeApi, client: Client, name: str
):
    with pytest.raises(errors.UsageError, match="expected an id"):
        client.models.get(name)
    assert api.seen == []


def test_find_matches_name_or_id_exactly_and_suggests(api: FakeApi, client: Client):
    times = {"created-at": "2026-11-20T20:00:00Z", "updated-at": "2026-11-20T20:00:00Z"}
    models = [
        {"id": str(n), "name": name, "state": "ready", **times}
        for n, name in enumerate(["org/x", "org/y", "twin", "twin"])
    ]
    api.on("GET", "/ai/model", {"models": models})
    assert client.models.find("org/x").id == "0"
    assert client.models.find("1").name == "org/y"
    with pytest.raises(errors.NotFound) as caught:
        client.models.find("Org/x")
    assert "org/x" in caught.value.hint
    with pytest.raises(errors.Conflict, match="2, 3"):
        client.models.find("twin")


def test_answers_of_a_newer_api_are_read(api: FakeApi, client: Client):
    """Unknown states, unknown fields, nulls and missing optional fields do not stop a client."""
    api.on(
        "GET",
        "/ai/deployment",
        {
            "deployments": [
                {
                    "id": "d-1",
                    "name": "chat",
                    "state": "hibernating",
                    "deployment-url": None,
                    "model": {"id": "m-1", "name": None},
                    "visibility": "shared",
                    "replicas": None,
                    "new-field": {"a": 1},
                }
            ]
        },
    )
    found = client.deployments.find("chat")
    assert found.state == "hibernating"
    assert found.deployment_url == ""
    assert found.visibility == "shared"


@pytest.mark.parametrize("body", [{}, None, {"deployments": None}], ids=repr)
def test_empty_lists_come_in_several_forms(api: FakeApi, client: Client, body: object):
    api.on("GET", "/ai/deployment", Answer(body))
    assert client.deployments.list() == []


def test_reads_of_every_noun(api: FakeApi, client: Client):
    times = {"created-at": "2026-11-20T20:00:00Z", "updated-at": "2026-11-20T20:00:00Z"}
    key = {"id": "k-1", "org-uuid": "o", "name": "ci", "scope": "public", **times}
    api.on("POST", "/ai/api-key", {**key, "value": "sk-secret"})
    api.on("GET", "/ai/api-key", {"ai-api-keys": [key]})
    api.on("GET", "/ai/api-key/k-1", key)
    api.on("DELETE", "/ai/api-key/k-1", OPERATION)
    api.on("GET", "/ai/deployment/d-1/api-key", {"api-key": "sk-revealed"})
    api.on("GET", "/ai/instance-type", {"instance-types": [{"family": "cpu", "authorized": True}]})
    api.on("GET", "/ai/quota", {"quota-uom-per-minute": None})
    event = {"time": times["created-at"], "type": "Normal", "reason": "R", "message": "m"}
    api.on("GET", "/ai/model/m-1/events", {"events": [event]})
    api.on("GET", "/ai/deployment/d-1/events", {"events": [event]})
    created = client.api_keys.create("ci", "public")
    assert created.value == "sk-secret"
    assert "sk-secret" not in repr(created)
    assert client.api_keys.list()[0].name == client.api_keys.get("k-1").name == "ci"
    assert client.api_keys.delete("k-1").state == "success"
    assert client.deployments.reveal_api_key("d-1") == "sk-revealed"
    assert client.deployments.instance_types()[0].family == "cpu"
    assert client.quota().quota_uom_per_minute is None
    assert client.models.events("m-1")[0].reason == "R"
    assert client.deployments.events("d-1")[0].message == "m"


def test_plan_starts_have_what_was_predicted_and_measured(api: FakeApi, client: Client):
    head = {
        "id": "s-1",
        "deployment": "chat",
        "replica": "chat-1",
        "started-at": "2026-11-20T20:00:00Z",
    }
    engine = {"engine": "exo", "engine-version": "0.1.0", "model": "exo/tiny-chat", "flags": []}
    gpu = {"gpu": "CPU", "gpu-type": "cpu", "gpu-count": 1}
    start = {**head, **engine, **gpu, "measured": {"weights-bytes": 12, "of-a-newer-engine": 1}}
    api.on("GET", "/ai/plan/starts", {"starts": [start]})
    (found,) = client.plan_starts()
    assert (found.replica, found.measured.weights_bytes) == ("chat-1", 12)
    assert (found.predicted, found.measured.kv_capacity_tokens) == (None, None)


def test_parameters_of_one_version(api: FakeApi, client: Client):
    parameter = {
        "name": "a",
        "flags": ["--a"],
        "type": "integer",
        "section": "s",
        "description": "d",
    }
    api.on("GET", "/ai/help/inference-engine-parameters", {"parameters": [parameter]})
    assert client.deployments.parameters("0.25.0")[0].flags == ["--a"]
    assert api.seen[-1].query == {"version": "0.25.0"}


def test_dry_run_is_never_sent_to_a_server_that_would_do_it(api: FakeApi, client: Client):
    """An API that ignores the argument would create, and bill, the real thing."""
    api.on("POST", "/ai/model", OPERATION)
    with pytest.raises(errors.UsageError, match="does not know dry runs; nothing was sent"):
        client.models.create("org/x", dry_run=True)
    assert api.requests("POST", "/ai/model") == []


def test_dry_run_is_asked_for_in_the_query(api: FakeApi, client: Client):
    api.on("GET", "/ai/status", {"version": "0.1.0"})
    api.on("POST", "/ai/model", OPERATION)
    api.on("DELETE", "/ai/deployment/d-1", OPERATION)
    client.models.create("org/x", dry_run=True)
    assert api.seen[-1].query == {"dry-run": "dry-run"}
    client.deployments.delete("d-1", dry_run=True)
    assert api.seen[-1].query == {"dry-run": "dry-run"}
    assert len(api.requests("GET", "/ai/status")) == 1


def test_every_request_says_who_asks(api: FakeApi, client: Client):
    api.on("GET", "/ai/model", {"models": []})
    client.models.list()
    assert api.seen[-1].headers["user-agent"] == f"exo-inference/{exo_inference.__version__}"


def test_repr_shows_no_secret(api: FakeApi, client: Client):
    shown = repr(client) + repr(client.settings) + repr(client._http.options)
    assert "rigsecret" not in shown
    assert api.endpoint in repr(client)


async def test_asynchronous_client_runs_the_whole_flow(api: FakeApi, async_client: AsyncClient):
    api.on("POST", "/ai/model", OPERATION)
    api.on("GET", "/ai/deployment/d-1/api-key", {"api-key": "sk"})
    async with async_client as client:
        assert (await client.models.create("org/x")).id == "o-1"
        assert await client.deployments.reveal_api_key("d-1") == "sk"
        with pytest.raises(errors.NotFound):
            await client.models.get("m-9")


def test_importing_the_package_loads_no_http_library():
    code = (
        "import sys, exo_inference, exo_inference.sdk, exo_inference.settings;"
        "print(sorted({'httpx', 'pydantic', 'tenacity', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_proxy_of_the_environment_is_not_asked_for_this_machine(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    api.on("GET", "/ai/model", {"models": []})
    with Client("EXOk", "s", endpoint=api.endpoint) as client:
        assert client.models.list() == []


def test_equal_writes_of_one_moment_are_signed_differently(api: FakeApi, client: Client):
    """Else a server would take the second for a repeat of the first."""
    api.on("POST", "/ai/deployment/d-1/scale", {"id": "o-1", "state": "success"})
    for _ in range(50):
        client.deployments.scale("d-1", 2)
    signatures = {request.headers["authorization"] for request in api.seen}
    assert len(signatures) == 50


def test_a_deployment_is_not_created_with_no_replicas_where_that_makes_one(
    api: FakeApi, client: Client
):
    """Servers take 0 for 1, because the vendor's program sends it when its user says nothing."""
    api.on("GET", "/ai/status", {"features": ["replace-deployment"]})
    with pytest.raises(errors.UsageError, match="at least 1 replica"):
        client.deployments.create("chat", model="org/m1", gpu_type="cpu", replicas=0)
    assert [request.method for request in api.seen] == ["GET"]


def test_a_deployment_is_created_stopped_where_the_api_says_that_it_can(
    api: FakeApi, client: Client
):
    api.on("GET", "/ai/status", {"features": ["create-stopped"]})
    api.on("POST", "/ai/deployment", {"id": "o-1", "state": "success"})
    client.deployments.create("chat", model="org/m1", gpu_type="cpu", replicas=0)
    made = api.seen[-1]
    assert (made.query, json.loads(made.body)["replicas"]) == ({"stopped": "stopped"}, 0)
