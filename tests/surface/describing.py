"""Writes down what users and programs rely on: the HTTP API, the command line, the names of the packages.

Only what a program could notice: no help texts and no descriptions, so that a better sentence changes nothing here.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterator
from typing import Any

import click
import yaml

from exo_inference import wire
from exo_inference.controller.http.routes import ROUTES
from scripts.generate_cli_reference import walk_all

PACKAGES = (
    "exo_inference",
    "exo_inference.sdk",
    "exo_inference.wire",
    "exo_inference.resources",
    "exo_inference.engines",
    "exo_inference.planner",
    "exo_inference.preflight",
    "exo_engine",
    "exo_engine.simulation",
    "exo_engine.tokenizer",
)
_PROSE = ("description", "title")


def http_api() -> str:
    """Return an OpenAPI document of what the controller serves: paths, methods, and all messages."""
    document = {
        "openapi": "3.1.0",
        "info": {"title": "exo-inference", "version": "v2"},
        "paths": dict(sorted(_paths())),
        "components": {"schemas": _schemas()},
    }
    return yaml.safe_dump(document, sort_keys=False, width=120)


def _paths() -> Iterator[tuple[str, dict[str, Any]]]:
    for route in ROUTES:
        yield route.path, {method.lower(): {} for method in sorted(route.methods or ())}


def _schemas() -> dict[str, Any]:
    """Return every message and what stands in it, each under its name."""
    schemas: dict[str, Any] = {}
    for name in wire.__all__:
        member = getattr(wire, name)
        if inspect.isclass(member) and issubclass(member, wire.WireModel):
            schema = member.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {name: schema}
    return {name: _without_prose(schema) for name, schema in sorted(schemas.items())}


def _without_prose(value: Any) -> Any:
    """Leave out what only people read; a field that is called `description` stays."""
    if isinstance(value, list):
        return [_without_prose(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        key: {name: _without_prose(part) for name, part in entry.items()}
        if key == "properties"
        else _without_prose(entry)
        for key, entry in value.items()
        if key not in _PROSE
    }


def command_line() -> str:
    """Return every command with its other names, its arguments and its options, hidden ones too."""
    parts = []
    for command, ctx in walk_all():
        shared = (
            {p.name for p in ctx.parent.command.get_params(ctx.parent)} if ctx.parent else set()
        )
        lines = [ctx.command_path, *(f"  or {name}" for name in _aliases(command, ctx))]
        own = {param.name for param in command.params}
        for param in command.get_params(ctx):
            if param.name in own or param.name not in shared:
                lines.append(f"  {_parameter(param)}")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _aliases(command: click.Command, ctx: click.Context) -> tuple[str, ...]:
    members = getattr(ctx.parent.command, "members", ()) if ctx.parent else ()
    of_member = [m.aliases for m in members if m.name == command.name]
    return tuple(sorted(of_member[0])) if of_member else ()


def _parameter(param: click.Parameter) -> str:
    named = isinstance(param, click.Option)
    words = [", ".join([*param.opts, *param.secondary_opts]) if named else f"<{param.name}>"]
    if not getattr(param, "is_flag", False):
        choices = getattr(param.type, "choices", None)
        words.append("|".join(map(str, choices)) if choices else param.type.name)
    words += [name for name in ("required", "multiple", "hidden") if getattr(param, name, False)]
    words += [f"nargs={param.nargs}"] if param.nargs != 1 else []
    words += [f"env {param.envvar}"] if param.envvar else []
    default = param.to_info_dict()["default"]
    if isinstance(default, bool | int | float | str) and default not in ("", False):
        words.append(f"default {json.dumps(default)}")
    return "  ".join(words)


def python_names() -> str:
    """Return what each package says is to be imported from it."""
    parts = []
    for package in PACKAGES:
        names = importlib.import_module(package).__all__
        parts.append("\n".join([package, *(f"  {name}" for name in sorted(names))]) + "\n")
    return "\n".join(parts)
