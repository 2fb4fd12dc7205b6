"""exo-engine as the control plane sees it: catalogue, command line, failures."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import resources
from pathlib import Path

import exoscale
import pytest

from exo_inference.engines import (
    API_VERSIONS,
    DEFAULT_VERSION,
    VERSIONS,
    ReplicaCommand,
    UnknownEngine,
    get_engine,
)
from exo_inference.engines.base import EngineNotInstalled
from exo_inference.engines.exo import PLATFORM_OWNED, ExoEngine, find_executable


def test_the_catalogue_is_the_engines_own() -> None:
    """Regenerate: exo-engine parameters --json > exo_inference/engines/catalog/exo.json."""
    printed = subprocess.run(
        [find_executable(), "parameters", "--json"], capture_output=True, check=True, timeout=60
    ).stdout
    shipped = resources.files("exo_inference.engines") / "catalog" / "exo.json"
    assert json.loads(shipped.read_text()) == json.loads(printed)


def test_no_flag_of_the_platform_is_offered() -> None:
    offered = {parameter.name for parameter in get_engine("exo").parameters()}
    assert "max-model-len" in offered
    assert offered.isdisjoint(PLATFORM_OWNED)


def test_versions_are_those_of_the_api() -> None:
    document = json.loads((Path(exoscale.__file__).parent / "openapi.json").read_text())
    schema = document["components"]["schemas"]["inference-engine-version"]
    assert list(API_VERSIONS) == schema["enum"]
    assert (*API_VERSIONS, "0.33.0") == VERSIONS
    assert schema["default"] == DEFAULT_VERSION


def test_the_command_line_ends_with_the_users_flags() -> None:
    engine = ExoEngine(Path("/bin/exo-engine"))
    replica = ReplicaCommand(
        Path("/m"), "org/m1", "engine.sock", gpu_type="cpu", gpu_count=1, parameters=("--seed=1",)
    )
    assert engine.command(replica) == (
        *("/bin/exo-engine", "serve", "/m", "--served-model-name", "org/m1"),
        *("--uds", "engine.sock", "--device", "cpu", "--seed=1"),
    )


def test_an_engine_that_is_not_installed_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(EngineNotInstalled) as refused:
        find_executable()
    assert "pip install" in (refused.value.hint or "")


def test_there_is_no_other_engine() -> None:
    with pytest.raises(UnknownEngine, match="'nonesuch'"):
        get_engine("nonesuch")


@pytest.mark.parametrize(
    ("code", "log", "retry", "words"),
    [
        (78, ["exo-engine: error: no tokenizer.json; download it"], False, "no tokenizer.json"),
        (78, ["noise"], False, "cannot work with this model"),
        (71, ["exo-engine: error: 3 GiB needed, 1 GiB free"], True, "3 GiB needed"),
        (70, ["Traceback"], True, "internal error (exit code 70)"),
        (1, ["torch.OutOfMemoryError: CUDA out of memory."], True, "out of memory: torch"),
        (-9, [], True, "killed (SIGKILL)"),
        (-11, [], True, "SIGSEGV"),
        (-99, [], True, "signal 99"),
        (0, [], True, "without being asked"),
        (127, [], False, "was not found"),
        (None, [], True, "nobody watched"),
        (5, ["exo-engine: error: first", "more", "exo-engine: error: last"], True, "last"),
    ],
)
def test_failures_are_explained(code: int | None, log: list[str], retry: bool, words: str) -> None:
    failure = get_engine("exo").diagnose(code, log)
    assert (failure.retry, words in failure.message) == (retry, True), failure
