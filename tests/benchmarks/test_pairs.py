"""The pairs of the benchmark on Kubernetes: the table, and what ends it."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.kubernetes_scale import pairs
from scripts.kubernetes import binaries


def figures(load: float, **seconds: float) -> dict[str, Any]:
    return {"load": load, "cpu_seconds_each": seconds, "applied": {"p99": 2.9}}


def test_a_table_has_a_column_for_each_run_and_the_sum_of_the_three() -> None:
    parts = {"leader": 0.06, "Helm": 0.01, "standby": 0.02, "kube-apiserver": 0.2, "etcd": 0.03}
    found = pairs.table([("c733aad", figures(0.5, **parts)), ("this tree", figures(1.0, **parts))])
    lines = found.splitlines()
    assert lines[0] == "| processor seconds per create | c733aad | this tree |"
    assert "| these three (at most 0.11) | 0.090 | 0.090 |" in lines
    assert "| all | 0.320 | 0.320 |" in lines


def test_a_commit_that_is_not_there_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(binaries, "require", lambda names: {})
    assert pairs.main(["--before", "no-such-commit"]) == 2
    assert "cannot read the commit no-such-commit" in capsys.readouterr().err
