"""Read typed fields out of a JSON body, and say exactly what is wrong with one.

Plain code instead of a validation library: the engine also runs where there is none. A field that
is absent or null has its default.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from exo_engine.server.api_errors import ApiError, bad_request

_SHOWN_CHARACTERS = 100
_MAX_CONTAINERS = 1_000_000
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")


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
        shown = _shown(self.values.get(name))
        return bad_request(f"{self.name(name)} must be {expected}, got {shown}", self.name(name))

    def integer(
        self,
        name: str,
        default: int | None = None,
        *,
        minimum: int | None = None,
        maximum: int | None = None,
    ) -> int | None:
        """Return a whole number within limits, at least those of 64 bits.

        JSON has one kind of number: programs that hold all of them as floats write 16 as 16.0.
        """
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        is_integer = isinstance(value, int) and not isinstance(value, bool)
        fits = is_integer and -(2**63) <= value < 2**63
        if not fits or not _is_within(value, minimum, maximum):
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
        number = _as_float(value) if is_number else math.nan
        if not math.isfinite(number) or not _is_within(number, minimum, maximum):
            raise self.wrong(name, "a number" + _limits(minimum, maximum))
        return number

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

    def required_string(self, name: str) -> str:
        """Return text that has to be there."""
        value = self.string(name)
        if value is None:
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

    def token_ids(
        self, name: str, vocabulary_size: int, *, most: int | None = None
    ) -> tuple[int, ...]:
        """Return a list of at most `most` token ids, empty if the field is absent."""
        value = self.values.get(name)
        if value is None:
            return ()
        if most is not None and isinstance(value, list) and len(value) > most:
            raise bad_request(
                f"{self.name(name)} must have at most {most} token ids, got {len(value)}",
                self.name(name),
            )
        if not isinstance(value, list) or not all(
            type(each) is int and 0 <= each < vocabulary_size for each in value
        ):
            raise self.wrong(name, f"a list of token ids from 0 to {vocabulary_size - 1}")
        return tuple(value)


def check_token_ids(lists: Sequence[Sequence[int]], vocabulary_size: int, param: str) -> None:
    """Refuse prompts with a token that is not the model's.

    Raises:
        ApiError: with the first one, and the ids that there are.
    """
    for each in lists:
        if each and not (min(each) >= 0 and max(each) < vocabulary_size):
            token = next(token for token in each if not 0 <= token < vocabulary_size)
            raise bad_request(
                f"{param} has the token id {_shown(token)}, but the model's vocabulary has {vocabulary_size} tokens, "
                f"with ids from 0 to {vocabulary_size - 1}",
                param,
            )


def parse_object(body: bytes) -> Fields:
    """Read a request body.

    Raises:
        ApiError: it is not a JSON object.
    """
    # Counted before it is parsed: millions of empty lists take seconds and a gigabyte.
    if body.count(b"[") + body.count(b"{") > _MAX_CONTAINERS:
        raise bad_request(
            f"the request body has more than {_MAX_CONTAINERS} brackets and braces",
            code="request_too_large",
        )
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise bad_request(f"the request body is not JSON: {exc}", code="invalid_json") from exc
    except RecursionError as exc:
        raise bad_request("the request body is nested too deeply", code="invalid_json") from exc
    except ValueError as exc:  # what Python says then is advice to whoever runs it
        text = "the request body has a number of too many digits"
        raise bad_request(text, code="invalid_json") from exc
    if not isinstance(value, dict):
        raise bad_request("the request body must be a JSON object", code="invalid_json")
    if _SURROGATE_ESCAPE.search(body):
        _check_text(value)
    return Fields(value)


def _check_text(value: dict[str, Any]) -> None:
    """Refuse half of a surrogate pair, which JSON can write and which is no character."""
    for name, each in value.items():
        try:
            (name + json.dumps(each, ensure_ascii=False)).encode()
        except RecursionError as exc:
            raise bad_request("the request body is nested too deeply", code="invalid_json") from exc
        except UnicodeEncodeError as exc:
            half = ord(exc.object[exc.start])
            raise bad_request(
                f"{_shown(name)} holds half of a surrogate pair (U+{half:04X}), which is no "
                "character",
                name if name.isascii() else None,
            ) from exc


def _shown(value: Any) -> str:
    """Return the begin of a value as JSON, however large the value is."""
    if isinstance(value, str):
        value = value[: _SHOWN_CHARACTERS + 1]
    text = ""
    # Piece by piece: a list of a million items is not written out to be cut again.
    for piece in json.JSONEncoder(ensure_ascii=False, default=str).iterencode(value):
        text += piece
        if len(text) > _SHOWN_CHARACTERS:
            return text[:_SHOWN_CHARACTERS] + "..."
    return text


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _is_within(value: float, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is None or value >= minimum) and (maximum is None or value <= maximum)


def _limits(minimum: float | None, maximum: float | None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {_exact(minimum)} to {_exact(maximum)}"
    if minimum is not None:
        return f" of {_exact(minimum)} or more"
    return "" if maximum is None else f" of {_exact(maximum)} or less"


def _exact(limit: float) -> str:
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
