"""The `exo` binary of Exoscale, where there is one: name it with EXOSCALE_CLI=/path/to/exo."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import pytest

from .conftest import Stack, clean_environment

BINARY = os.environ.get("EXOSCALE_CLI")

pytestmark = pytest.mark.skipif(not BINARY, reason="EXOSCALE_CLI names no exo binary of Exoscale")


class Exo:
    """Runs the binary with the configuration file that `up` wrote, and nothing else."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack

    def __call__(self, *args: str, stdin: str = "", code: int = 0) -> str:
        result = subprocess.run(
            [str(BINARY), "-C", str(self.stack.state_dir / "exoscale.toml"), "ai", *args],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=90,
            env=clean_environment(self.stack.state_dir),
        )
        assert result.returncode == code, (args, result.stdout, result.stderr)
        return result.stdout if code == 0 else result.stderr


@pytest.fixture
def exo(stack: Stack) -> Iterator[Exo]:
    exo = Exo(stack)
    yield exo
    for noun in ("deployment", "model"):
        for row in json.loads(exo(noun, "list", "-O", "json")):
            exo(noun, "delete", "-f", row["id"])
            if noun == "deployment":
                stack.exo("deployment", "list")


def test_the_flow_works_with_the_file_that_up_wrote(exo: Exo, stack: Stack) -> None:
    assert exo("model", "create", "exo/tiny-draft") == "Model created.\n"
    stack.exo("model", "create", "exo/tiny-draft", "--wait", check=False)
    created = exo(
        *("deployment", "create", "d1", "--gpu-type", "cpu", "--gpu-count", "1"),
        *("--replicas", "1", "--model-name", "exo/tiny-draft"),
    )
    assert created == "Deployment created.\n"
    shown = json.loads(exo("deployment", "show", "d1", "-O", "json"))
    assert shown["deployment_url"].startswith("http://127.0.0.1:")
    assert json.loads(exo("deployment", "reveal-api-key", "d1", "-O", "json"))["api_key"]
    exo("deployment", "scale", "d1", "2")
    assert exo("deployment", "update", "d1", "--inference-engine-params", "--max-num-seqs=3") == (
        "Deployment updated.\n"
    )
    assert "cpu" in exo("deployment", "instance-type", "-O", "text")
    assert "--max-model-len" in exo("deployment", "create", "--inference-engine-parameter-help")
    exo("deployment", "logs", "d1", "--tail", "3")
    assert "d1" in exo("model", "delete", "-f", "exo/tiny-draft", code=1)
    assert exo("deployment", "delete", "-f", "d1") == "Deployment(s) deleted.\n"


def test_errors_read_well(exo: Exo) -> None:
    exo("model", "create", "exo/tiny-draft")
    unknown = exo(
        *("deployment", "create", "d2", "--gpu-type", "gpu9000", "--gpu-count", "1"),
        *("--replicas", "1", "--model-name", "exo/tiny-draft"),
        code=1,
    )
    assert "--gpu-type: invalid value; valid values are: cpu" in unknown
    bad = exo(
        *("deployment", "create", "../x", "--gpu-type", "cpu", "--gpu-count", "1"),
        *("--replicas", "1", "--model-name", "exo/tiny-draft"),
        *("--inference-engine-params", "--max-model-length=5"),
        code=1,
    )
    assert "--name:" in bad
    assert "--max-model-len" in bad
