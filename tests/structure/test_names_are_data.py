"""No code asks for an engine or a model family by name: what sets one apart is a field of its row."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import exo_inference
from exo_inference.engine_names import ENGINES, OWN_ENGINE
from exo_inference.planner.model.families import FAMILIES

PACKAGE = Path(exo_inference.__file__).parent
_LOOK_UPS = ("startswith", "endswith", "get", "removeprefix")

TABLES = {
    "engine_names.py": "the table itself: a row per engine",
    "planner/engine_rules.py": "the table of the engines' rules of memory",
    "planner/model/families.py": "the table of families",
    "planner/model/layers.py": "kinds of layers in config.json, of which some are called as families are",
    "planner/model/audio.py": "the table of audio encoders whose sizes no config names",
    "planner/model/vision.py": "the table of image encoders, by the model type of each",
    "planner/processor/exo_kernels.py": "the table of what exo-engine's kernels leave to PyTorch, by family",
    "planner/releases/classes.py": "the table of the releases that have a class for a family",
    "planner/releases/own_code.py": "the table of model types whose code comes with the model",
    "planner/releases/sglang.py": "the table of the releases of SGLang that have a class for a family",
    "planner/releases/dtypes.py": "the table of families that a release does not compute in float16",
    "planner/releases/sglang_families.py": "the table of what releases of SGLang do to families",
    "resources/deployment.py": "digests that are stored leave out what was the default when the first were written",
}
"""Where engines and families may be told apart by name, and why."""


@cache
def trees() -> dict[str, ast.Module]:
    """Return the code of each file: not before a test wants it, as every process collects this module."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def named() -> dict[str, str]:
    """Return the texts that have a name."""
    return {name: text for tree in trees().values() for name, text in _constants(tree)}


def _asked(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield what code compares, matches, looks up, and the keys of its dictionaries."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare() | ast.MatchValue():
                yield node
            case ast.Call(func=ast.Attribute(attr=name)) if name in _LOOK_UPS:
                yield from node.args[:1]
            case ast.Subscript():
                yield node.slice
            case ast.Dict():
                yield from filter(None, node.keys)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the texts that have a name in a module."""
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and isinstance(node.value.value, str):
                    yield target.id, node.value.value


def _asked_names(tree: ast.AST) -> set[str]:
    """Return the texts that are asked for, also by the name of a constant."""
    parts = {part for node in _asked(tree) for part in ast.walk(node)}
    return {
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    } | {named()[part.id] for part in parts if isinstance(part, ast.Name) and part.id in named()}


@pytest.mark.parametrize(
    "code",
    [
        'a == "vllm"', 'b.engine in ("exo", "sglang")', '{"tgi": 1}', 'TITLES["llama-cpp"]', 'x.get("vllm")',
        'match a:\n case "exo": pass', 'name.startswith("tensorrt-llm")',
    ],
)  # fmt: skip
def test_every_way_to_ask_for_a_name_is_seen(code: str) -> None:
    assert _asked_names(ast.parse(code)) & set(ENGINES)


def test_no_code_asks_for_an_engine_or_a_family_by_name() -> None:
    """Families in the planner alone: elsewhere quantization methods and fields are called the same."""
    found = {}
    for path, tree in trees().items():
        families = FAMILIES.keys() if path.startswith("planner/") else set()
        if names := _asked_names(tree) & ({*ENGINES} | families):
            found[path] = names
    assert {path: names for path, names in found.items() if path not in TABLES} == {}
    assert TABLES.keys() == found.keys(), "a file that names none any more is not listed"


def test_which_engine_is_the_usual_one_is_said_in_one_place() -> None:
    """`exo` apart: the program is called so, too."""
    quoted = [f'"{name}"' for name in {*ENGINES} - {OWN_ENGINE}]
    found = {
        path
        for path, tree in trees().items()
        if any(name in (PACKAGE / path).read_text(encoding="utf-8") for name in quoted)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in {*ENGINES} - {OWN_ENGINE}
    }
    others = {path for path in found if not path.startswith("engines/")}
    assert others == {"engine_names.py", "planner/engine_rules.py", "planner/parameters.py"}
