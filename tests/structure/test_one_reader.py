"""Flags of engines are read in `engines/flags/` alone: no code looks for one in text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import exo_inference

PACKAGE = Path(exo_inference.__file__).parent
ROOMS = ("engines", "planner", "preflight", "platforms", "controller/admission", "cli/plan")
ALLOWED = {
    "engines/adapters.py": "NAME=PATH is a value of a flag",
    "engines/migration.py": "says how a flag that was read is written for another release",
    "planner/checks.py": "who asked for a type of cache: a flag, or the checkpoint",
    "cli/plan/command_line.py": "options of exo itself, as advice names them",
}
_SEPARATORS = {"partition": ("=",), "split": ("=",)}
_STARTS = ("startswith", "removeprefix")


def test_no_code_looks_for_a_flag_in_text() -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        if path.parent.name != "flags" and any(_parses(ast.parse(path.read_text("utf-8"))))
    }
    assert found == set(ALLOWED)


def _parses(tree: ast.Module) -> Iterator[bool]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        words = [
            node.value
            for argument in call.args
            for node in ast.walk(argument)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        yield any(word in _SEPARATORS.get(call.func.attr, ()) for word in words)
        yield call.func.attr in _STARTS and any(word.startswith("-") for word in words)
