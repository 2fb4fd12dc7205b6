"""An `Architecture` as JSON and back: how the child tells the controller what a model is.

JSON and not pickle, because the child has just read what a stranger wrote; each value is held
against the type that the field has. Layers that are one object stay one object, as planning counts them.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from exo_inference.foreign_files.errors import ForeignFileError, shown
from exo_inference.planner.model.architecture import Architecture

_MAX_NUMBER = 2**80
_MAX_TEXT = 100_000
_MAX_REASON = 512


class WrongForm(ValueError):
    """The JSON is not what `encode` writes."""


def encode(model: Architecture) -> dict[str, Any]:
    """Return a model as JSON: a table of its parts, each named by its place there.

    Raises:
        ForeignFileError: a text or a number of it is beyond all models.
    """
    parts: list[dict[str, Any]] = []
    places: dict[int, int] = {}

    def write(value: Any) -> Any:
        if isinstance(value, Enum):
            return value.value
        if isinstance(value, tuple | frozenset):
            return [write(each) for each in (sorted(value) if _is_set(value) else value)]
        if not dataclasses.is_dataclass(value):
            return _bounded(value)
        if id(value) not in places:
            fields = {f.name: write(getattr(value, f.name)) for f in dataclasses.fields(value)}
            places[id(value)] = len(parts)
            parts.append(fields)
        return places[id(value)]

    return {"root": write(model), "parts": parts}


def decode(document: Any) -> Architecture:
    """Return the model that `encode` wrote.

    Raises:
        WrongForm: it is something else.
    """
    parts = document.get("parts") if isinstance(document, dict) else None
    if not isinstance(parts, list):
        raise WrongForm("there are no parts")
    made: dict[tuple[type, int], Any] = {}

    def read(kind: Any, value: Any, below: int) -> Any:
        origin, args = typing.get_origin(kind), typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            if value is None and type(None) in args:
                return None
            (kind,) = (each for each in args if each is not type(None))
            return read(kind, value, below)
        if origin in (tuple, frozenset):
            return _sequence(origin, args, value, lambda k, v: read(k, v, below))
        if dataclasses.is_dataclass(kind):
            return part(kind, value, below)
        return _scalar(kind, value)

    def part(kind: Any, place: Any, below: int) -> Any:
        # A part is written after those that it holds, so places fall and no circle can be named.
        if type(place) is not int or not 0 <= place < min(below, len(parts)):
            raise WrongForm(f"there is no part {place!r:.20}")
        if (kind, place) not in made:
            fields, hints = parts[place], _hints(kind)
            if not isinstance(fields, dict) or set(fields) != set(hints):
                raise WrongForm(f"a {kind.__name__} has other fields")
            made[kind, place] = kind(
                **{name: read(hint, fields[name], place) for name, hint in hints.items()}
            )
        return made[kind, place]

    model: Architecture = part(Architecture, document.get("root"), len(parts))
    return model


def printable(model: Architecture) -> Architecture:
    """Return a model whose words may be shown: some are the file's own."""
    return dataclasses.replace(
        model,
        name=shown(model.name),
        model_type=shown(model.model_type, 128),
        cannot_size=None if model.cannot_size is None else shown(model.cannot_size, _MAX_REASON),
        notes=tuple(shown(note, _MAX_REASON) for note in model.notes),
    )


def _bounded(value: Any) -> Any:
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        raise ForeignFileError(f"config.json holds a text of {len(value)} characters")
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise ForeignFileError("the sizes in the model's files are beyond all models")
    return value


def _is_set(value: object) -> bool:
    return isinstance(value, frozenset)


@functools.cache
def _hints(kind: type) -> Mapping[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _sequence(origin: Any, args: tuple[Any, ...], value: Any, read: Any) -> Any:
    if not isinstance(value, list):
        raise WrongForm(f"expected a list, found {type(value).__name__}")
    if origin is tuple and args[-1] is not Ellipsis:
        if len(value) != len(args):
            raise WrongForm(f"expected {len(args)} entries, found {len(value)}")
        return tuple(read(kind, each) for kind, each in zip(args, value, strict=True))
    return origin(read(args[0], each) for each in value)


def _scalar(kind: Any, value: Any) -> Any:
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError as error:
            raise WrongForm(f"there is no {kind.__name__} {value!r:.40}") from error
    wanted = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        raise WrongForm(f"expected {kind}, found {type(value).__name__}")
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        raise WrongForm("a text is too long")
    if isinstance(value, int) and abs(value) > _MAX_NUMBER:
        raise WrongForm("a number is too large")
    return value
