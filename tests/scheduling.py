"""Pytest plugin: what of `pytest -n N --dist loadfile` runs in one process, and before everything else.

Tests that share servers which take seconds to start wait more than they work. In one process the servers are
started once, and at the beginning there is other work to do meanwhile; at the end all would wait for them.
So would they for a module that takes long by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

GROUPS = {
    # They break the one whole cluster on purpose, so that no two of them may run at once.
    "cluster": ("tests/kubernetes/", "tests/platforms/kubernetes/test_on_cluster.py"),
    "control plane of this machine": ("tests/e2e/",),
    "server of the engine": ("engine-images/exo-engine/tests/server/",),
    # What compares with models of transformers, which are built, and their code imported, once.
    "models of the engine": tuple(
        f"engine-images/exo-engine/tests/{name}"
        for name in (
            "core/",
            "equivalence/",
            "layers/",
            "models/",
            "weight_formats/",
            "test_llm.py",
        )
    ),
}
"""By a name: how the paths of what shares a process begin."""
ALONE = (
    *(
        f"tests/kubernetes/test_{name}.py"
        for name in ("api_server", "bad_input", "chaos", "cluster_end", "hostile_tenant")
    ),
    *(
        f"tests/e2e/test_{name}.py"
        for name in (
            *("api_beside_starts", "chaos", "chaos_alone", "clock_jumps", "odd_machines"),
            *("simulated_gpus", "stopped_engine", "tracing"),
        )
    ),
)
"""Modules beside those of a group that share nothing: they need an API server only, or start what they need."""
LONG = (
    "engine-images/exo-engine/tests/kernels/triton/test_compile.py",
    "tests/e2e/test_clock_jumps.py",
    "tests/e2e/test_stopped_engine.py",
    "tests/e2e/test_chaos.py",
    "tests/e2e/test_chaos_alone.py",
    "tests/e2e/test_simulated_gpus.py",
    "tests/planner/test_published_speeds.py",
    "tests/foreign_files/test_trial.py",
    "engine-images/exo-engine/tests/benchmarks/test_gpu_check.py",
    "tests/kubernetes/test_chaos.py",
    "tests/kubernetes/test_hostile_tenant.py",
    "tests/benchmarks/test_kubernetes_scale.py",
    "tests/e2e/test_api_beside_starts.py",
    "tests/kubernetes/test_cluster_end.py",
    "engine-images/exo-engine/tests/attention/test_triton.py",
    "tests/platforms/test_local_lifecycle.py",
    "tests/controller/test_replays.py",
    "tests/platforms/test_local_changes.py",
    "tests/hub/test_volume.py",
)
"""Modules of no group that take longest, those of the slow tiers first: 400 s to 13 s on two busy cores."""


def group_of(nodeid: str) -> str | None:
    """Return the group of a test, or None."""
    if nodeid.startswith(ALONE):
        return None
    return next((name for name, begins in GROUPS.items() if nodeid.startswith(begins)), None)


@pytest.hookimpl(wrapper=True)  # after the order was drawn
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Let the groups begin, and long modules come next."""
    yield
    items.sort(key=lambda item: _turn_of(item.nodeid))


def _turn_of(nodeid: str) -> int:
    if name := group_of(nodeid):
        return [*GROUPS].index(name)
    module = nodeid.partition("::")[0]
    return len(GROUPS) + (LONG.index(module) if module in LONG else len(LONG))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each group to one process, and the other modules to whichever is free."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class GroupScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid) or super()._split_scope(nodeid)

    return GroupScheduling(config, log)
