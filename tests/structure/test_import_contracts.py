"""The contracts of `lint-imports` refuse an import that goes up, or across to a package beside it."""

from __future__ import annotations

import copy
from pathlib import Path

import grimp
import pytest
from importlinter.application.use_cases import read_user_options
from importlinter.configuration import configure
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

configure()
OPTIONS = read_user_options(str(Path(__file__).parents[2] / "pyproject.toml"))
KINDS = {"forbidden": ForbiddenContract, "layers": LayersContract}

WRONG = [
    ("platforms.local.platform", "platforms.kubernetes.step"),
    ("platforms.base", "platforms.local.settings"),
    ("cli.rendering.results", "cli.deployment.create"),
    ("planner.speed.estimate", "planner.llama_cpp.planning"),
    ("planner.speed.estimate", "planner.planning"),
    ("planner.memory", "planner.speed.estimate"),
    ("planner.processor.kernels", "planner.memory"),
    ("engines.base", "planner.planning"),
    ("preflight.judgement", "kubernetes_api.client"),
    ("resources.deployment", "engines.base"),
    ("gateway.replicas.health", "gateway.proxy"),
    ("gateway.exchange", "gateway.tracing"),
    ("gateway.app", "controller.context"),
    ("sdk._messages", "sdk._http"),
]


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(
        *OPTIONS.session_options["root_packages"],
        include_external_packages=True,
        exclude_type_checking_imports=True,
        cache_dir=None,
    )


def broken(graph: grimp.ImportGraph) -> list[str]:
    """Return the contracts that an import breaks, of those that forbid something or set layers."""
    contracts = [
        kind(options["name"], OPTIONS.session_options, options)
        for options in OPTIONS.contracts_options
        if (kind := KINDS.get(options["type"]))
    ]
    # A check takes the imports that it ignores out of what it is given.
    return [
        each.name for each in contracts if not each.check(copy.deepcopy(graph), verbose=False).kept
    ]


def test_no_import_breaks_a_contract(graph: grimp.ImportGraph) -> None:
    assert broken(graph) == []


@pytest.mark.parametrize(("importer", "imported"), WRONG)
def test_a_wrong_import_is_refused(graph: grimp.ImportGraph, importer: str, imported: str) -> None:
    edge = {"importer": f"exo_inference.{importer}", "imported": f"exo_inference.{imported}"}
    assert set(edge.values()) <= graph.modules
    graph.add_import(**edge, line_number=1, line_contents="import")
    try:
        assert broken(graph)
    finally:
        graph.remove_import(**edge)
