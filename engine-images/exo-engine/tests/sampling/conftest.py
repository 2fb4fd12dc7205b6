"""Each test chooses tokens by the compiled kernels that the environment leaves, where there are any, and by PyTorch."""

from __future__ import annotations

import pytest
from exo_engine.kernels import VARIABLE

from ..cpu_kernels import PATHS, WHY_NONE


@pytest.fixture(autouse=True, params=["kernels", "PyTorch"])
def chooser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What chooses."""
    if request.param == "PyTorch":
        monkeypatch.setenv(VARIABLE, "off")
    elif not PATHS:
        pytest.skip(WHY_NONE)
