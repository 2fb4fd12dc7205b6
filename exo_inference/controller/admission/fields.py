"""What was sent of a body, with every problem found and none of it fatal.

`Fields` validates each field on its own, so that one wrong type does not hide what else is wrong;
admission adds what it finds and refuses once.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import TypeAdapter, ValidationError

from exo_inference.controller.admission.problems import Issue
from exo_inference.wire import WireModel


class Fields:
    """The fields of one body that were sent and have the right type, and what is wrong with the rest.

    Args:
        model: the form of the body.
        body: what was sent.
        may_lack: fields that the form requires and this body may leave out.

    Attributes:
        values: by Python name; fields that are missing, null or wrong are absent.
        sent: every key of the body that has a value, also those that the model does not know.
        issues: what is wrong.
    """

    def __init__(
        self, model: type[WireModel], body: dict[str, Any], may_lack: Sequence[str] = ()
    ) -> None:
        self.values: dict[str, Any] = {}
        self.issues: list[Issue] = []
        self.sent = frozenset(key for key, value in body.items() if value is not None)
        for name, (alias, required, adapter) in _adapters(model).items():
            value = body.get(alias)
            if value is None:
                if required and name not in may_lack:
                    found = "null" if alias in body else "nothing"
                    self._add((alias,), f"is required, found {found}")
                continue
            try:
                self.values[name] = adapter.validate_python(value)
            except ValidationError as exc:
                for error in exc.errors(include_url=False, include_context=False):
                    self._add((alias, *error["loc"]), _explain(error["type"], error["input"]))

    def _add(self, path: Sequence[str | int], detail: str) -> None:
        location = "$" + "".join(f"[{p}]" if isinstance(p, int) else f"['{p}']" for p in path)
        dotted = ".".join(str(part) for part in path)
        self.issues.append(Issue(f"{dotted} {detail}", location, detail))


def describe(value: object) -> str:
    """Say what kind of JSON value this is, without repeating text that may be secret."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int | float):
        text = str(value) if not isinstance(value, int) or value.bit_length() < 64 else "a huge one"
        return f"the number {text}"
    kinds: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return kinds.get(type(value), "something else")


@functools.cache
def _adapters(model: type[WireModel]) -> dict[str, tuple[str, bool, TypeAdapter[Any]]]:
    adapters: dict[str, tuple[str, bool, TypeAdapter[Any]]] = {}
    for name, field in model.model_fields.items():
        annotation: Any = field.annotation
        if field.metadata:  # pydantic keeps `Strict()` and the like apart from the type
            annotation = Annotated[annotation, *field.metadata]
        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        adapters[name] = (field.alias or name, field.is_required(), adapter)
    return adapters


def _explain(kind: str, value: object) -> str:
    expected = {
        "string_type": "text",
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "list_type": "a list",
        "model_type": "an object",
        "dict_type": "an object",
        "bool_type": "true or false",
    }.get(kind)
    if kind == "missing":
        return "is required, found nothing"
    if expected is None:
        return f"is not valid ({kind.replace('_', ' ')}), found {describe(value)}"
    return f"must be {expected}, found {describe(value)}"
