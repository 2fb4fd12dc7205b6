"""Flags as they are written, each under its name, so that nobody looks for a name in text. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple


class WrittenFlag(NamedTuple):
    """A flag as it was written.

    Attributes:
        name: without dashes, as in the reference of its engine; empty for what is no flag.
        items: of the argument vector.
    """

    name: str
    items: tuple[str, ...]


def write_flag(field: str, value: object) -> WrittenFlag:
    """Return the flag that sets a field, in vLLM's form."""
    name = field.replace("_", "-")
    if isinstance(value, bool):
        return WrittenFlag(name, (f"--{name}" if value else f"--no-{name}",))
    return WrittenFlag(name, (f"--{name}={_written(value)}",))


def _written(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return repr(value) if isinstance(value, float) else str(value)
