"""Reads facts from unpacked vLLM source trees that the flags file does not hold.

Run as `python scripts/vllm_catalogue/read_sources.py 0.12.0=DIR 0.16.0=DIR … > sources.json`, each
DIR being the `vllm/` folder of that release's source distribution. Nothing is imported: the files
are parsed. Out come the flags of the HTTP server (class FrontendArgs), in the form of the flags
file; for each flag that takes a JSON object the keys it accepts, with type, first and last release;
and the choices of flags whose list in the flags file stops too early. Names, types, choices and defaults only: descriptions are our own (`descriptions.yaml`).
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Facts = dict[str, Any]

_SERVER_FILES = ("entrypoints/openai/cli_args.py", "entrypoints/common/cli_args.py")
_QUANTIZATION = "model_executor/layers/quantization/__init__.py"
_SERVER_CLASSES = ("BaseFrontendArgs", "FrontendArgs")
_ALIASES = {"ChatTemplateContentFormatOption": 'Literal["auto", "string", "openai"]'}

CHOICE_FLAGS = {
    "block-size": "CacheConfig",
    "linear-backend": "KernelConfig",
    "mamba-cache-mode": "CacheConfig",
    "moe-backend": "KernelConfig",
    "quantization": "ModelConfig",
    "sparse-indexer-topk-backend": "KernelConfig",
}
"""Flags whose choices are read here, and the class that has the field."""

OBJECT_FLAGS = {
    "attention-config": "AttentionConfig",
    "aux-output-config": "AuxOutputConfig",
    "compilation-config": "CompilationConfig",
    "diffusion-config": "DiffusionConfig",
    "ec-manager-config": "EncoderCacheManagerConfig",
    "ec-transfer-config": "ECTransferConfig",
    "engram-config": "EngramConfig",
    "eplb-config": "EPLBConfig",
    "fault-tolerance-config": "FaultToleranceConfig",
    "ir-op-priority": "IrOpPriorityConfig",
    "kernel-config": "KernelConfig",
    "kv-events-config": "KVEventsConfig",
    "kv-transfer-config": "KVTransferConfig",
    "logging-config": "LoggingConfig",
    "pooler-config": "PoolerConfig",
    "profiler-config": "ProfilerConfig",
    "reasoning-config": "ReasoningConfig",
    "speculative-config": "SpeculativeConfig",
    "structured-outputs-config": "StructuredOutputsConfig",
    "watchdog-config": "WatchdogConfig",
    "watermark-config": "WatermarkConfig",
    "weight-transfer-config": "WeightTransferConfig",
}
"""Flags whose JSON object is one configuration class of vLLM."""


def main(arguments: list[str]) -> None:
    """Print the facts of all the trees that were named."""
    trees = {version: Path(folder) for version, _, folder in (a.partition("=") for a in arguments)}
    versions = sorted(trees, key=lambda text: tuple(map(int, text.split("."))))
    facts = {
        "versions": versions,
        "flags": _merge_flags({v: _server_flags(trees[v]) for v in versions}, versions),
        "choices": _merge_choices({v: _choices(trees[v]) for v in versions}, versions),
        "keys": _merge_keys({v: _object_keys(trees[v]) for v in versions}, versions),
    }
    json.dump(facts, sys.stdout, indent=1, sort_keys=True)
    print()


def _fields(tree: ast.AST, name: str) -> Iterator[tuple[str, str, ast.expr | None]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    yield item.target.id, ast.unparse(item.annotation), item.value


def _server_flags(root: Path) -> dict[str, Facts]:
    found: dict[str, Facts] = {}
    for path in (root / name for name in _SERVER_FILES):
        tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
        for class_name in _SERVER_CLASSES:
            for name, annotation, value in _fields(tree, class_name):
                annotation = _ALIASES.get(annotation, annotation)
                kind, choices = _type(annotation)
                facts: Facts = {"type": kind, "default": _default(value)}
                if choices:
                    facts["choices"] = choices
                found[name.replace("_", "-")] = facts
    return found


def _object_keys(root: Path) -> dict[str, dict[str, str]]:
    trees = [ast.parse(path.read_text()) for path in sorted((root / "config").glob("*.py"))]
    keys: dict[str, dict[str, str]] = {}
    for flag, class_name in OBJECT_FLAGS.items():
        for tree in trees:
            for name, annotation, value in _fields(tree, class_name):
                internal = value is not None and "init=False" in ast.unparse(value)
                if not name.startswith("_") and not internal and "ClassVar" not in annotation:
                    keys.setdefault(flag, {})[name] = _simple_type(annotation)
    return keys


def _choices(root: Path) -> dict[str, list[str]]:
    paths = [*sorted((root / "config").glob("*.py")), root / _QUANTIZATION]
    trees = [ast.parse(path.read_text()) for path in paths if path.is_file()]
    names = {name: value for tree in trees for name, value in _assignments(tree)}
    found: dict[str, list[str]] = {}
    for flag, class_name in CHOICE_FLAGS.items():
        for tree in trees:
            for name, annotation, _ in _fields(tree, class_name):
                if name == flag.replace("-", "_"):
                    found[flag] = _literals(ast.parse(annotation, mode="eval").body, names)
    return found


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _literals(node: ast.expr, names: dict[str, ast.expr]) -> list[str]:
    """Return the values of all Literals in a type, through the names it is put together from."""
    if isinstance(node, ast.Name) and node.id in names:
        return _literals(names[node.id], names)
    if isinstance(node, ast.BinOp):
        return _literals(node.left, names) + _literals(node.right, names)
    if not isinstance(node, ast.Subscript):
        return []
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    found: list[str] = []
    for part in parts:
        is_value = ast.unparse(node.value) == "Literal" and isinstance(part, ast.Constant)
        found += [str(ast.literal_eval(part))] if is_value else _literals(part, names)
    return found


def _type(annotation: str) -> tuple[str, list[str]]:
    if "Literal[" in annotation:
        literal = annotation[annotation.index("Literal[") :].split(" | ")[0]
        return "enum", [str(item) for item in ast.literal_eval(literal.removeprefix("Literal"))]
    for word, kind in (("bool", "boolean"), ("list", "list"), ("dict", "json")):
        if word in annotation:
            return kind, []
    plain = {"int": "integer", "float": "number"}
    return plain.get(annotation.replace(" | None", ""), "string"), []


def _simple_type(annotation: str) -> str:
    plain = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}
    return plain.get(annotation.replace(" | None", ""), "any")


def _default(value: ast.expr | None) -> str:
    return "None" if value is None else ast.unparse(value)


def _merge_flags(found: dict[str, dict[str, Facts]], versions: list[str]) -> list[Facts]:
    records: dict[str, Facts] = {}
    for version in versions:
        for name, facts in found[version].items():
            record = records.setdefault(
                name, {"name": name, "flags": [f"--{name}"], "section": "Frontend", "defaults": {}}
            )
            record["type"] = facts["type"]
            record.setdefault("since", version)
            record["until"] = version
            _note(record["defaults"], version, facts["default"])
            if "choices" in facts:
                _note(record.setdefault("choices", {}), version, facts["choices"])
    for record in records.values():
        record["until"] = None if record["until"] == versions[-1] else record["until"]
    return sorted(records.values(), key=lambda record: str(record["name"]))


def _merge_choices(
    found: dict[str, dict[str, list[str]]], versions: list[str]
) -> dict[str, dict[str, list[str]]]:
    merged: dict[str, dict[str, list[str]]] = {}
    for version in versions:
        for flag, choices in found[version].items():
            _note(merged.setdefault(flag, {}), version, choices)
    return merged


def _note(changes: dict[str, Any], version: str, value: object) -> None:
    if not changes or list(changes.values())[-1] != value:
        changes[version] = value


def _merge_keys(
    found: dict[str, dict[str, dict[str, str]]], versions: list[str]
) -> dict[str, dict[str, list[str | None]]]:
    merged: dict[str, dict[str, list[str | None]]] = {}
    for version in versions:
        for flag, keys in found[version].items():
            for key, kind in keys.items():
                entry = merged.setdefault(flag, {}).setdefault(key, [kind, version, version])
                entry[0] = kind if entry[0] == kind else "any"
                entry[2] = version
    for keys_of_flag in merged.values():
        for entry in keys_of_flag.values():
            entry[2] = None if entry[2] == versions[-1] else entry[2]
    return merged


if __name__ == "__main__":
    main(sys.argv[1:])
