"""The plain sampler, from the file beside this one."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def plain():
    """Return the module `plain_sampler`."""
    path = Path(__file__).with_name("plain_sampler.py")
    spec = importlib.util.spec_from_file_location("plain_sampler", path)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
