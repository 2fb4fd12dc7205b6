"""The kernels of each set of instructions that this machine has."""

from __future__ import annotations

import pytest
from exo_engine.kernels.library import PATHS, Kernels, available_paths, load_path


@pytest.fixture(params=PATHS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Kernels for one path, on two threads."""
    if request.param not in available_paths():
        pytest.skip(f"this machine or build has no kernels for {request.param}")
    loaded = load_path(request.param)
    loaded.set_num_threads(2)
    return loaded
