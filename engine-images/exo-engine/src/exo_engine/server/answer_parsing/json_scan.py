"""Follows JSON as its text grows: is it whole, may it become so, or is it none?

Strict as RFC 8259, and linear: each character is looked at once.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NoReturn

MAX_DEPTH = 100
_MAX_SCALAR = 400
_STRING_BODY = re.compile(r'[^"\\\x00-\x1f]*')
_BLANK = re.compile(r"[ \t\n\r]*")
_SCALAR = re.compile(r"[-+.0-9A-Za-z]*")
_WHOLE_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_SCALAR_STARTS = "-0123456789tfn"
_WORDS = ("true", "false", "null")
_HEX = frozenset("0123456789abcdefABCDEF")

Status = Literal["open", "whole", "broken"]
_Expected = Literal["value", "value or ]", "key", "key or }", "colon", "comma"]


class JsonScan:
    """One object or array, whose text grows at the end.

    Attributes:
        position: up to here the text was read. Where the value is whole, its end; where it is broken, what is
            no JSON.
    """

    def __init__(self, position: int = 0) -> None:
        self.position = position
        self._stack: list[str] = []
        self._expected: _Expected = "value"
        self._in_string = False
        self._scalar_at: int | None = None

    def advance(self, text: str, *, is_last: bool = False) -> Status:
        """Read on in the text, of which more may have come since.

        Args:
            text: as before, and possibly more.
            is_last: no more will come.
        """
        while self.position < len(text):
            status = self._step(text, is_last)
            if status is None:
                break
            if status != "open":
                return status
        return "broken" if is_last else "open"

    def _step(self, text: str, is_last: bool) -> Status | None:
        """Read a bit; None: it needs more text."""
        if self._in_string:
            return self._read_string(text)
        if self._scalar_at is not None:
            return self._read_scalar(text)
        self.position = _end(_BLANK, text, self.position)
        if self.position == len(text):
            return "open"
        return self._read_sign(text[self.position])

    def _read_string(self, text: str) -> Status | None:
        self.position = _end(_STRING_BODY, text, self.position)
        if self.position == len(text):
            return "open"
        if text[self.position] == "\\":
            return self._read_escape(text)
        if text[self.position] != '"':
            return "broken"
        self.position += 1
        self._in_string = False
        is_key = self._expected in ("key", "key or }")
        return self._expect("colon" if is_key else "comma")

    def _read_escape(self, text: str) -> Status | None:
        at = self.position
        if at + 1 == len(text):
            return None
        length = 6 if text[at + 1] == "u" else 2
        if text[at + 1] not in 'u"\\/bfnrt' or not _HEX.issuperset(text[at + 2 : at + length]):
            return "broken"
        if at + length > len(text):
            return None
        self.position += length
        return "open"

    def _read_scalar(self, text: str) -> Status | None:
        begin = self._scalar_at or 0
        self.position = _end(_SCALAR, text, max(begin, self.position))
        scalar = text[begin : min(self.position, begin + _MAX_SCALAR + 1)]
        if len(scalar) > _MAX_SCALAR or not _may_be_scalar(scalar):
            return "broken"
        if self.position == len(text):
            return "open"
        if not _WHOLE_SCALAR.fullmatch(scalar):
            return "broken"
        self._scalar_at = None
        return self._expect("comma")

    def _read_sign(self, sign: str) -> Status:
        expected = self._expected
        if sign in "{[" and expected in ("value", "value or ]"):
            return self._open(sign)
        if sign in "}]" and expected in ("comma", "value or ]", "key or }"):
            return self._close(sign)
        if not self._stack:
            return "broken"
        if sign == '"' and expected not in ("colon", "comma"):
            self._in_string = True
        elif sign == ":" and expected == "colon":
            self._expected = "value"
        elif sign == "," and expected == "comma":
            self._expected = "key" if self._stack[-1] == "}" else "value"
        elif sign in _SCALAR_STARTS and expected in ("value", "value or ]"):
            self._scalar_at = self.position
            return "open"
        else:
            return "broken"
        self.position += 1
        return "open"

    def _open(self, sign: str) -> Status:
        if len(self._stack) == MAX_DEPTH:
            return "broken"
        self._stack.append("}" if sign == "{" else "]")
        self.position += 1
        return self._expect("key or }" if sign == "{" else "value or ]")

    def _close(self, sign: str) -> Status:
        wrong = {"key or }": "]", "value or ]": "}"}
        if self._stack[-1] != sign or wrong.get(self._expected) == sign:
            return "broken"
        self._stack.pop()
        self.position += 1
        return self._expect("comma") if self._stack else "whole"

    def _expect(self, expected: _Expected) -> Status:
        self._expected = expected
        return "open"


def parse_json(text: str) -> Any:
    """Return the value of JSON text.

    Raises:
        ValueError: it is not JSON, or too deep, or has a number that is none.
    """
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def dump_json(value: Any) -> str:
    """Return a value as JSON text.

    Raises:
        ValueError: it has a number that JSON cannot say, or is too deep.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _may_be_scalar(scalar: str) -> bool:
    return not scalar[:1].isalpha() or any(word.startswith(scalar) for word in _WORDS)


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return match.end() if match else position
