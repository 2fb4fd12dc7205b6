"""`--inference-engine-parameter-help`, printed as the `exo` CLI prints it."""

from __future__ import annotations

import pytest

from .conftest import Exo
from .fake_api import FakeApi

HELP = """\
CacheConfig:
  --enable-prefix-caching, --no-enable-prefix-caching
                        Whether to enable prefix caching (default: True)
  --gpu-memory-utilization GPU_MEMORY_UTILIZATION
                        The fraction of GPU memory to be used for the model
                        executor. (default: 0.9)

ModelConfig:
  --max-model-len MAX_MODEL_LEN
                        Model context length (prompt and output). If unspecified,
                        will be automatically derived from the model config. This
                        text is long so that it wraps.
  --dtype
                        Data type for model weights and activations. (default:
                        auto)
"""


def test_help_of_create_needs_no_name(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "create", "--inference-engine-parameter-help")
    assert (result.code, result.out) == (0, HELP)
    assert api.lines == ["GET /v2/zone", "GET /v2/ai/help/inference-engine-parameters"]


@pytest.mark.parametrize("argv", [("create",), ("update", "whatever"), ("update",)])
def test_help_of_a_version(exo: Exo, api: FakeApi, argv: tuple[str, ...]) -> None:
    flags = ("--inference-engine-parameter-help", "--inference-engine-version", "0.25.0")
    assert exo("ai", "deployment", *argv, *flags).out == HELP
    assert api.lines[-1] == "GET /v2/ai/help/inference-engine-parameters?version=0.25.0"


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_columns_are_respected(
    exo: Exo, api: FakeApi, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    out = exo("ai", "deployment", "create", "--inference-engine-parameter-help").out
    described = [line for line in out.splitlines() if line.startswith(" " * 24)]
    assert max(map(len, described)) <= columns
    assert " ".join(" ".join(described).split()) == " ".join(
        " ".join(line for line in HELP.splitlines() if line.startswith(" " * 24)).split()
    )


def test_help_asks_for_the_engine_of_the_gpu_family(exo: Exo, api: FakeApi) -> None:
    flags = ("--inference-engine-parameter-help", "--gpu-type", "gpua5000")
    assert exo("ai", "deployment", "create", *flags).out == HELP
    assert api.lines[-1] == "GET /v2/ai/help/inference-engine-parameters?gpu-type=gpua5000"


@pytest.mark.parametrize(("engine", "has_task"), [("vllm", True), ("exo", False)])
def test_help_of_a_named_engine_needs_no_control_plane(
    exo: Exo, api: FakeApi, engine: str, has_task: bool
) -> None:
    flags = ("--inference-engine", engine, "--inference-engine-version", "0.12.0")
    for verb in ("create", "update"):
        out = exo("ai", "deployment", verb, "--inference-engine-parameter-help", *flags).out
        assert ("--swap-space" in out, "--max-model-len" in out) == (has_task, True)
    assert api.lines == []


@pytest.mark.parametrize(("gpu_type", "has_task"), [("gpua5000", True), ("cpu", False)])
def test_help_without_an_account_is_that_of_the_engine_that_is_planned_for(
    exo: Exo, gpu_type: str, has_task: bool
) -> None:
    flags = ("--gpu-type", gpu_type, "--inference-engine-version", "0.12.0")
    result = exo("ai", "deployment", "create", "--inference-engine-parameter-help", *flags)
    assert result.code == 0
    assert ("--swap-space" in result.out) == has_task
    assert "see --inference-engine" in result.err


def test_an_update_cannot_change_the_engine(exo: Exo, api: FakeApi) -> None:
    result = exo("ai", "deployment", "update", "chat", "--inference-engine", "vllm")
    assert (result.code, api.lines) == (2, [])
    assert "the engine cannot be changed" in result.err
