"""What is said of a plan in passing."""

from __future__ import annotations

import pytest

from exo_inference.cli.planning.telling import tell
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
