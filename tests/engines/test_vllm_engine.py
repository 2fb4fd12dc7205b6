"""vLLM as an engine: its flags. It runs in pods; on one machine exo-engine's process simulates it."""

from __future__ import annotations

from pathlib import Path

import pytest

from exo_inference.engines import ReplicaCommand, get_engine
from exo_inference.engines.base import EngineNotInstalled
from exo_inference.engines.exo import ExoEngine

COMMAND = ReplicaCommand(
    model_path=Path("/models/tiny"),
    served_model_name="org/big",
    socket="engine.sock",
    gpu_type="gpua5000",
    gpu_count=1,
    parameters=("--max-model-len=60000",),
    simulation="simulation.json",
)


def test_flags_are_those_of_vllm() -> None:
    engine = get_engine("vllm")
    assert engine.read(["--gpu-memory-utilization=0.95"], "0.28.0").problems == ()
    (problem,) = engine.read(["--max-modl-len=1"], None).problems
    assert "--max-model-len" in problem.detail
    assert any("--max-model-len" in each.flags for each in engine.parameters())


def test_a_simulated_replica_is_the_small_model_with_a_file_and_without_the_flags() -> None:
    assert ExoEngine(Path("/opt/exo-engine")).command(COMMAND) == (
        "/opt/exo-engine",
        "serve",
        "/models/tiny",
        "--served-model-name",
        "org/big",
        "--uds",
        "engine.sock",
        "--device",
        "cpu",
        "--simulation",
        "simulation.json",
    )


def test_vllm_itself_is_no_process_of_a_machine_simulated_or_not() -> None:
    with pytest.raises(EngineNotInstalled, match="vLLM runs on a cluster only") as refused:
        get_engine("vllm").command(COMMAND)
    assert "`exo`" in (refused.value.hint or "")


def test_a_start_that_ran_out_of_memory_is_final_and_says_why() -> None:
    log = ["noise", "exo-engine: error: CUDA out of memory: 34 GiB needed. Use 4 GPUs"]
    failure = get_engine("exo").diagnose(78, log)
    assert not failure.retry
    assert failure.message == "CUDA out of memory: 34 GiB needed. Use 4 GPUs"
