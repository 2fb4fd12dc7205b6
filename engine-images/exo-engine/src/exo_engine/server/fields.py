"""Read typed fields out of a JSON body, and say exactly what is wrong with one.

Plain code instead of a validation library: the engine also runs where there is none. A field that
is absent or null has its default.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from exo_engine.server.api_errors import ApiError, bad_request

_SHOWN_CHARACTERS = 100


class Fields:
    """One JSON object of a request, read field by field."""

    def __init__(self, values: Mapping[str, Any], *, prefix: str = "") -> None:
        self.values = values
        self._prefix = prefix

    def name(self, name: str) -> str:
        """Return a field's name as the client knows it, for messages."""
        return f"{self._prefix}{name}"

    def has(self, name: str) -> bool:
        """Say whether a field is there and not null."""
        return self.values.get(name) is not None

    def wrong(self, name: str, expected: str) -> ApiError:
        """Return the error for a field that is not what was expected."""
        shown = json.dumps(self.values.get(name), ensure_ascii=False, default=str)
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "..."
        return bad_request(f"{self.name(name)} must be {expected}, got {shown}", self.name(name))

    def integer(
        self,
        name: str,
        default: int | None = None,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | None:
        """Return a whole number within limits."""
        value = self.values.get(name)
        if value is None:
            return default
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        if not is_integer or not _is_within(value, minimum, maximum):
            raise self.wrong(name, "an integer" + _limits(minimum, maximum))
        return int(value)

    def number(
        self,
        name: str,
        default: float,
        *,
        minimum: float | None = None,
        maximum: float | None = None,
    ) -> float:
        """Return a finite number within limits."""
        value = self.values.get(name)
        if value is None:
            return default
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or not _is_within(value, minimum, maximum):
            raise self.wrong(name, "a number" + _limits(minimum, maximum))
        return float(value)

    def boolean(self, name: str, default: bool = False) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def string(self, name: str) -> str | None:
        """Return text, or None if the field is absent."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def mapping(self, name: str) -> dict[str, Any]:
        """Return a JSON object, empty if the field is absent."""
        value = self.values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return value

    def token_ids(self, name: str, vocabulary_size: int) -> tuple[int, ...]:
        """Return a list of token ids, empty if the field is absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            type(each) is int and 0 <= each < vocabulary_size for each in value
        ):
            raise self.wrong(name, f"a list of token ids from 0 to {vocabulary_size - 1}")
        return tuple(value)


def parse_object(body: bytes) -> Fields:
    """Read a request body.

    Raises:
        ApiError: it is not a JSON object.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise bad_request(f"the request body is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(value, dict):
        raise bad_request("the request body must be a JSON object", code="invalid_json")
    return Fields(value)


def _is_within(value: float, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _limits(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum:g} to {maximum:g}"
    if minimum is not None:
        return f" of {minimum:g} or more"
    return "" if maximum is None else f" of {maximum:g} or less"
