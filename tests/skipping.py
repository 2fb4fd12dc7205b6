"""Skips that hide a check: for people they say what is missing, and where everything must be checked they fail.

CI=true is that switch, which `.ci/run` sets, as CI systems do.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_check(reason: str) -> NoReturn:
    """Skip a test for want of something of this machine; under CI, fail it."""
    if os.environ.get("CI", "").lower() in ("true", "1"):
        pytest.fail(f"a check was left out, and CI is set: {reason}", pytrace=False)
    pytest.skip(reason)
