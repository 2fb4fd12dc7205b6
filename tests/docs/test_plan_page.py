"""docs/reference/plan.md and the plan's types say the same: every field, its type, nothing else."""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest

from exo_inference.wire import WireModel, plans

PAGE = Path(__file__).parents[2] / "docs/reference/plan.md"
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
