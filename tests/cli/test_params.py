"""`exo ai params`: the flags of vLLM, without a control plane."""

from __future__ import annotations

import json

import pytest

from .conftest import Exo
from .fake_api import FakeApi


def test_check_tells_every_problem_and_ends_with_1(exo: Exo) -> None:
    result = exo("ai", "params", "check", "--", "--max-tokens", "8192", "--dtype=fp64")
    assert result.code == 1
    first, second = result.out.splitlines()
    assert first.endswith("did you mean --max-model-len?")
    assert second.startswith("--dtype is 'fp64', expected one of: auto, half,")


def test_check_of_right_flags_ends_with_0(exo: Exo) -> None:
    result = exo("ai", "params", "check", "--", "--max-model-len", "32k", "-O3", "-tp", "2")
    assert (result.code, result.out, result.err) == (0, "All flags are right.\n", "")


def test_check_judges_by_the_release(exo: Exo) -> None:
    flags = ("--", "--kv-cache-dtype", "nvfp4")
    assert exo("ai", "params", "check", "--version", "0.20.0", *flags).code == 0
    assert exo("ai", "params", "check", "--version", "0.19.1", *flags).code == 1


def test_check_as_json(exo: Exo) -> None:
    (problem,) = json.loads(exo("ai", "params", "check", "-O", "json", "--", "--port", "80").out)
    assert list(problem) == ["index", "flag", "reason", "detail"]
    assert (problem["index"], problem["flag"], problem["reason"]) == (0, "--port", "owned")


def test_migrate_prints_changes_and_flags_for_a_shell(exo: Exo) -> None:
    flags = ("--", "--task", "embed", "--swap-space=4", "--chat-template", "a b")
    result = exo("ai", "params", "migrate", "--from", "0.12.0", "--to", "0.28.0", *flags)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].startswith("renamed  --task becomes --runner pooling --convert embed")
    assert lines[1].startswith("removed  --swap-space")
    assert lines[-2:] == [
        "Flags for vLLM 0.28.0:",
        "  --runner pooling --convert embed --chat-template 'a b'",
    ]


def test_migrate_ends_with_1_when_a_flag_is_not_taken(exo: Exo) -> None:
    argv = ("--from", "0.20.0", "--to", "0.19.0", "-O", "json", "--", "--kv-cache-dtype=nvfp4")
    result = exo("ai", "params", "migrate", *argv)
    assert result.code == 1
    answer = json.loads(result.out)
    assert list(answer) == ["flags", "changes"]
    assert answer["flags"] == ["--kv-cache-dtype=nvfp4"]
    assert [list(change) for change in answer["changes"][:1]] == [["kind", "flag", "detail"]]


@pytest.mark.parametrize(
    ("argv", "flag"),
    [
        (("check", "-O", "json", "--", "--max-tokens=8192", "--dtype=fp64"), "--dtype is"),
        (
            (
                "migrate",
                "--from=0.20.0",
                "--to=0.19.0",
                "-O",
                "json",
                "--",
                "--kv-cache-dtype=nvfp4",
            ),
            "--kv-cache-dtype",
        ),
    ],
    ids=["check", "migrate"],
)
def test_flags_that_are_refused_are_an_error_for_programs(
    exo: Exo, argv: tuple[str, ...], flag: str
) -> None:
    result = exo("ai", "params", *argv)
    assert json.loads(result.out), "the answer itself is on stdout all the same"
    (line,) = result.err.splitlines()
    error = json.loads(line)["error"]
    assert (result.code, error["type"], error["exit_code"]) == (1, "ExoError", 1)
    assert flag in error["message"]
    for_people = exo("ai", "params", *(word for word in argv if word not in ("-O", "json")))
    assert (for_people.code, for_people.err) == (1, "")


def test_flags_that_are_taken_are_no_error_for_programs(exo: Exo) -> None:
    result = exo("ai", "params", "check", "-O", "json", "--", "-tp", "2")
    assert (result.code, result.out, result.err) == (0, "[]\n", "")


def test_list_shows_one_release_and_finds_by_meaning(exo: Exo) -> None:
    out = exo("ai", "params", "list", "--search", "context-length").out
    assert "--max-model-len MAX_MODEL_LEN\n" in out
    assert "--swap-space" in exo("ai", "params", "list", "--version", "0.16.0").out
    assert "--swap-space" not in exo("ai", "params", "list", "--version", "0.28.0").out


def test_list_as_json_has_the_form_of_the_api(exo: Exo) -> None:
    argv = ("--search", "kv-cache-dtype", "-O", "json", "--version", "0.12.0")
    first = json.loads(exo("ai", "params", "list", *argv).out)[0]
    assert (first["name"], first["type"], first["default"]) == ("kv-cache-dtype", "enum", "auto")
    assert "fp8" in first["allowed-values"]


@pytest.mark.parametrize("argv", [("list",), ("check",)])
def test_release_that_is_not_known_is_a_usage_error(exo: Exo, argv: tuple[str, ...]) -> None:
    result = exo("ai", "params", *argv, "--version", "0.5.0")
    assert (result.code, result.out) == (2, "")
    assert "0.12.0 to 0.33.0" in result.err


def test_parameter_help_can_be_searched(exo: Exo, api: FakeApi) -> None:
    argv = ("ai", "deployment", "create", "--inference-engine-parameter-help", "--search")
    assert exo(*argv, "context").out.splitlines()[:2] == [
        "ModelConfig:",
        "  --max-model-len MAX_MODEL_LEN",
    ]
    assert "gpu-memory" not in exo(*argv, "dtype").out
    nothing = exo(*argv, "xyzzy")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err == "No flag is about 'xyzzy'.\n"


@pytest.mark.parametrize("verb", ["create", "update"])
def test_search_alone_is_a_usage_error(exo: Exo, verb: str) -> None:
    result = exo("ai", "deployment", verb, "chat", "--search", "context")
    assert result.code == 2
    assert "--inference-engine-parameter-help" in result.err
