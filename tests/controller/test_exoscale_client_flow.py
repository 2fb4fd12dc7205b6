"""The vendor's Python client runs the whole flow; every answer is held to its openapi document."""

from __future__ import annotations

import pytest
from exoscale.api.exceptions import ExoscaleAPIAuthException, ExoscaleAPIClientException
from exoscale.api.v2 import Client

from tests.controller.conftest import Controller
from tests.controller.fakes import log_line


def test_whole_life_of_a_model_and_a_deployment(controller: Controller) -> None:
    client = controller.client()
    operation = client.create_model(name="org/m1", huggingface_token="hf_good")
    assert client.wait(operation["id"], max_wait_time=5)["state"] == "success"
    model_id = operation["reference"]["id"]
    controller.wait_for(lambda: client.get_model(id=model_id)["state"] == "ready")
    assert [m["name"] for m in client.list_models()["models"]] == ["org/m1"]
    assert client.get_model(id=model_id)["model-size"] == 3 * 1024**2

    created = client.create_deployment(
        name="chat",
        gpu_type="cpu",
        gpu_count=1,
        replicas=2,
        model={"id": model_id},
        inference_engine_parameters=["--max-model-len=4096"],
        inference_engine_version="0.28.0",
    )
    uid = created["reference"]["id"]
    assert created["state"] == "success"
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
    shown = client.get_deployment(id=uid)
    assert shown["deployment-url"] == f"http://127.0.0.1:8999/{uid}/v1"
    assert shown["model"] == {"id": model_id, "name": "org/m1"}
    assert shown["inference-engine-parameters"] == ["--max-model-len=4096"]
    assert shown["inference-engine-version"] == "0.28.0"
    assert (shown["replicas"], shown["ready-replicas"]) == (2, 2)

    controller.platform.log_lines = [log_line(n) for n in range(5)]
    logs = client.get_deployment_logs(id=uid, tail=3, stream=True)["logs"]
    assert [entry["message"] for entry in logs] == ["line 2", "line 3", "line 4"]

    key = client.reveal_deployment_api_key(id=uid)["api-key"]
    assert key.startswith("exo-")
    assert len(key) >= 36

    client.scale_deployment(id=uid, replicas=1)
    controller.wait_for(lambda: client.get_deployment(id=uid)["ready-replicas"] == 1)
    client.update_deployment(id=uid, name="chat2", inference_engine_parameters=[])
    controller.wait_for(lambda: client.get_deployment(id=uid)["state"] == "ready")
    assert client.get_deployment(id=uid)["name"] == "chat2"
    assert client.get_deployment(id=uid)["inference-engine-parameters"] == []

    with pytest.raises(ExoscaleAPIClientException, match="412") as refused:
        client.delete_model(id=model_id)
    assert refused.value.response.json()["deployments"] == ["chat2"]

    client.delete_deployment(id=uid)
    client.delete_model(id=model_id)
    controller.wait_for(lambda: not client.list_deployments()["deployments"])
    controller.wait_for(lambda: not client.list_models()["models"])
    assert controller.platform.replicas == {}
    assert list(controller.state.models_dir.iterdir()) == []
    assert client.get_operation(id=created["id"])["state"] == "success"


def test_what_the_platform_offers(controller: Controller) -> None:
    client = controller.client()
    families = client.list_ai_instance_types()["instance-types"]
    # All of the first are in use: it is authorized none the less.
    assert [(f["family"], f["authorized"], f["free-gpus"]) for f in families] == [
        ("gpua5000", True, 0),
        ("cpu", True, 2),
    ]
    assert client.get_user_org_consumption_quota() == {"quota-uom-per-minute": None}
    quotas = {quota["resource"]: quota for quota in client.list_quotas()["quotas"]}
    assert quotas["cpu"] == {"resource": "cpu", "usage": 0, "limit": 2}
    assert client.get_quota(entity="ai-model")["usage"] == 0
    flags = client.get_inference_engine_help(version="0.25.0")["parameters"]
    assert any("--max-model-len" in parameter["flags"] for parameter in flags)
    assert not any("--device" in parameter["flags"] for parameter in flags)
    assert client.list_zones()["zones"] == [
        {"name": "ch-dk-2", "api-endpoint": controller.endpoint}
    ]


def test_scoped_keys_live_and_go_with_their_deployment(controller: Controller) -> None:
    client = controller.client()
    controller.create_model()
    uid = controller.create_deployment()
    public = client.create_ai_api_key(name="team key", scope="public")
    scoped = client.create_ai_api_key(name="chat key", scope=uid)
    assert public["value"].startswith("exo-")
    assert public["value"] != scoped["value"]
    listed = client.list_ai_api_keys()["ai-api-keys"]
    assert [key["name"] for key in listed] == ["team key", "chat key"]
    assert all("value" not in key for key in listed)
    assert client.get_ai_api_key(id=public["id"])["org-uuid"] == scoped["org-uuid"]
    routes = controller.state.routes_file
    controller.wait_for(lambda: routes.read_text().count("sha256") == 3)
    assert public["value"] not in routes.read_text()
    client.delete_ai_api_key(id=public["id"])
    controller.wait_for(lambda: routes.read_text().count("sha256") == 2)
    client.delete_deployment(id=uid)
    controller.wait_for(lambda: client.list_ai_api_keys()["ai-api-keys"] == [])


