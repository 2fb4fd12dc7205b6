"""`-O json` and `-O yaml` on the verbs that change something: stdout is the object, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from exo_inference.cli import main as main_module
from exo_inference.cli.errors.objects import asks_for_json

from .conftest import Exo
from .fake_api import FakeApi

CREATE = ("ai", "deployment", "create", "chat", "--gpu-type", "gpua5000", "--gpu-count", "1")
CREATE = (*CREATE, "--model-name", "org/m1")
JSON = ("-O", "json")

DEPLOYMENT_KEYS = [
    "id", "name", "state", "state_details", "gpu_type", "gpu_count", "replicas",
    "inference_engine_parameters", "inference_engine_version", "service_level", "deployment_url",
    "model_id", "model_name", "created_at", "updated_at",
]  # fmt: skip
MODEL_KEYS = ["id", "name", "state", "model_size", "created_at", "updated_at"]
ANSWER_KEYS = ["kind", "id", "name", "state", "operation_id", "dry_run"]


@pytest.fixture
def chat(api: FakeApi) -> dict[str, Any]:
    return api.add_deployment("chat")


@pytest.mark.parametrize("more", [(), ("--wait",)], ids=["accepted", "waited for"])
@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(CREATE, id="create"),
        pytest.param(("ai", "deployment", "update", "old", "--name", "old"), id="update"),
        pytest.param(("ai", "deployment", "scale", "old", "1"), id="scale"),
    ],
)
def test_a_changed_deployment_is_printed_as_show_prints_it(
    exo: Exo, api: FakeApi, argv: tuple[str, ...], more: tuple[str, ...]
) -> None:
    api.add_deployment("old")
    result = exo(*argv, *more, *JSON)
    assert result.code == 0, result.err
    found = json.loads(result.out)
    assert list(found) == DEPLOYMENT_KEYS
    assert found["deployment_url"].endswith(f"/inference/{found['id']}/v1")
    assert found == json.loads(exo("ai", "deployment", "show", found["id"], *JSON).out)


@pytest.mark.parametrize("more", [(), ("--wait",)], ids=["accepted", "waited for"])
def test_a_created_model_is_printed(exo: Exo, api: FakeApi, more: tuple[str, ...]) -> None:
    result = exo("ai", "model", "create", "org/m2", *more, *JSON)
    found = json.loads(result.out)
    assert (list(found), found["name"]) == (MODEL_KEYS, "org/m2")


def test_a_template_prints_one_field_of_what_results(exo: Exo, api: FakeApi) -> None:
    made = exo(*CREATE, "--output-template", "{{.Name}} {{.DeploymentURL}}\n")
    assert made.out.startswith("chat http://")
    assert "Deployment created." in made.err


def test_what_is_waited_for_in_vain_is_printed_too(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("chat", state="error", state_details="no GPU")
    result = exo("ai", "deployment", "scale", "chat", "1", "--wait", *JSON)
    assert (result.code, json.loads(result.out)["state"]) == (8, "error")
    error = json.loads(result.err.splitlines()[-1])["error"]
    assert (error["type"], error["state"], error["exit_code"]) == ("NotReady", "error", 8)


@pytest.mark.parametrize("kind", ["model", "deployment"])
def test_what_was_deleted_is_listed(exo: Exo, api: FakeApi, kind: str) -> None:
    add = api.add_model if kind == "model" else api.add_deployment
    ids = [add(name)["id"] for name in ("one", "two")]
    add("asked about")  # the fake deletes in a dry run, too
    would = json.loads(exo("ai", kind, "delete", "asked about", "--dry-run", *JSON).out)
    assert [(each["state"], each["dry_run"]) for each in would] == [("would be deleted", True)]
    result = exo("ai", kind, "delete", "one", "two", "-f", "--wait", *JSON)
    found = json.loads(result.out)
    assert [list(each) for each in found] == [ANSWER_KEYS, ANSWER_KEYS]
    assert [(each["id"], each["state"], each["kind"]) for each in found] == [
        (ids[0], "deleted", kind),
        (ids[1], "deleted", kind),
    ]
    assert all(each["operation_id"] for each in found)


def test_a_question_does_not_disturb_the_data(exo: Exo, chat: dict[str, Any]) -> None:
    no = exo("ai", "deployment", "delete", "chat", *JSON, stdin="n\n")
    assert (no.code, no.out) == (0, "[]\n")
    assert "Are you sure" in no.err
    yes = exo("ai", "deployment", "delete", "chat", *JSON, stdin="y\n")
    assert [each["id"] for each in json.loads(yes.out)] == [chat["id"]]


def test_nothing_is_called_deleted_where_nothing_was(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "delete", "nope", "-f")
    assert (result.code, result.out) == (0, "")
    assert result.err == "warning: nope not found.\nNothing was deleted.\n"
    assert exo("ai", "deployment", "delete", "nope", "-f", *JSON).out == "[]\n"


@pytest.mark.parametrize(
    "argv",
    [
        pytest.param(("ai", "deployment", "scale", "chat", "2", "--dry-run"), id="scale"),
        pytest.param(("ai", "model", "create", "org/m2", "--dry-run"), id="model create"),
        pytest.param((*CREATE, "--dry-run"), id="create, of a server that does not plan"),
        pytest.param(
            ("ai", "deployment", "update", "chat", "--name", "x", "--dry-run"), id="update"
        ),
    ],
)
def test_a_dry_run_says_that_it_was_one(
    exo: Exo, chat: dict[str, Any], argv: tuple[str, ...]
) -> None:
    result = exo(*argv, *JSON)
    found = json.loads(result.out)
    assert (list(found), found["dry_run"]) == (ANSWER_KEYS, True)
    assert found["state"].startswith("would be ")


def test_yaml_is_what_apply_takes(exo: Exo, api: FakeApi, tmp_path: Any) -> None:
    created = exo(*CREATE, "-O", "yaml")
    manifest = yaml.safe_load(created.out)
    assert (manifest["kind"], manifest["metadata"]) == ("InferenceDeployment", {"name": "chat"})
    assert manifest["spec"]["model"] == "org/m1"
    api.deployments["/v2"].clear()
    planned = exo(*CREATE, "--inference-engine-params", "--a=1", "--dry-run", "-O", "yaml")
    assert yaml.safe_load(planned.out)["spec"] == {
        "model": "org/m1",
        "gpuType": "gpua5000",
        "gpuCount": 1,
        "replicas": 1,
        "engineParameters": ["--a=1"],
    }
    model = exo("ai", "model", "create", "org/m1", "-O", "yaml")
    files = tmp_path / "all.yaml"
    listed = exo("ai", "deployment", "list", "-z", "at-vie-2", "-O", "yaml").out
    assert listed == exo("ai", "deployment", "show", "chat", "-O", "yaml").out
    assert listed == created.out.replace("gpuCount: 1", "gpuCount: 2")
    files.write_text(f"{model.out}---\n{listed}")
    assert exo("ai", "diff", "-f", str(files)).out == ""


def test_data_that_is_no_object_of_apply_is_yaml_all_the_same(
    exo: Exo, chat: dict[str, Any]
) -> None:
    shown = exo("ai", "deployment", "reveal-api-key", "chat", "-O", "yaml")
    assert yaml.safe_load(shown.out) == {"api_key": f"sk-rig-{chat['id'][:8]}"}
    deleted = exo("ai", "deployment", "delete", "chat", "-f", "-O", "yaml")
    assert yaml.safe_load(deleted.out)[0]["state"] == "deleted"
    assert yaml.safe_load(exo("version", "-O", "yaml").out).keys() == {"version"}


@pytest.mark.parametrize(
    ("argv", "kind", "code"),
    [
        (("ai", "deployment", "show", "nope"), "NotFound", 1),
        (("ai", "deployment", "scale", "chat"), "UsageError", 2),
        (("ai", "nonsense"), "UsageError", 2),
        (("ai", "deployment", "create"), "UsageError", 2),
        (("ai", "diff", "-f", "/none.yaml"), "UsageError", 2),
    ],
)
def test_errors_are_one_line_of_json(
    exo: Exo, api: FakeApi, argv: tuple[str, ...], kind: str, code: int
) -> None:
    result = exo(*argv, *JSON)
    assert (result.code, result.out) == (code, "")
    (line,) = result.err.splitlines()
    error = json.loads(line)["error"]
    assert (error["type"], error["exit_code"]) == (kind, code) or argv[1] == "diff"
    assert list(error)[:4] == ["type", "message", "hint", "exit_code"]
    assert error["message"]


def test_a_refusal_has_its_problems_and_its_plan(exo: Exo, api: FakeApi) -> None:
    body = {
        "title": "Precondition Failed",
        "detail": "2 problems",
        "errors": [
            {"location": "body.gpu-count", "detail": "is too many"},
            {"location": "body.name", "detail": "is taken"},
        ],
        "deployments": ["other"],
    }
    api.answers["POST /v2/ai/deployment"] = (412, body)
    error = json.loads(exo(*CREATE, *JSON).err.splitlines()[-1])["error"]
    assert (error["type"], error["status_code"]) == ("PreconditionFailed", 412)
    assert {each["field"] for each in error["problems"]} == {"--gpu-count", "<name>"}


def test_several_failures_are_one_object(exo: Exo, api: FakeApi) -> None:
    for name in ("one", "two"):
        model_id = api.add_model(name)["id"]
        api.answers[f"DELETE /v2/ai/model/{model_id}"] = (412, {"detail": f"{name} is in use"})
    gone = api.add_model("three")["id"]
    result = exo("ai", "model", "delete", "one", "two", "three", "-f", *JSON)
    assert [each["id"] for each in json.loads(result.out)] == [gone]
    error = json.loads(result.err.splitlines()[-1])["error"]
    assert error["message"] == "2 models could not be deleted"
    assert [each["status_code"] for each in error["errors"]] == [412, 412]


def test_the_format_of_the_configuration_counts_for_errors(
    exo: Exo, api: FakeApi, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENDPOINT", "KEY", "SECRET"):
        monkeypatch.delenv(f"EXOSCALE_API_{name}")
    config = tmp_path / "exoscale.toml"
    config.write_text(
        f'defaultaccount = "a"\ndefaultoutputformat = "json"\n[[accounts]]\nname = "a"\n'
        f'key = "EXOx"\nsecret = "y"\nendpoint = "{api.endpoint}"\ndefaultOutputFormat = "json"\n'
    )
    result = exo("ai", "deployment", "show", "nope", "-C", str(config))
    assert json.loads(result.err)["error"]["type"] == "NotFound"


@pytest.mark.parametrize(
    ("argv", "wanted"),
    [
        (["-O", "json"], True),
        (["-Ojson"], True),
        (["-QO", "JSON"], True),
        (["--output-format=json"], True),
        (["-O", "json", "-O", "table"], False),
        (["--", "-O", "json"], False),
        (["-O"], False),
        ([], False),
    ],
)
def test_json_is_recognised_in_lines_that_cannot_be_parsed(argv: list[str], wanted: bool) -> None:
    assert asks_for_json(argv) is wanted


def test_an_interrupt_is_told_as_json(exo: Exo, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("exo_inference.cli.version.version.callback", fail)
    result = exo("version", *JSON)
    assert result.code == main_module.INTERRUPTED
    assert json.loads(result.err)["error"]["type"] == "Interrupted"


def test_the_other_verbs_print_data_too(
    exo: Exo, api: FakeApi, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = api.add_deployment("chat", ready_replicas=1)
    answer = json.loads(exo("ai", "chat", "chat", "Hello", *JSON).out)
    assert list(answer) == ["text", "finish_reason", "prompt_tokens", "completion_tokens"]
    assert (answer["text"], answer["completion_tokens"]) == ("A KV cache keeps keys and values.", 3)
    talk = exo("ai", "chat", "chat", *JSON, stdin="Hello")
    assert json.loads(talk.out) == answer
    file = tmp_path / "all.yaml"
    exported = json.loads(exo("ai", "export", "-f", str(file), *JSON).out)
    assert exported == [
        {"kind": "InferenceDeployment", "name": "chat", "id": found["id"], "file": str(file)}
    ]
    state_dir = tmp_path / "none"
    stopped = exo("ai", "down", "--state-dir", str(state_dir), *JSON)
    assert json.loads(stopped.out) == {
        "state": "stopped",
        "state_dir": str(state_dir),
        "purged": False,
    }
