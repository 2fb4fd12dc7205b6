"""docs/reference/plan.md and the plan's types say the same: every field, its type, nothing else."""

from __future__ import annotations

import ast
import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from exo_inference.planner.speed import processor
from exo_inference.wire import WireModel, plans

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/plan.md"
OBJECTS = [
    value
    for value in vars(plans).values()
    if isinstance(value, type)
    and issubclass(value, WireModel)
    and value.__module__ == plans.__name__
]


def documented(name: str) -> dict[str, str]:
    """Return the fields and types of one table of the page."""
    section = PAGE.read_text().partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", section, re.MULTILINE))


def type_text(annotation: Any) -> str:
    """Return a type in the words of the page."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        parts = [each for each in typing.get_args(annotation) if each is not types.NoneType]
        return f"{type_text(parts[0])} or null"
    if typing.get_origin(annotation) is typing.Annotated:
        return type_text(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) is list:
        return f"list of {type_text(typing.get_args(annotation)[0])}"
    if typing.get_origin(annotation) is dict:
        return "object"
    words = {int: "integer", float: "number", bool: "boolean", str: "text"}
    if annotation in words:
        return words[annotation]
    return "text" if annotation is plans.PlanVerdict else annotation.__name__


@pytest.mark.parametrize("model", OBJECTS, ids=lambda model: model.__name__)
def test_every_field_is_on_the_page_with_its_type(model: type[WireModel]) -> None:
    hints = typing.get_type_hints(model)
    fields = {
        (field.alias or name).replace("-", "_"): type_text(hints[name])
        for name, field in model.model_fields.items()
    }
    assert documented(model.__name__) == fields


def test_the_page_has_no_other_tables() -> None:
    titles = re.findall(r"^## (\w+)$", PAGE.read_text(), re.MULTILINE)
    assert sorted(titles) == sorted(model.__name__ for model in OBJECTS)


def codes_of(source: Path) -> set[str]:
    """Return the codes that a file gives to problems: words, and its own names for words."""
    tree = ast.parse(source.read_text("utf-8"))
    words = {
        node.targets[0].id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    given = [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Problem", "_refusal")
        and node.args
    ]
    found = {
        each.value if isinstance(each, ast.Constant) else words.get(ast.unparse(each))
        for each in given
    }
    named = {
        value for name, value in words.items() if name.endswith("CODE") or name == "OF_PROCESSOR"
    }
    return {each for each in found | named if isinstance(each, str)}


def test_every_code_of_a_plan_is_on_the_page() -> None:
    listed = PAGE.read_text("utf-8").partition("Codes of the plan:")[2].partition("\n\n")[0]
    codes = {
        code for each in (ROOT / "exo_inference/planner").rglob("*.py") for code in codes_of(each)
    }
    assert {"memory", "processor", "batch-invariant", "cuda-graphs"} <= codes
    assert codes - set(re.findall(r"`([^`]+)`", listed)) == set()


@pytest.mark.parametrize("kind", ["PromptSpeed", "BatchSpeed"])
def test_what_limits_a_speed_on_a_processor_is_on_the_page(kind: str) -> None:
    section = PAGE.read_text("utf-8").partition(f"\n## {kind}\n")[2].partition("\n## ")[0]
    parts = [processor._READS, processor._PRODUCTS, processor._REST]
    parts += [processor._CACHE] if kind == "BatchSpeed" else []
    on_a_cpu = section.partition("on a CPU")[2].partition("|")[0]
    assert sorted(re.findall(r"`([^`]+)`", on_a_cpu)) == sorted(parts)
