"""What the tests of simulations share: a file's document, and a clock that nobody waits for."""

from __future__ import annotations

from typing import Any

import pytest
from exo_engine.clock import Clock


class VirtualClock(Clock):
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.time += seconds


@pytest.fixture
def clock() -> VirtualClock:
    """A clock at 100 seconds."""
    return VirtualClock()


@pytest.fixture
def document() -> dict[str, Any]:
    """A simulation file that says all there is to say, but for a failure."""
    return {
        "model": "org/Big-8B",
        "gpu": "gpua5000",
        "gpu_count": 4,
        "kv_capacity_tokens": 5_000_000,
        "kv_block_size": 16,
        "max_model_len": 131_072,
        "max_num_seqs": 256,
        "max_num_batched_tokens": 8192,
        "phases": [
            {"name": "loading weights", "seconds": 30, "log": ["Loading weights took 30 s"]},
            {"name": "capturing CUDA graphs", "seconds": 12.5},
        ],
        "step_seconds": [{"batch": 1, "seconds": 0.02}, {"batch": 65, "seconds": 0.052}],
        "prompt_seconds": [{"tokens": 1000, "seconds": 0.2}, {"tokens": 9000, "seconds": 2.2}],
        "engine": "vllm",
        "engine_version": "0.19.0",
    }
