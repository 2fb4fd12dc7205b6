"""Calls that are JSON objects with a name and arguments."""

from __future__ import annotations

from typing import Any

from exo_engine.server.answer_parsing.json_scan import dump_json
from exo_engine.server.answer_parsing.pieces import Call


def read_call(value: Any, *, keys: tuple[str, ...] = ("arguments",)) -> Call:
    """Return the call that a JSON value is.

    Args:
        value: should be an object with `name` and one of the keys.
        keys: under which the arguments may be, the first found wins.

    Raises:
        ValueError: it is no call.
    """
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        raise ValueError("no object with a name")
    key = next((each for each in keys if each in value), None)
    if key is None:
        raise ValueError("no arguments")
    return Call(value["name"], dump_json(value[key]))
