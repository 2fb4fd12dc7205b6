"""Reads which releases of vLLM have a class for an architecture, and which a quantization method.

Run as `python scripts/vllm_catalogue/read_registries.py tests/planner/vllm_classes.json 0.6.6=DIR 0.7.0=DIR …`, each DIR being
the `vllm/` folder of that release's source distribution (or wheel). Nothing is imported: the files are parsed. The
architectures are those that the file names already, by model type and, where a checkpoint has one of its own, by its name;
their releases, and those of all methods, are written anew.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

_REGISTRY = "model_executor/models/registry.py"
_METHODS = "model_executor/layers/quantization/__init__.py"
_NO_MODELS = ("_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS")


def read_architectures(folder: Path) -> set[str]:
    """Return the architectures of one release's registry."""
    tables = _assigned(folder / _REGISTRY, ast.Dict)
    keys = {name: node.keys for name, node in tables.items() if isinstance(node, ast.Dict)}
    return {
        key.value
        for name, found in keys.items()
        if name not in _NO_MODELS
        for key in found
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    }


def read_methods(folder: Path) -> set[str]:
    """Return the methods of one release: a literal type, before 0.8 a list or the keys of a table."""
    every = _assigned(folder / _METHODS, ast.AST)
    node = every.get("QuantizationMethods") or every["QUANTIZATION_METHODS"]
    parts = node.keys if isinstance(node, ast.Dict) else list(ast.walk(node))
    return {
        part.value
        for part in parts
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


def spans(found: Mapping[str, set[str]], names: Iterable[str]) -> dict[str, list[str | None]]:
    """Return the first release that has a name and the first one after that has not, by name; both null for none."""
    releases = list(found)
    result: dict[str, list[str | None]] = {}
    for name in sorted(names):
        having = [each for each in releases if name in found[each]]
        later = releases[releases.index(having[-1]) + 1 :] if having else []
        result[name] = [having[0] if having else None, later[0] if later else None]
    return result


def _assigned(path: Path, kind: type[ast.AST]) -> dict[str, ast.AST]:
    """Return what names are set to at the top of a module."""
    found: dict[str, ast.AST] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, kind):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {each.id: node.value for each in targets if isinstance(each, ast.Name)}
    return found


def main(arguments: list[str]) -> None:
    """Write the releases of what the file names."""
    path = Path(arguments[0])
    folders = dict(each.split("=", 1) for each in arguments[1:])
    kept = json.loads(path.read_text(encoding="utf-8"))
    models = {release: read_architectures(Path(each)) for release, each in folders.items()}
    methods = {release: read_methods(Path(each)) for release, each in folders.items()}
    kinds = kept["model_types"] | kept["checkpoints"]
    named = {name for names in kinds.values() for name in names}
    kept["releases"] = list(folders)
    kept["architectures"] = spans(models, named)
    kept["methods"] = spans(methods, set().union(*methods.values()))
    text = re.sub(r"\[[^\[\]]*\]", _on_one_line, json.dumps(kept, indent=1))
    path.write_text(text + "\n", encoding="utf-8")


def _on_one_line(found: re.Match[str]) -> str:
    return json.dumps(json.loads(found[0]))


if __name__ == "__main__":
    main(sys.argv[1:])
