"""States, norms, gates and products of one row, under the interpreter, are those of float64."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))
from attention_cases import CPU
from row_cases import check_gate, check_norm, check_row, check_states

pytestmark = pytest.mark.gpu_kernels


@pytest.mark.parametrize("seed", range(6))
def test_states_are_moved_on(seed: int) -> None:
    check_states(CPU, seed)


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_normalised(seed: int) -> None:
    check_norm(CPU, seed)


@pytest.mark.parametrize("seed", range(6))
def test_rows_are_gated(seed: int) -> None:
    check_gate(CPU, seed)


@pytest.mark.parametrize("seed", range(8))
def test_one_row_is_multiplied(seed: int) -> None:
    check_row(CPU, seed)
