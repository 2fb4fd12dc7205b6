"""What is said of a plan in passing."""

from __future__ import annotations

import pytest

from exo_inference.cli.plan.notices import tell
from exo_inference.cli.plan.words import size, summary
from exo_inference.wire import DeploymentPlan, PlanProblem, PlanVerdict


class FakeSession:
    """Keeps the remarks."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def remark(self, line: str) -> None:
        self.lines.append(line)


@pytest.mark.parametrize(("code", "is_told"), [("cores", True), ("room", True), ("other", False)])
def test_what_the_machine_lacks_for_all_replicas_is_a_warning(code: str, is_told: bool) -> None:
    problem = PlanProblem(code=code, detail="50 replicas share 2 cores", refuses=False)
    plan = DeploymentPlan(
        verdict=PlanVerdict.FITS,
        model="m",
        gpu="CPU",
        gpu_type="cpu",
        gpu_count=1,
        engine="exo",
        engine_version="1",
        problems=[problem],
    )
    said = FakeSession()
    tell(said, plan)  # type: ignore[arg-type]
    assert ("warning: 50 replicas share 2 cores" in said.lines) == is_told


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (10.19 * 2**30, "10.19 GiB"),
        (0.4 * 2**30, "0.40 GiB"),
        (12 * 2**20, "12.0 MiB"),
        (3 * 2**10, "3.0 KiB"),
        (0, "0 GiB"),
    ],
)
def test_little_memory_is_not_said_to_be_none(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


def test_the_cache_of_a_small_model_is_told_in_mib() -> None:
    plan = DeploymentPlan(
        verdict=PlanVerdict.FITS,
        model="m",
        gpu="CPU",
        gpu_type="cpu",
        gpu_count=1,
        engine="exo",
        engine_version="1",
        available_kv_bytes_per_gpu=12 * 2**20,
    )
    assert summary(plan).startswith("Fits: 12.0 MiB per GPU for the KV cache")
