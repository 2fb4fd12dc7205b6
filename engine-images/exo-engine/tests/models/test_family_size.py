"""What a model family takes: its file, and whatever else in `models/` no other family uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import exo_engine
import pytest
from exo_engine.models.config_file import FAMILIES

SOURCE = Path(exo_engine.__file__).parent
PACKAGE = "exo_engine.models"
MODULES = sorted({module.removeprefix(f"{PACKAGE}.") for module in FAMILIES.values()})
Definition = tuple[str, str]
"""A module of `models/`, and a name that it defines."""


@cache
def tree(module: str) -> ast.Module:
    return ast.parse((SOURCE / "models" / f"{module}.py").read_text(encoding="utf-8"))


@cache
def definitions(module: str) -> Mapping[str, ast.stmt]:
    """Return what a module defines at its top, by name."""
    found: dict[str, ast.stmt] = {}
    for node in tree(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: node for each in targets if isinstance(each, ast.Name)}
    return found


@cache
def imported(module: str) -> Mapping[str, tuple[str, str | None]]:
    """Return what a module has from others of `models/`: by name the module, and what of it unless all."""
    found: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            owner = (node.module or "").removeprefix(PACKAGE).removeprefix(".")
            for each in node.names:
                name = each.asname or each.name
                found[name] = (owner, each.name) if owner else (each.name, None)
    return found


def uses(definition: Definition) -> Iterator[Definition]:
    """Yield what a definition names, in its module and in others."""
    module, name = definition
    known = imported(module)
    for node in ast.walk(definitions(module)[name]):
        if isinstance(node, ast.Name) and node.id in definitions(module):
            yield module, node.id
        elif isinstance(node, ast.Name) and node.id in known:
            owner, what = known[node.id]
            if what is not None:
                yield owner, what
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            owner, what = known.get(node.value.id, ("", ""))
            if what is None:
                yield owner, node.attr


@cache
def used_by(module: str) -> frozenset[Definition]:
    """Return all that a family's `spec_from_config` comes to."""
    found: set[Definition] = set()
    ahead: list[Definition] = [(module, "spec_from_config")]
    while ahead:
        definition = ahead.pop()
        if definition not in found:
            found.add(definition)
            ahead += uses(definition)
    return frozenset(found)


def lines_of(definition: Definition) -> int:
    node = definitions(definition[0])[definition[1]]
    first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
    return (node.end_lineno or first) - first + 1


def own_elsewhere(module: str) -> dict[Definition, int]:
    """Return what stands in other files and is used by this family alone, with its lines."""
    others = frozenset[Definition]().union(*(used_by(each) for each in MODULES if each != module))
    return {
        definition: lines_of(definition)
        for definition in used_by(module) - others
        if definition[0] != module
    }


def has_mixture(module: str) -> bool:
    keywords = (node for node in ast.walk(tree(module)) if isinstance(node, ast.keyword))
    return any(keyword.arg == "mixture" for keyword in keywords)


@pytest.mark.parametrize("module", MODULES)
def test_a_dense_family_has_60_lines_at_most_and_a_mixture_150(module: str) -> None:
    text = (SOURCE / "models" / f"{module}.py").read_text(encoding="utf-8")
    elsewhere = own_elsewhere(module)
    most = 150 if has_mixture(module) else 60
    assert len(text.splitlines()) + sum(elsewhere.values()) <= most, elsewhere


def test_what_families_share_is_told_from_what_is_ones_own() -> None:
    assert ("rope_config", "_read_yarn") in used_by("qwen3")
    assert ("llama", "read_head_dim") in used_by("gemma3")
    assert ("mistral", "read_window") in used_by("mistral")
    assert ("mistral", "read_window") not in used_by("llama")
    assert [module for module in MODULES if has_mixture(module)] == [
        *("deepseek", "gpt_oss", "qwen3_moe", "qwen3_next")
    ]


def named_in(path: Path) -> set[str]:
    """Return the architectures that a file's code names; prose is not code."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
    ]
    return {name for name in FAMILIES if any(name in text for text in texts)}


def test_no_other_file_knows_an_architecture_by_its_name() -> None:
    """So none does something for one family that is not said in its `DecoderSpec`."""
    owners = {f"{module}.py" for module in MODULES} | {"config_file.py"}
    found = {
        str(path.relative_to(SOURCE)): named
        for path in sorted(SOURCE.rglob("*.py"))
        if not (path.parent == SOURCE / "models" and path.name in owners)
        and (named := named_in(path))
    }
    assert found == {}
