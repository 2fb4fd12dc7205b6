"""`deployment …`: requests, output and exit codes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import Exo
from .fake_api import FakeApi

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
    assert "argument" in result.err or "is not a whole number\n" in result.err
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
    for name in ("APIKey", "Value"):  # as of `api-key reveal`
        assert exo(*reveal, "--output-template", f"Bearer {{{{.{name}}}}}").out == f"Bearer {key}"


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
