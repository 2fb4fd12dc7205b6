"""What the clients talk to: a gateway with a deployment behind it, and an engine alone, both on the built-in model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from scripts.free_ports import free_port
from tests.e2e.conftest import run_exo, start_stack

MODEL = "exo/tiny-chat"
MODEL_DIR = Path(__file__).parents[2] / "exo_inference/hub/builtin_models/tiny-chat"
KEY = "a-key-of-the-tests"
START_SECONDS = 400
"""How long a start may take: beside other work, importing PyTorch alone takes minutes."""


@dataclass(frozen=True)
class Server:
    """Where clients ask, and with which key."""

    url: str
    """Ends with /v1."""
    key: str
    count_answer_tokens: Callable[[], int]
    """Asks it how many tokens it has answered with so far."""


@pytest.fixture(scope="session")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    state_dir = tmp_path_factory.mktemp("clients") / "state"
    stack = start_stack(state_dir)
    try:
        stack.exo("model", "create", MODEL, "--wait")
        stack.exo(
            *("deployment", "create", "talk", "--model-name", MODEL),
            *("--gpu-type", "cpu", "--gpu-count", "1", "--wait"),
            timeout=START_SECONDS,
        )
        shown = json.loads(stack.exo("deployment", "show", "talk", "-O", "json").stdout)
        key = json.loads(stack.exo("deployment", "reveal-api-key", "talk", "-O", "json").stdout)

        def count_answer_tokens() -> int:
            rows = json.loads(stack.exo("usage", "talk", "-O", "json").stdout)
            return sum(row["completion_tokens"] for row in rows)

        yield Server(shown["deployment_url"], key["api_key"], count_answer_tokens)
    finally:
        run_exo(state_dir, "down", check=False)


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    log = tmp_path_factory.mktemp("engine") / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "exo_engine.server.main", "serve", str(MODEL_DIR),
             "--served-model-name", MODEL, "--port", str(port), "--api-key", KEY],
            stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    try:
        _wait_ready(process, f"http://127.0.0.1:{port}/health", log)
        address = f"http://127.0.0.1:{port}"
        yield Server(f"{address}/v1", KEY, lambda: _count_generated(f"{address}/metrics"))
    finally:
        process.terminate()
        process.wait(30)


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(url, timeout=5):
                return
        except (URLError, ConnectionError):
            time.sleep(0.1)
    raise AssertionError(f"the engine did not become ready:\n{log.read_text()}")


def _count_generated(url: str) -> int:
    with urlopen(url, timeout=30) as answer:
        page = answer.read().decode()
    return sum(
        int(float(line.rsplit(" ", 1)[1]))
        for line in page.splitlines()
        if line.startswith("vllm:generation_tokens_total{")
    )


@pytest.fixture(params=["gateway", "engine"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found
