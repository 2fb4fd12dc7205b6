"""Groups of tests begin, each in one process, and name files that are there."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduling import ALONE, GROUPS, LONG, group_of

ROOT = Path(__file__).parents[1]
TEST = "def test_it(): pass\n"


@pytest.mark.parametrize("begin", [*ALONE, *LONG, *sum(GROUPS.values(), ())])
def test_what_is_named_is_there(begin: str) -> None:
    assert (ROOT / begin).exists()


def test_a_module_of_no_group_stands_alone() -> None:
    assert group_of("tests/cli/test_help.py::test_it") is None
    assert group_of(f"{ALONE[0]}::test_it") is None
    assert group_of("tests/e2e/test_rolling.py::test_it") == "control plane of this machine"


SHARED = {"stack", "talk", "kubernetes_cluster"}
"""Fixtures that a group shares."""


@pytest.mark.parametrize("name", ALONE)
def test_a_module_that_stands_alone_asks_for_nothing_shared(name: str) -> None:
    functions = [
        node
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    fixtures = {
        each.name
        for each in functions
        if any("fixture" in ast.unparse(one) for one in each.decorator_list)
    }
    asked = {
        argument.arg
        for each in functions
        if each.name in fixtures or each.name.startswith("test_")
        for argument in each.args.args
    }
    assert not (asked - fixtures) & SHARED


@pytest.mark.slow
def test_a_group_runs_first_and_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "tests" / "e2e").mkdir(parents=True)
    for name in ("a", "b", "c", "e2e/d", "e2e/e", "e2e/f", "e2e/g"):
        path = tmp_path / "tests" / name
        path.with_name(f"test_{path.name}.py").write_text(TEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.scheduling", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [
            *command,
            "-n",
            "2",
            "--dist",
            "loadfile",
            "--no-loadscope-reorder",
            "--random-order",
            "-v",
        ],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    passed = [line.split() for line in ran.stdout.splitlines() if "PASSED" in line]
    of_group = [words for words in passed if "tests/e2e/" in words[-1]]
    assert (len(passed), len(of_group)) == (7, 4)
    (process,) = {words[0] for words in of_group}
    assert [words for words in passed if words[0] == process][:4] == of_group


def test_long_modules_come_after_the_groups_and_before_all_others(tmp_path: Path) -> None:
    """The longest first, whatever order is drawn."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\n")
    names = [*LONG, *(f"tests/test_{number}.py" for number in range(30)), "tests/e2e/test_it.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "tests.scheduling", "-p", "no:cacheprovider"]
    ran = subprocess.run(
        [*command, "--random-order", "--random-order-seed=1", "--collect-only", "-q"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    modules = [line.partition("::")[0] for line in ran.stdout.splitlines() if "::" in line]
    assert sorted(modules) == sorted(names), ran.stdout + ran.stderr
    assert modules[: 1 + len(LONG)] == ["tests/e2e/test_it.py", *LONG]
