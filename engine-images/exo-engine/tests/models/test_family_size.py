"""What a model family takes: its file, and whatever else no other family uses.

Of `models/` that is every definition that its `spec_from_config` alone comes to. Of `layers/` it is every module
that only its models are made of, unless that is a layer kind (`LAYER_KINDS`): one that computes what no other layer
does, and that `models/spec.py` describes for any family to ask for. How one family stores or names what others have,
too, is the family's.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import exo_engine
import pytest
import torch
from exo_engine.models.config_file import FAMILIES, read_spec
from exo_engine.models.decoder import Decoder

from ..conftest import FAMILIES as TINY_MODELS

SOURCE = Path(exo_engine.__file__).parent
PACKAGE = "exo_engine.models"
MODULES = sorted({module.removeprefix(f"{PACKAGE}.") for module in FAMILIES.values()})
LAYER_KINDS = {
    "latent": "LatentSpec",  # multi-head latent attention
    "delta_net": "DeltaSpec",  # states: Gated DeltaNet
    "layer_inputs": "LayerInputSpec",  # embeddings of each layer's own, as in Gemma 3n and Gemma 4
}
"""Modules of `layers/`, and what describes each."""
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


def num_lines(path: str) -> int:
    return len((SOURCE / path).read_text(encoding="utf-8").splitlines())


@pytest.fixture(scope="module")
def made_of(
    tiny_config: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, set[str]]:
    """Return the modules of `layers/` of which anything runs while models of each family are made."""
    found: dict[str, set[str]] = {}
    for name in TINY_MODELS:
        config, path = tiny_config(name), tmp_path_factory.mktemp(name)
        config.save_pretrained(path)
        spec, run = read_spec(path), set[str]()
        sys.setprofile(lambda frame, event, _, run=run: run.add(frame.f_code.co_filename))
        try:
            Decoder(spec, dtype=torch.float32, device=torch.device("meta"))
        finally:
            sys.setprofile(None)
        module = FAMILIES[config.architectures[0]].removeprefix(f"{PACKAGE}.")
        layers = {Path(each).stem for each in run if Path(each).parent == SOURCE / "layers"}
        found.setdefault(module, set()).update(layers)
    return found


@pytest.mark.parametrize("module", MODULES)
def test_a_dense_family_has_60_lines_at_most_and_a_mixture_150(
    module: str, made_of: dict[str, set[str]]
) -> None:
    others = set[str]().union(*(layers for each, layers in made_of.items() if each != module))
    layers = made_of[module] - others - LAYER_KINDS.keys()
    elsewhere: dict[Any, int] = own_elsewhere(module)
    elsewhere |= {layer: num_lines(f"layers/{layer}.py") for layer in layers}
    most = 150 if has_mixture(module) else 60
    assert num_lines(f"models/{module}.py") + sum(elsewhere.values()) <= most, elsewhere


def test_it_is_seen_what_models_are_made_of(made_of: dict[str, set[str]]) -> None:
    assert sorted(made_of) == MODULES
    users = {
        layer: {module for module, layers in made_of.items() if layer in layers}
        for layer in set[str]().union(*made_of.values())
    }
    assert users["linear"] == users["embedding"] == set(MODULES)
    assert users["transposed_experts"] == {"gpt_oss"}
    assert users["latent"] == {"deepseek"}
    assert users["delta_net"] == {"qwen3_5", "qwen3_next"}
    assert users["layer_inputs"] == {"gemma4"}


def test_a_layer_kind_has_a_description_that_no_other_layer_reads() -> None:
    for kind, description in LAYER_KINDS.items():
        readers = [
            path.stem
            for path in (SOURCE / "layers").glob("*.py")
            if description in path.read_text(encoding="utf-8")
        ]
        assert readers == [kind]


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
