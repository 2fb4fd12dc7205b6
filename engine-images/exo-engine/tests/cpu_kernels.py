"""Which CPU kernels there are to be tested: those on the instructions that `EXO_ENGINE_CPU_KERNELS` leaves."""

from __future__ import annotations

import os

import pytest
from exo_engine.kernels import VARIABLE, library

PATHS = library.allowed_paths()
"""Best first, as the tests were started; none where they are off."""
_IS_OFF = f"{VARIABLE} is {os.environ.get(VARIABLE)}"
_REASONS = {
    path: _IS_OFF if path in library.available_paths() else "not in this machine or build"
    for path in library.PATHS
    if path not in PATHS
}
"""Of the others, why not."""
EACH_PATH = [
    *PATHS,
    *(
        pytest.param(", ".join(paths), marks=pytest.mark.skip(reason=f"{', '.join(paths)}: {why}"))
        for why in dict.fromkeys(_REASONS.values())
        if (paths := [path for path, each in _REASONS.items() if each == why])
    ),
]
"""As parameters of a test, which says that it is skipped on the others."""
WHY_NONE = f"no CPU kernels: {_IS_OFF if library.available_paths() else 'built without a compiler'}"

needs_kernels = pytest.mark.skipif(not PATHS, reason=WHY_NONE)
