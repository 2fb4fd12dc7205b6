"""Why an engine in a container ended."""

from __future__ import annotations

import pytest

from exo_inference.engines.container_failures import diagnose_container


@pytest.mark.parametrize(
    ("exit_code", "log", "words", "retry"),
    [
        pytest.param(None, [], "nobody watched", True, id="unseen"),
        pytest.param(0, [], "without being asked", True, id="ended"),
        pytest.param(139, [], "signal 11", True, id="signal"),
        pytest.param(127, [], "not in the image", False, id="no program"),
        pytest.param(78, ["exo-adapter: error: no model"], "no model", False, id="adapter"),
        pytest.param(1, ["x exo-engine: error: odd"], "odd", True, id="engine's own words"),
        pytest.param(1, ["", "last", ""], "exit code 1; its last words: last", True, id="unknown"),
        pytest.param(1, ["CUDA error: out of memory", "exit"], "GPU's memory", True, id="cuda"),
        pytest.param(
            2, ["usage: x", "api_server.py: error: unrecognized arguments: --x"], "--x", False, id="flag"
        ),
        pytest.param(
            1,
            ["NCCL error: unhandled system error", "torch.OutOfMemoryError: CUDA out of memory."],
            "GPU's memory",
            True,
            id="the cause and not what it drags along",
        ),
        pytest.param(
            1, ["driver version is insufficient: CUDA driver version is insufficient"], "too old", False, id="driver"
        ),
        pytest.param(
            1, ["RuntimeError: Failed to infer device type"], "sees no GPU", False, id="no GPU"
        ),
        pytest.param(1, ["OSError: [Errno 28] No space left on device"], "disk", True, id="disk"),
        pytest.param(
            1,
            ["ValueError: Free memory on device (3/24 GiB) on startup is less than desired GPU memory"],
            "another process",
            True,
            id="shared GPU",
        ),
    ],
)  # fmt: skip
def test_an_end_has_its_reason(
    exit_code: int | None, log: list[str], words: str, retry: bool
) -> None:
    found = diagnose_container(exit_code, log)
    assert words in found.message
    assert found.retry is retry


def test_a_long_line_is_cut() -> None:
    found = diagnose_container(1, ["x" * 100_000])
    assert len(found.message) < 400
