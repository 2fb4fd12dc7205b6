"""PyTorch's threads sleep soon where the CPU kernels have their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from exo_engine.kernels import LIBRARY, VARIABLE
from exo_engine.openmp import SPIN_COUNT, shorten_spinning


@pytest.mark.parametrize("own", [{}, {VARIABLE: "auto"}, {VARIABLE: "plain"}], ids=str)
def test_they_sleep_soon_beside_the_kernels_threads(own: dict[str, str], tmp_path: Path) -> None:
    library, environment = tmp_path / "library.so", dict(own)
    library.touch()
    shorten_spinning(environment, library)
    assert environment == {**own, "GOMP_SPINCOUNT": str(SPIN_COUNT)}


@pytest.mark.parametrize(
    "own", [{VARIABLE: "off"}, {"GOMP_SPINCOUNT": "1"}, {"OMP_WAIT_POLICY": "active"}], ids=str
)
def test_they_are_left_alone_without_kernels_and_where_somebody_chose(
    own: dict[str, str], tmp_path: Path
) -> None:
    library, environment = tmp_path / "library.so", dict(own)
    library.touch()
    shorten_spinning(environment, library)
    assert environment == own


def test_they_are_left_alone_where_nothing_was_compiled(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    shorten_spinning(environment, tmp_path / "library.so")
    assert environment == {}


def test_it_is_set_before_pytorch_is_imported() -> None:
    script = (
        "import os, sys; os.environ.pop('GOMP_SPINCOUNT', None); import exo_engine.openmp; "
        "print(os.environ.get('GOMP_SPINCOUNT', '-'), 'torch' in sys.modules)"
    )
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment
    ).stdout.split()
    assert found == [str(SPIN_COUNT) if LIBRARY.exists() else "-", "False"]
