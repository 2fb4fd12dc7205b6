"""The kernels of each set of instructions that is to be tested."""

from __future__ import annotations

import pytest
from exo_engine.kernels.library import Kernels, load_path

from ..cpu_kernels import EACH_PATH

_FOR_CODES = ("avx512_vnni", "avx2_vnni")
"""Differ from the sets after them in products with codes alone."""


@pytest.fixture(params=[path for path in EACH_PATH if path not in _FOR_CODES])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    """Kernels for one path, on two threads."""
    return _load(request.param)


@pytest.fixture(params=EACH_PATH)
def kernels_for_codes(request: pytest.FixtureRequest) -> Kernels:
    """The same where products with codes are computed."""
    return _load(request.param)


def _load(path: str) -> Kernels:
    loaded = load_path(path)
    loaded.set_num_threads(2)
    return loaded
