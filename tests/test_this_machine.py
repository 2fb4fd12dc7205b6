"""What the planner is told of this machine's CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from exo_inference import this_machine


@pytest.mark.parametrize("limit", ["max\n", "1073741824\n", None], ids=["none", "1 GiB", "no file"])
def test_cpu_has_the_memory_that_the_container_may_use(
    limit: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "memory.max"
    if limit is not None:
        file.write_text(limit)
    monkeypatch.setattr(this_machine, "_CGROUP_LIMIT", file)
    cpu = this_machine.describe_cpu()
    assert cpu.vendor == "cpu"
    if limit == "1073741824\n":
        assert cpu.reported_bytes == 2**30
    else:
        assert cpu.reported_bytes > 2**30
