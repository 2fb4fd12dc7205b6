"""Settings of all tests of both distributions."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

# A shell starts background jobs with SIGINT ignored, and every process of the tests would inherit
# that; Ctrl-C is then tested by nobody.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The same examples in every run, so that a failure is about the change and not about luck, and no
# deadlines, as no test is a timed test. HYPOTHESIS_PROFILE=random looks for new examples.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

# A real Kubernetes API for tests of both packages' tests starts nothing until a test asks for it.
pytest_plugins = ["tests.scheduling", "tests.kubernetes_api"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without the garbage collector, and keep what was collected out of its searches.

    Thousands of tests and modules live to the end. Searching them took a third of the time of collecting, in
    each process, and some of every test's.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # what tests make is seldom in circles
        gc.enable()
