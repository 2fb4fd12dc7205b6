"""1,000 mutated files of each kind through a controller in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.foreign_files.__main__ import COUNT, percentile, run_kind, running_controller
from benchmarks.foreign_files.mutations import KINDS

HANG_SECONDS = 20.0
"""A guard against a controller that stands still; what the answers took is a benchmark's to say."""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", KINDS)
def test_a_thousand_mutated_files_of_a_kind(
    tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    with running_controller(tmp_path) as api:
        found = run_kind(api, tmp_path / "files", name, COUNT)
    assert found.num_past_parser >= 0.3 * COUNT
    assert set(found.outcomes) <= {"refused", "error", "ready"}, found.outcomes
    assert found.outcomes["refused"] > 0.3 * COUNT
    assert found.outcomes.total() == COUNT
    answers = found.answers
    assert not answers.failures
    assert len(answers.seconds) > 20
    assert "Traceback" not in (tmp_path / "controller.log").read_text()
    assert max(answers.seconds) < HANG_SECONDS
    record_property("answers_p99_seconds", percentile(answers.seconds, 0.99))
    record_property("answers_slowest_seconds", max(answers.seconds))
    record_property("late_p99_seconds", percentile(answers.late_seconds, 0.99))
