"""`deployment …`: requests, output and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Exo
from .fake_api import TIME, FakeApi

CREATE = ("ai", "deployment", "create", "d1", "--gpu-type", "gpua5000", "--gpu-count", "2")


def test_create_sends_what_the_exo_cli_sends(exo: Exo, api: FakeApi) -> None:
    result = exo(*CREATE, "--replicas", "1", "--model-name", "org/m1")
    assert (result.code, result.out) == (0, "Deployment created.\n")
    assert result.err == 'Creating deployment "d1"...\n'
    assert api.lines == ["GET /v2/zone", "POST /v2/ai/deployment"]
    assert api.requests[-1].body == {
        "gpu-count": 2,
        "gpu-type": "gpua5000",
        "model": {"name": "org/m1"},
        "name": "d1",
        "replicas": 1,
    }


def test_create_with_everything(exo: Exo, api: FakeApi) -> None:
    exo(
        *("ai", "deployment", "add", "d2", "--gpu-type", "gpua5000", "--gpu-count", "1"),
        *("--replicas", "2", "--model-id", "39791B86-F80D-41ED-9CAB-854099D4ED37"),
        *("--inference-engine-params", "--gpu-memory-usage=0.8  --max-tokens=4096"),
        *("--inference-engine-version", "0.25.0"),
    )
    assert api.requests[-1].body == {
        "gpu-count": 1,
        "gpu-type": "gpua5000",
        "inference-engine-parameters": ["--gpu-memory-usage=0.8", "--max-tokens=4096"],
        "inference-engine-version": "0.25.0",
        "model": {"id": "39791b86-f80d-41ed-9cab-854099d4ed37"},
        "name": "d2",
        "replicas": 2,
    }


def test_create_without_replicas_asks_for_one(exo: Exo, api: FakeApi) -> None:
    exo(*CREATE, "--model-name", "org/m1")
    assert api.requests[-1].body["replicas"] == 1


def test_create_sends_id_and_name_of_the_model_when_both_are_given(exo: Exo, api: FakeApi) -> None:
    model_id = "39791b86-f80d-41ed-9cab-854099d4ed37"
    exo(*CREATE, "--model-name", "org/m1", "--model-id", model_id)
    assert api.requests[-1].body["model"] == {"id": model_id, "name": "org/m1"}


def test_parameters_are_split_as_a_shell_does_and_add_up(exo: Exo, api: FakeApi) -> None:
    exo(
        *(*CREATE, "--model-name", "org/m1"),
        *("--inference-engine-params", """--chat-template='a b' --x='{"k": [1, 2]}'"""),
        *("--inference-engine-params", "--seed=7"),
    )
    assert api.requests[-1].body["inference-engine-parameters"] == [
        "--chat-template=a b",
        '--x={"k": [1, 2]}',
        "--seed=7",
    ]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        pytest.param((), "<name> is required", id="nothing"),
        pytest.param(("x",), "--gpu-type and --gpu-count are required", id="no GPU"),
        pytest.param(
            ("x", "--gpu-type", "a", "--gpu-count", "1"),
            "--model-name or --model-id is required",
            id="no model",
        ),
        pytest.param(
            ("x", "--gpu-type", "a", "--gpu-count", "1", "--model-id", "zz"),
            "--model-id is 'zz', which is not a UUID",
            id="no UUID",
        ),
        pytest.param(
            ("x", "--gpu-type", "a", "--gpu-count", "nope"),
            "invalid value for '--gpu-count': 'nope'",
            id="no number",
        ),
        pytest.param(
            (*CREATE[3:], "--model-name", "m", "--inference-engine-params", "--a='b"),
            "no closing quotation",
            id="open quote",
        ),
        pytest.param(("x", "--timeout", "0"), "not a positive duration", id="no time"),
        pytest.param(("x", "--wait=yes"), "--wait", id="flag with a value"),
    ],
)
def test_create_refuses_before_anything_is_sent(
    exo: Exo, api: FakeApi, argv: tuple[str, ...], found: str
) -> None:
    result = exo("ai", "deployment", "create", *argv)
    assert (result.code, result.out) == (2, "")
    assert found in result.err
    assert api.requests == []


def test_create_leaves_ranges_to_the_server_and_names_the_flags(exo: Exo, api: FakeApi) -> None:
    api.answers["POST /v2/ai/deployment"] = (
        400,
        {
            "title": "Validation failed",
            "detail": "request body is invalid",
            "errors": [
                {
                    "detail": 'does not have a value in the enumeration ["0.25.0","0.26.0"]',
                    "location": "$['inference-engine-version']",
                },
                {"detail": "must be >= 1", "location": "$['replicas']"},
                {"detail": "no such flag", "location": "$['inference-engine-parameters']"},
                "plain one",
            ],
        },
    )
    result = exo(*CREATE, "--replicas", "200", "--model-name", "org/m1")
    assert api.requests[-1].body["replicas"] == 200
    assert (result.code, result.out) == (1, "")
    assert "Bad Request: Validation failed: request body is invalid\n" in result.err
    assert "  - --inference-engine-version: invalid value; valid values are: 0.25.0, 0.26.0\n" in (
        result.err
    )
    assert "  - --replicas: must be >= 1\n" in result.err
    assert "  - --inference-engine-params: no such flag\n" in result.err
    assert "  - plain one\n" in result.err


def test_create_dry_run(exo: Exo, api: FakeApi) -> None:
    result = exo(*CREATE, "--model-name", "org/m1", "--dry-run", "--wait")
    assert (result.code, result.out) == (0, "Deployment would be created (dry run).\n")
    assert api.lines[-1] == "POST /v2/ai/deployment?dry-run=dry-run"


def test_list_as_table_json_and_text(exo: Exo, api: FakeApi) -> None:
    deployment = api.add_deployment("d1", state="deploying")
    deployment_id = deployment["id"]
    table = exo("ai", "deployment", "list").out.splitlines()
    assert table[1] == (
        "│ ID                                   │ NAME │ ZONE     │ STATUS    │ GPU TYPE │ GPU COUNT "
        "│ REPLICAS │ MODEL NAME │"
    )
    assert table[3] == (
        f"│ {deployment_id} │ d1   │ at-vie-2 │ deploying │ gpua5000 │ 2         │ 1        │ org/m1     │"
    )
    assert exo("ai", "deployment", "ls", "-O", "json").out == (
        f'[{{"id":"{deployment_id}","name":"d1","zone":"at-vie-2","state":"deploying",'
        '"gpu_type":"gpua5000","gpu_count":2,"replicas":1,"model_name":"org/m1"}]\n'
    )
    assert exo("ai", "deployment", "ls", "-O", "text").out == (
        f"{deployment_id}\td1\tat-vie-2\tdeploying\tgpua5000\t2\t1\torg/m1\n"
    )


def shown(api: FakeApi, **more: Any) -> dict[str, Any]:
    return api.add_deployment(
        "d2",
        id="f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec",
        deployment_url="https://f6b7.example.test/v1",
        state_details="",
        inference_engine_parameters=["--gpu-memory-usage=0.8", "--max-tokens=4096"],
        inference_engine_version="0.25.0",
        **more,
    )


def test_show_as_table(exo: Exo, api: FakeApi) -> None:
    shown(api)
    result = exo("ai", "deployment", "show", "d2")
    rows = [
        ("ID", "f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec"),
        ("Name", "d2"),
        ("Status", "ready"),
        ("Status Details", ""),
        ("GPU Type", "gpua5000"),
        ("GPU Count", "2"),
        ("Replicas", "1"),
        ("Inference Engine Parameters", "--gpu-memory-usage=0.8 --max-tokens=4096"),
        ("Inference Engine Version", "0.25.0"),
        ("Service Level", "pro"),
        ("Deployment URL", "https://f6b7.example.test/v1"),
        ("Model ID", "39791b86-f80d-41ed-9cab-854099d4ed37"),
        ("Model Name", "org/m1"),
        ("Created At", TIME),
        ("Updated At", TIME),
    ]
    assert result.out == "".join(f"| {label:27} | {value:40} |\n" for label, value in rows)
    path = "/v2/ai/deployment"
    assert api.lines == [
        "GET /v2/zone",
        f"GET {path}",
        f"GET {path}/f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec",
    ]


def test_show_as_json_text_and_template(exo: Exo, api: FakeApi) -> None:
    shown(api)
    assert exo("ai", "deployment", "get", "d2", "-O", "json").out == (
        '{"id":"f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec","name":"d2","state":"ready",'
        '"state_details":"","gpu_type":"gpua5000","gpu_count":2,"replicas":1,'
        '"inference_engine_parameters":"--gpu-memory-usage=0.8 --max-tokens=4096",'
        '"inference_engine_version":"0.25.0","service_level":"pro",'
        '"deployment_url":"https://f6b7.example.test/v1",'
        '"model_id":"39791b86-f80d-41ed-9cab-854099d4ed37","model_name":"org/m1",'
        f'"created_at":"{TIME}","updated_at":"{TIME}"}}\n'
    )
    assert exo("ai", "deployment", "get", "d2", "-O", "text").out == (
        "f6b7d6f4-d4e7-424b-9bf0-2dd7b0e6e5ec\td2\tready\t\tgpua5000\t2\t1\t"
        "--gpu-memory-usage=0.8 --max-tokens=4096\t0.25.0\tpro\thttps://f6b7.example.test/v1\t"
        f"39791b86-f80d-41ed-9cab-854099d4ed37\torg/m1\t{TIME}\t{TIME}"
    )
    template = "{{.DeploymentURL}} {{.State}}"
    assert exo("ai", "deployment", "get", "d2", "--output-template", template).out == (
        "https://f6b7.example.test/v1 ready"
    )


def test_show_adds_replicas_to_the_table_and_after_the_known_keys(exo: Exo, api: FakeApi) -> None:
    replicas = [
        {"name": "d2-0", "state": "ready", "details": "", "pid": 4711, "restarts": 0},
        {"name": "d2-1", "state": "starting", "details": "loading weights 43 %", "restarts": 2},
    ]
    shown(api, ready_replicas=1, replica_status=replicas, inference_engine="exo 0.1.0")
    table = exo("ai", "deployment", "show", "d2").out
    assert f"| {'Ready Replicas':27} | {'1':42} |\n" in table
    assert f"| {'Replica d2-0':27} | {'ready, pid 4711':42} |\n" in table
    assert f"| {'Replica d2-1':27} | starting, loading weights 43 %, restarts 2 |\n" in table
    keys = list(json.loads(exo("ai", "deployment", "show", "d2", "-O", "json").out))
    assert keys[14:] == ["updated_at", "inference_engine", "ready_replicas", "replica_status"]


SERVED = {
    "model": "org/m0",
    "gpu-type": "gpua5000",
    "gpu-count": 2,
    "inference-engine": "vllm 0.25.0",
    "inference-engine-parameters": ["--seed=1", "--served-model-name=a b"],
}


def in_effect(exo: Exo, api: FakeApi, served: dict[str, Any], **more: Any) -> dict[str, str]:
    """Return the rows that say what serves and what to do, by their labels."""
    shown(api, last_in_effect=SERVED | served, inference_engine="vllm 0.25.0", **more)
    table = exo("ai", "deployment", "show", "d2").out
    cells = [line.strip("|\n ").split(" | ", 1) for line in table.splitlines()]
    wanted = ("Serves Now", "Served Last", "Next Step")
    return {c[0].strip(): c[1].strip() for c in cells if c[0].strip() in wanted}


def test_show_says_what_serves_after_a_replacement_that_failed_and_what_to_do(
    exo: Exo, api: FakeApi
) -> None:
    told = in_effect(exo, api, {}, state="error", ready_replicas=1)
    assert told == {
        "Serves Now": "org/m0 on 2 x gpua5000, vllm 0.25.0, --seed=1 '--served-model-name=a b'",
        "Next Step": "mend the cause and try again: `exo dedicated-inference deployment update d2`; or take "
        "it back: `exo dedicated-inference apply --replace` with the manifest from before",
    }
    shown = json.loads(exo("ai", "deployment", "show", "d2", "-O", "json").out)["last_in_effect"]
    assert shown == {key.replace("-", "_"): value for key, value in SERVED.items()}


@pytest.mark.parametrize(
    ("served", "more", "label", "words"),
    [
        pytest.param(
            {"model": "org/m1"},
            {"state": "error"},
            "Served Last",
            "update d2 --inference-engine-params '--seed=1 '\"'\"'--served-model-name=a b'\"'\"''`",
            id="other flags",
        ),
        pytest.param(
            {
                "model": "org/m1",
                "inference-engine-parameters": [],
                "inference-engine": "vllm 0.24.0",
            },
            {"state": "error"},
            "Served Last",
            "update d2 --clear-inference-engine-params --inference-engine-version 0.24.0`",
            id="another version without flags",
        ),
        pytest.param(
            {},
            {"state": "updating", "ready_replicas": 1},
            "Serves Now",
            "wait, or follow it: `exo dedicated-inference events d2 --follow`",
            id="on its way",
        ),
        pytest.param(
            {},
            {"replicas": 0},
            "Served Last",
            "try what is asked for now: `exo dedicated-inference deployment scale d2 1`",
            id="scaled to 0",
        ),
    ],
)
def test_the_next_step_fits_what_became_of_the_change(
    exo: Exo, api: FakeApi, served: dict[str, Any], more: dict[str, Any], label: str, words: str
) -> None:
    told = in_effect(exo, api, served, **more)
    assert set(told) == {label, "Next Step"}
    assert told["Next Step"].endswith(words)


def test_scale_sends_the_number_and_says_so(exo: Exo, api: FakeApi) -> None:
    deployment = api.add_deployment("d1")
    result = exo("ai", "deployment", "scale", "d1", "3")
    assert (result.code, result.out) == (0, 'Deployment "d1" scaled to 3.\n')
    assert result.err == "Scaling deployment d1 to 3...\n"
    assert api.lines[1:] == [
        "GET /v2/ai/deployment",
        f"POST /v2/ai/deployment/{deployment['id']}/scale",
    ]
    assert api.requests[-1].body == {"replicas": 3}


def test_scale_refuses_a_negative_number_after_two_dashes_too(exo: Exo, api: FakeApi) -> None:
    assert exo("ai", "deployment", "scale", "d1", "--", "-1").code == 2
    assert api.requests == []


def test_scale_dry_run(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1")
    result = exo("ai", "deployment", "scale", "d1", "2", "--dry-run")
    assert result.out == 'Deployment "d1" would be scaled to 2 (dry run).\n'
    assert api.requests[-1].query == {"dry-run": ["dry-run"]}


def test_scale_of_what_does_not_exist(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "scale", "nope", "2")
    assert (result.code, result.out) == (1, "")
    assert result.err.startswith("error: there is no deployment 'nope'\n")


@pytest.mark.parametrize("argv", [("d1",), ("d1", "x"), ("d1", "1.5"), ()])
def test_scale_without_a_whole_number_is_a_usage_error(
    exo: Exo, api: FakeApi, argv: tuple[str, ...]
) -> None:
    result = exo("ai", "deployment", "scale", *argv)
    assert result.code == 2
    assert "argument" in result.err or "not a valid integer" in result.err
    assert api.requests == []


@pytest.mark.parametrize(
    ("flags", "body"),
    [
        pytest.param(("--name", "d1b"), {"name": "d1b"}, id="name"),
        pytest.param((), {}, id="nothing"),
        pytest.param(
            ("--inference-engine-params", "", "--inference-engine-version", "0.24.0"),
            {"inference-engine-version": "0.24.0"},
            id="empty parameters are not sent",
        ),
        pytest.param(
            ("--inference-engine-params", "--a=1 --b"),
            {"inference-engine-parameters": ["--a=1", "--b"]},
            id="parameters",
        ),
        pytest.param(
            ("--clear-inference-engine-params",), {"inference-engine-parameters": []}, id="clear"
        ),
    ],
)
def test_update_sends_only_what_was_given(
    exo: Exo, api: FakeApi, flags: tuple[str, ...], body: dict[str, Any]
) -> None:
    deployment = api.add_deployment("d1")
    result = exo("ai", "deployment", "update", "d1", *flags)
    assert (result.code, result.out) == (0, "Deployment updated.\n")
    assert result.err == 'Updating deployment "d1"...\n'
    assert api.lines[-1] == f"PATCH /v2/ai/deployment/{deployment['id']}"
    assert api.requests[-1].body == body


def test_update_refuses_to_clear_and_to_set(exo: Exo, api: FakeApi) -> None:
    flags = ("--clear-inference-engine-params", "--inference-engine-params", "--a")
    result = exo("ai", "deployment", "update", "d1", *flags)
    assert result.code == 2
    assert "were both given" in result.err


@pytest.mark.parametrize("value", ["", " "])
def test_update_refuses_empty_parameters_alone(exo: Exo, api: FakeApi, value: str) -> None:
    result = exo("ai", "deployment", "update", "d1", f"--inference-engine-params={value}")
    assert (result.code, result.out) == (2, "")
    assert "--inference-engine-params is empty" in result.err
    assert "--clear-inference-engine-params" in result.err
    assert not api.requests


@pytest.mark.parametrize("flag", ["--name", "--inference-engine-version"])
@pytest.mark.parametrize("others", [(), ("--inference-engine-params=--a=1",)])
def test_update_refuses_a_flag_without_its_value(
    exo: Exo, api: FakeApi, flag: str, others: tuple[str, ...]
) -> None:
    result = exo("ai", "deployment", "update", "d1", f"{flag}=", *others)
    assert (result.code, result.out) == (2, "")
    assert f"{flag} is empty" in result.err
    assert not api.requests


def test_update_needs_a_name(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "update", "--name", "x")
    assert result.code == 2
    assert "<name-or-id> is required" in result.err


def test_update_dry_run(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1")
    result = exo("ai", "deployment", "update", "d1", "--name", "x", "--dry-run")
    assert result.out == "Deployment would be updated (dry run).\n"
    assert api.requests[-1].query == {"dry-run": ["dry-run"]}


def test_delete_asks_in_the_words_of_the_exo_cli(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1")
    result = exo("ai", "deployment", "delete", "d1", stdin="Y\n")
    question = '[+] Are you sure you want to delete deployment "d1"? [yN]: '
    assert (result.code, result.out) == (0, question + "Deployment(s) deleted.\n")
    assert result.err == "Deleting deployment(s)...\n"


@pytest.mark.parametrize("verb", ["delete", "del", "rm"])
def test_forced_delete_of_two(exo: Exo, api: FakeApi, verb: str) -> None:
    first, second = api.add_deployment("d2"), api.add_deployment("d3")
    result = exo("ai", "deployment", verb, "d2", "d3", "-f")
    assert (result.code, result.out) == (0, "Deployment(s) deleted.\n")
    assert sorted(api.lines[2:]) == sorted(
        f"DELETE /v2/ai/deployment/{one['id']}" for one in (first, second)
    )


def test_delete_dry_run_does_not_ask(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1")
    result = exo("ai", "deployment", "delete", "d1", "--dry-run", "--wait")
    assert result.out == "Deployment(s) would be deleted (dry run).\n"
    assert api.requests[-1].query == {"dry-run": ["dry-run"]}


def test_reveal_api_key_in_each_form(exo: Exo, api: FakeApi) -> None:
    key = f"sk-rig-{api.add_deployment('d1')['id'][:8]}"
    reveal = ("ai", "deployment", "reveal-api-key", "d1")
    assert exo(*reveal).out == f"| API Key | {key} |\n"
    assert exo(*reveal, "-Q").out == f"| API Key | {key} |\n"
    assert exo(*reveal, "-O", "json").out == f'{{"api_key":"{key}"}}\n'
    assert exo(*reveal, "-O", "text").out == key
    assert exo(*reveal, "--output-template", "Bearer {{.APIKey}}").out == f"Bearer {key}"


def test_instance_types_of_all_zones(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "instance-type")
    assert result.out == (
        "┼───────────────┼────────────┼──────────┼\n"
        "│ FAMILY        │ AUTHORIZED │ ZONE     │\n"
        "┼───────────────┼────────────┼──────────┼\n"
        "│ gpua5000      │ true       │ at-vie-2 │\n"
        "│ gpurtx6000pro │ false      │ at-vie-2 │\n"
        "│ gpua5000      │ true       │ ch-gva-2 │\n"
        "│ gpurtx6000pro │ false      │ ch-gva-2 │\n"
        "┼───────────────┼────────────┼──────────┼\n"
    )
    one = exo("ai", "deployment", "instance-type", "-z", "at-vie-2", "-O", "json")
    assert json.loads(one.out)[1] == {
        "family": "gpurtx6000pro",
        "authorized": False,
        "zone": "at-vie-2",
    }


def test_instance_types_say_how_many_gpus_are_free_where_the_server_does(
    exo: Exo, api: FakeApi
) -> None:
    more = {"total-gpus": 4, "free-gpus": 0, "max-gpu-count": 2, "engines": ["exo", "vllm"]}
    families = [{"family": "gpu3", "authorized": True, **more}]
    families += [{"family": "old", "authorized": True}]
    api.answers["GET /v2/ai/instance-type"] = (200, {"instance-types": families})
    command = ("ai", "deployment", "instance-type", "-z", "at-vie-2")
    assert exo(*command).out == (
        "┼────────┼────────────┼──────────┼──────┼──────┼─────────────────┼\n"
        "│ FAMILY │ AUTHORIZED │ ZONE     │ GPUS │ FREE │ MAX PER REPLICA │\n"
        "┼────────┼────────────┼──────────┼──────┼──────┼─────────────────┼\n"
        "│ gpu3   │ true       │ at-vie-2 │ 4    │ 0    │ 2               │\n"
        "│ old    │ true       │ at-vie-2 │      │      │                 │\n"
        "┼────────┼────────────┼──────────┼──────┼──────┼─────────────────┼\n"
    )
    assert json.loads(exo(*command, "-O", "json").out) == [
        {
            "family": "gpu3",
            "authorized": True,
            "zone": "at-vie-2",
            "total_gpus": 4,
            "free_gpus": 0,
            "max_gpu_count": 2,
            "engines": ["exo", "vllm"],
        },
        {"family": "old", "authorized": True, "zone": "at-vie-2"},
    ]


def test_a_refused_key_ends_with_4(exo: Exo, api: FakeApi) -> None:
    api.answers["GET /v2/ai/deployment"] = (403, {"message": "Invalid request signature"})
    result = exo("ai", "deployment", "show", "d1")
    assert result.code == 4
    assert "Forbidden: Invalid request signature" in result.err


def test_an_answer_that_is_no_json_is_an_error_not_a_traceback(exo: Exo, api: FakeApi) -> None:
    api.answers["GET /v2/ai/deployment"] = (200, b"<html>")
    result = exo("ai", "deployment", "show", "d1")
    assert result.code == 1
    assert result.err.startswith("error: ")
    assert "Traceback" not in result.err


def refusal(location: str, sentence: str, detail: str = "") -> tuple[int, Any]:
    """What our own server answers when one thing is wrong."""
    problem = {"location": location, "detail": detail or sentence}
    return 400, {"title": "Not changed", "detail": sentence, "errors": [problem]}


@pytest.mark.parametrize(
    ("argv", "answer", "expected"),
    [
        (
            ("update", "d1", "--name", "chat"),
            refusal("$['name']", "the name 'chat' is taken"),
            "updating deployment \"d1\": Bad Request: Not changed: --name: the name 'chat' is taken",
        ),
        (
            ("update", "d1", "--inference-engine-params", "--x"),
            refusal("$['inference-engine-parameters'][0]", "there is no --x"),
            'updating deployment "d1": Bad Request: Not changed: '
            "--inference-engine-params: there is no --x",
        ),
        (
            ("scale", "d1", "101"),
            refusal("$['replicas']", "replicas must be at most 100", "must be at most 100"),
            'scaling deployment "d1" to 101: Bad Request: Not changed: '
            "<replicas> must be at most 100",
        ),
    ],
)
def test_one_problem_is_told_once_with_the_name_and_the_flag(
    exo: Exo, api: FakeApi, argv: tuple[str, ...], answer: tuple[int, Any], expected: str
) -> None:
    deployment = api.add_deployment("d1")
    path = f"/v2/ai/deployment/{deployment['id']}"
    api.answers |= {f"PATCH {path}": answer, f"POST {path}/scale": answer}
    result = exo("ai", "deployment", *argv)
    assert result.code == 1
    assert result.err.splitlines()[1:] == [f"error: {expected}"]


def test_a_wrong_version_of_the_list_of_flags_names_the_flag(exo: Exo, api: FakeApi) -> None:
    api.answers["GET /v2/ai/help/inference-engine-parameters"] = refusal(
        "$['version']", "version is '7', expected one of: 0.28.0", 'enumeration ["0.28.0"]'
    )
    flags = ("--inference-engine-parameter-help", "--inference-engine-version", "7")
    result = exo("ai", "deployment", "create", *flags)
    assert result.code == 1
    assert "--inference-engine-version" in result.err
    assert "--version" not in result.err
    assert result.err.count("0.28.0") == 1


def test_templates_of_show_may_use_every_field_of_the_table(exo: Exo, api: FakeApi) -> None:
    api.add_deployment("d1", ready_replicas=1, state_details="up")
    template = "{{.StateDetails}} {{.ReadyReplicas}} {{.InferenceEngine}}|{{.ReplicaStatus}}"
    result = exo("ai", "deployment", "show", "d1", "--output-template", template)
    assert (result.code, result.out) == (0, "up 1 |")
    replicas = [{"name": "d2-0", "state": "ready", "details": "", "restarts": 0}]
    api.add_deployment("d2", replica_status=replicas)
    result = exo("ai", "deployment", "show", "d2", "--output-template", "{{.ReplicaStatus}}")
    assert json.loads(result.out)[0]["name"] == "d2-0"
