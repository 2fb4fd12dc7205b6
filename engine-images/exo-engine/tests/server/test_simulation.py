"""Simulated and measured starts as the control plane sees them: flags in, HTTP and log out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .conftest import MODEL, Engine

Start = Callable[..., Engine]
BIG = {
    "model": "org/Big-8B",
    "gpu": "gpua5000",
    "gpu_count": 1,
    "kv_capacity_tokens": 5_000_000,
    "kv_block_size": 16,
    "max_model_len": 131_072,
    "max_num_seqs": 256,
    "max_num_batched_tokens": 8192,
    "phases": [
        {"name": "loading weights", "seconds": 0.1, "log": ["INFO Loading weights took 31 s"]},
        {"name": "capturing CUDA graphs", "seconds": 0.3},
    ],
    "step_seconds": [{"batch": 1, "seconds": 0.03}],
    "prefill_seconds_per_token": 1e-5,
    "engine": "vllm",
}


@pytest.fixture
def simulate(start_engine: Start, tmp_path: Path) -> Start:
    """Start a server on the figures of a big deployment."""

    def start(**changes: Any) -> Engine:
        path = tmp_path / "simulation.json"
        path.write_text(json.dumps(BIG | changes))
        return start_engine("--simulation", str(path))

    return start


def test_simulated_deployment_starts_says_so_and_answers_at_its_speed(simulate: Start) -> None:
    engine = simulate().wait_ready()
    assert engine.http.get("/health").json()["simulated"] is True
    assert engine.http.get("/v1/models").json()["data"][0]["max_model_len"] == 131_072
    assert engine.http.get("/version").json()["simulation"]["gpu"] == "gpua5000"
    assert engine.metric("vllm:cache_config_info", num_gpu_blocks="312500") == 1
    log = engine.log.read_text()
    assert "this is a simulation of org/Big-8B on 1 x gpua5000 with vllm" in log
    assert "\nINFO Loading weights took 31 s\n" in log
    assert "starting: capturing CUDA graphs" in log

    measured = engine.http.get("/measurements").json()
    assert measured["simulated"] is True
    assert measured["kv_capacity_tokens"] == 5_000_000
    assert (
        measured["peak_rss_bytes"] < 1.5 * 2**30
    )  # the cache of that size would take 1.2 GiB more

    body = {"model": MODEL, "prompt": [7] * 60_000, "max_tokens": 5, "ignore_eos": True}
    begin = time.monotonic()
    answer = engine.http.post("/v1/completions", json=body).json()
    assert time.monotonic() - begin >= 60_000 * 1e-5 + 4 * 0.03
    assert answer["usage"]["prompt_tokens"] == 60_000
    assert answer["usage"]["completion_tokens"] == 5


@pytest.mark.slow  # `simulation/test_simulated_core.py` has the failure, its lines and status, without a server
def test_simulated_failure_ends_as_a_real_one(simulate: Start) -> None:
    fail = {
        "phase": "capturing CUDA graphs",
        "error": "the KV cache has room for 60000 tokens. Lower --max-model-len",
        "exit_code": 71,
        "log": ["torch.OutOfMemoryError: CUDA out of memory."],
    }
    engine = simulate(fail=fail)
    assert engine.wait_exit() == 71
    assert engine.last_line == f"exo-engine: error: {fail['error']}"
    assert "\ntorch.OutOfMemoryError: CUDA out of memory.\n" in engine.log.read_text()
    assert not engine.socket.exists()


def test_wrong_simulation_file_is_refused_with_one_line(simulate: Start) -> None:
    engine = simulate(gpus=4)
    assert engine.wait_exit() == 78
    (line,) = engine.log.read_text().splitlines()
    assert line.startswith("exo-engine: error: cannot use --simulation: unknown key 'gpus'")


def test_real_start_shows_what_it_measured(engine: Engine) -> None:
    measured = engine.http.get("/measurements").json()
    assert measured["simulated"] is False
    assert measured["available_kv_bytes"] == 16 * 2**20
    assert measured["kv_bytes_per_token"] == 2 * 2 * 16 * 4
    num_blocks = str(measured["num_kv_blocks"])
    assert engine.metric("vllm:cache_config_info", num_gpu_blocks=num_blocks) == 1
    assert next(iter(measured["start_up_seconds"])) == "loading PyTorch"
    assert "simulated" not in engine.http.get("/health").json()
    assert list(engine.http.get("/version").json()) == ["version"]


def test_a_start_says_where_it_is_and_has_no_measurements_before_it_is_over(
    simulate: Start,
) -> None:
    phases = [
        {"name": "loading weights", "seconds": 0.1},
        {"name": "capturing CUDA graphs", "seconds": 3600},
    ]
    engine = simulate(phases=phases).wait_listening()
    engine.wait_until(
        lambda: engine.http.get("/health").json()["detail"] == "capturing CUDA graphs"
    )
    health = engine.http.get("/health")
    assert (health.status_code, health.json()["simulated"]) == (503, True)
    early = engine.http.get("/measurements")
    assert early.status_code == 503
    assert early.json()["error"]["code"] == "model_loading"
