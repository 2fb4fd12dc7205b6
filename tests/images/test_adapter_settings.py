"""What a container may get, and what it is told when that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from exo_adapter.engines import ENGINES, engine_of
from exo_adapter.settings import SettingsError, read_settings


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    return {
        "EXO_ENGINE": "vllm",
        "EXO_SERVED_MODEL_NAME": "chat",
        "EXO_MODEL_PATH": str(model),
        "EXO_PARAMETERS_FILE": str(tmp_path / "parameters.json"),
    }


def test_defaults_are_those_of_the_documentation(environment: dict[str, str]) -> None:
    settings = read_settings(environment)
    assert (settings.http_port, settings.probe_port) == (8000, 8001)
    assert (settings.drain_seconds, settings.stall_seconds) == (120, 0)
    assert settings.parameters == ()
    assert settings.device == "cuda"
    assert str(settings.termination_log) == "/dev/termination-log"


def test_parameters_are_passed_as_they_are(environment: dict[str, str]) -> None:
    words = ["--compilation-config", '{"level": 3}', "--seed=1", "", "naïve"]
    Path(environment["EXO_PARAMETERS_FILE"]).write_text(json.dumps(words))
    assert read_settings(environment).parameters == tuple(words)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("[1]", "array of strings", id="number"),
        pytest.param('{"a": 1}', "array of strings", id="object"),
        pytest.param('"--seed"', "array of strings", id="string"),
        pytest.param("--seed=1", "not JSON", id="not JSON"),
        pytest.param("", "not JSON", id="empty"),
        pytest.param('["a\\u0000b"]', "zero byte", id="zero byte"),
    ],
)
def test_a_bad_parameter_file_is_refused(
    environment: dict[str, str], text: str, message: str
) -> None:
    Path(environment["EXO_PARAMETERS_FILE"]).write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_settings(environment)


def test_parameters_that_are_no_text_are_refused(environment: dict[str, str]) -> None:
    Path(environment["EXO_PARAMETERS_FILE"]).write_bytes(b'["\xff"]')
    with pytest.raises(SettingsError, match="cannot read the parameters"):
        read_settings(environment)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("EXO_TENSOR_PARALLEL_SIZE", "0", "from 1 to 1024"),
        ("EXO_TENSOR_PARALLEL_SIZE", "two", "whole number"),
        ("EXO_TENSOR_PARALLEL_SIZE", "-1", "whole number"),
        ("EXO_TENSOR_PARALLEL_SIZE", "²", "whole number"),
        ("EXO_DRAIN_SECONDS", "1.5", "whole number"),
        ("EXO_HTTP_PORT", "70000", "from 1 to 65535"),
        ("EXO_NODE_RANK", "1", "ranks count from 0"),
        ("EXO_NODE_COUNT", "2", "EXO_LEADER_ADDRESS is not set"),
        ("EXO_DEVICE", "tpu", "must be cpu or cuda"),
        ("EXO_SERVED_MODEL_NAME", "", "EXO_SERVED_MODEL_NAME is not set"),
        ("EXO_MODEL_PATH", "/nowhere", "cannot read the model at /nowhere"),
    ],
)
def test_a_bad_variable_is_named(
    environment: dict[str, str], name: str, value: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings({**environment, name: value})


def test_an_empty_model_directory_is_refused(environment: dict[str, str], tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(SettingsError, match="the directory is empty"):
        read_settings({**environment, "EXO_MODEL_PATH": str(empty)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"EXO_ENGINE": "triton"},
            f"must be one of {', '.join(ENGINES)}$",
        ),
        ({"EXO_DEVICE": "cpu"}, "vllm cannot run on cpu"),
        (
            {"EXO_ENGINE": "tgi", "EXO_NODE_COUNT": "2", "EXO_LEADER_ADDRESS": "a"},
            "tgi cannot span nodes",
        ),
    ],
)
def test_what_an_engine_cannot_do_is_refused(
    environment: dict[str, str], change: dict[str, str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        engine_of(read_settings({**environment, **change}))