@pytest.mark.parametrize(
    ("call", "status"),
    [
        pytest.param(lambda c: c.get_model(id="nope"), 404, id="unknown model"),
        pytest.param(lambda c: c.get_model(id="..%2f..%2fzone"), 404, id="id with dots"),
        pytest.param(lambda c: c.get_model(id="a b/c"), 404, id="id with a slash"),
        pytest.param(lambda c: c.get_deployment(id="é"), 404, id="id in unicode"),
        pytest.param(lambda c: c.create_model(), 400, id="no body"),
        pytest.param(lambda c: c.create_model(name="nonsense"), 400, id="no model name"),
        pytest.param(lambda c: c.create_model(name="missing/model"), 404, id="missing model"),
        pytest.param(lambda c: c.create_model(name="gated/model"), 403, id="gated model"),
        pytest.param(lambda c: c.create_model(name="empty/model"), 412, id="unusable model"),
        pytest.param(
            lambda c: c.create_model(name="org/m", huggingface_token="hf_bad"), 403, id="bad token"
        ),
        pytest.param(
            lambda c: c.create_model(name="org/m", huggingface_token="hf_é"), 400, id="odd token"
        ),
        pytest.param(lambda c: c.scale_deployment(id="x", replicas=1), 404, id="scale nothing"),
        pytest.param(lambda c: c.delete_deployment(id="x"), 404, id="delete nothing"),
        pytest.param(lambda c: c.update_deployment(id="x"), 404, id="update nothing"),
        pytest.param(lambda c: c.reveal_deployment_api_key(id="x"), 404, id="no key"),
        pytest.param(lambda c: c.get_deployment_logs(id="x"), 404, id="no logs"),
        pytest.param(lambda c: c.get_operation(id="x"), 404, id="no operation"),
        pytest.param(lambda c: c.get_quota(entity="x"), 404, id="no quota"),
        pytest.param(lambda c: c.get_ai_api_key(id="x"), 404, id="no API key"),
        pytest.param(
            lambda c: c.get_inference_engine_help(version="9.9.9"), 400, id="unknown version"
        ),
        pytest.param(lambda c: c.create_ai_api_key(name="-", scope="public"), 400, id="key name"),
        pytest.param(lambda c: c.create_ai_api_key(name="k", scope="x"), 400, id="key scope"),
        pytest.param(
            lambda c: c.create_ai_api_key(name="k", scope="00000000-0000-4000-8000-000000000000"),
            404,
            id="key for no deployment",
        ),
    ],
)
def test_refusals_reach_the_client_as_documented(idle_controller: Controller, call, status) -> None:
    error = ExoscaleAPIAuthException if status == 403 else ExoscaleAPIClientException
    with pytest.raises(error, match=str(status)) as refused:
        call(idle_controller.client())
    assert len(refused.value.response.json()["message"]) > 10


def test_a_wrong_secret_is_an_authentication_error(controller: Controller) -> None:
    client = Client(controller.key, "wrong", url=controller.endpoint)
    with pytest.raises(ExoscaleAPIAuthException, match="signature does not match"):
        client.list_models()


def test_a_trailing_slash_of_the_endpoint_is_forgiven(controller: Controller) -> None:
    client = Client(controller.key, controller.secret, url=controller.endpoint + "/")
    assert client.list_models() == {"models": []}
    assert client.list_zones()["zones"][0]["name"] == "ch-dk-2"


def test_no_replicas_are_one_and_the_operation_says_so(controller: Controller) -> None:
    """The vendor's program sends 0 when its user says nothing."""
    controller.create_model()
    client = controller.client()
    body = {"gpu_type": "cpu", "gpu_count": 1, "model": {"name": "org/m1"}}
    made = client.create_deployment(name="none", replicas=0, **body)
    assert "0 was taken as 1" in made["message"]
    assert "0 was taken as 1" in client.get_operation(id=made["id"])["message"]
    assert client.get_deployment(id=made["reference"]["id"])["replicas"] == 1
    assert "message" not in client.create_deployment(name="one", replicas=1, **body)


def test_none_at_all_are_created_by_an_argument_of_ours(controller: Controller) -> None:
    controller.create_model()
    path, body = "/v2/ai/deployment?stopped=stopped", {"gpu-type": "cpu", "gpu-count": 1}
    body |= {"model": {"name": "org/m1"}, "name": "none"}
    refused = controller.call("POST", path, json={**body, "replicas": 2})
    assert refused.status_code == 400
    assert "must be 0 with ?stopped, found 2" in refused.text
    made = controller.call("POST", path, json={**body, "replicas": 0}).json()
    assert "message" not in made
    assert controller.client().get_deployment(id=made["reference"]["id"])["replicas"] == 0
