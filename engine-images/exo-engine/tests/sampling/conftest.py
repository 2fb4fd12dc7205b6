"""Each test chooses tokens by the compiled kernels, where there are any, and by PyTorch."""

from __future__ import annotations

import pytest
from exo_engine.kernels.library import VARIABLE, available_paths


@pytest.fixture(autouse=True, params=["kernels", "PyTorch"])
def chooser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What chooses."""
    if request.param == "PyTorch":
        monkeypatch.setenv(VARIABLE, "off")
    elif not available_paths():
        pytest.skip("this build has no kernels")
    else:
        monkeypatch.delenv(VARIABLE, raising=False)
