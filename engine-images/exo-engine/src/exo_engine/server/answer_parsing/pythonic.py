"""Llama 3.2 and 4, OLMo 3 and ToolACE: `[weather(city="Bern", days=2), time()]`.

Llama 4 puts `<|python_start|>` and `<|python_end|>` around it. Only literals are taken, by a reader of its own:
Python's own parser can be made to use up the stack. Source: the templates of
meta-llama/Llama-4-Scout-17B-16E-Instruct and Team-ACE/ToolACE-8B.
"""

from __future__ import annotations

import re
from typing import Any

from exo_engine.server.answer_parsing.json_scan import dump_json
from exo_engine.server.answer_parsing.machine import CallMachine
from exo_engine.server.answer_parsing.pieces import Call, Piece

_MAX_DEPTH = 50
_START, _END = "<|python_start|>", "<|python_end|>"
_OPENING = re.compile(r"\[\s*[A-Za-z_][\w.]*\s*\(")
_MAY_OPEN = re.compile(r"\[\s*(?:[A-Za-z_][\w.]*\s*)?")
_UNQUOTED = re.compile(r"[^'\"\\]+")
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][\w.]*)|(?P<number>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<string>'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")|(?P<sign>[-+\[\](){},=:]))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CLOSING = {"[": "]", "(": ")", "{": "}"}


class Pythonic(CallMachine):
    """A list of calls at the beginning of the answer or of a line."""

    starts = ("[", _START, _END)

    def _begin(self, marker: str) -> None:
        self._marker = marker
        self._state = self._at_tag if marker in (_START, _END) else self._at_list
        self._stack: list[str] = []
        self._position = 0
        self._quote = ""

    def _at_tag(self, pieces: list[Piece]) -> bool:
        self._take(len(self._marker))
        self._state = self._in_content
        self._is_after_call = True
        return True

    def _at_list(self, pieces: list[Piece]) -> bool:
        """Decide as early as can be that a bracket opens no calls."""
        if _OPENING.match(self._held):
            self._state = self._in_list
            return True
        may = _MAY_OPEN.match(self._held)
        if may and may.end() == len(self._held) and not self._is_last:
            return False
        self._end_call([], self._take(1), pieces)
        return True

    def _in_list(self, pieces: list[Piece]) -> bool:
        end = self._find_end()
        if end is None and not self._is_last:
            return False
        text = self._take(len(self._held) if end is None else end)
        self._end_call(_read_calls(text), text, pieces)
        return True

    def _find_end(self) -> int | None:
        """Return where the list ends, or where it cannot go on; None where more text is needed."""
        text = self._held
        while self._position < len(text):
            sign = text[self._position]
            if self._quote:
                if not self._skip_quoted(sign, text):
                    return None
                continue
            if sign in "'\"":
                self._quote = sign
            elif sign in _CLOSING:
                self._stack.append(_CLOSING[sign])
            elif sign in "])}" and (self._stack.pop() != sign or not self._stack):
                return self._position + 1
            if len(self._stack) > _MAX_DEPTH:
                return self._position
            self._position += 1
        return None

    def _skip_quoted(self, sign: str, text: str) -> bool:
        """Go on within a string; False: it needs more text."""
        if sign == "\\":
            if self._position + 1 == len(text):
                return False
            self._position += 2
        elif sign == self._quote:
            self._quote = ""
            self._position += 1
        else:
            plain = _UNQUOTED.match(text, self._position)
            self._position = plain.end() if plain else self._position + 1
        return True


def _read_calls(text: str) -> list[Call]:
    try:
        return _Reader(text).calls()
    except ValueError:
        return []


class _Reader:
    """Reads a whole list of calls."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0

    def calls(self) -> list[Call]:
        """Return the calls.

        Raises:
            ValueError: the text is not a list of calls with literal arguments.
        """
        self._expect("[")
        calls = []
        while not self._take("]"):
            calls.append(self._call())
            if not self._take(","):
                self._expect("]")
                break
        if self._at != len(self._tokens):
            raise ValueError("text after the list")
        return calls

    def _call(self) -> Call:
        name = self._next("name")
        self._expect("(")
        arguments: dict[str, Any] = {}
        while not self._take(")"):
            key = self._next("name")
            self._expect("=")
            arguments[key] = self._value(0)
            if not self._take(","):
                self._expect(")")
                break
        return Call(name, dump_json(arguments))

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise ValueError("nested too deeply")
        for opening in ("[", "("):
            if self._take(opening):
                return self._items(_CLOSING[opening], depth)
        if self._take("{"):
            return self._entries(depth)
        if self._take("-"):
            return -_number(self._next("number"))
        self._take("+")
        kind, text = self._peek()
        self._at += 1
        if kind == "number":
            return _number(text)
        if kind == "string":
            return self._string(text)
        if kind == "name" and text in _WORDS:
            return _WORDS[text]
        raise ValueError(f"no literal: {text[:20]!r}")

    def _string(self, text: str) -> str:
        """Return a string, and those beside it, which Python puts together."""
        parts = [_unescape(text)]
        while self._at < len(self._tokens) and self._peek()[0] == "string":
            parts.append(_unescape(self._next("string")))
        return "".join(parts)

    def _items(self, closing: str, depth: int) -> list[Any]:
        items = []
        while not self._take(closing):
            items.append(self._value(depth + 1))
            if not self._take(","):
                self._expect(closing)
                break
        return items

    def _entries(self, depth: int) -> dict[str, Any]:
        entries = {}
        while not self._take("}"):
            key = self._value(depth + 1)
            if not isinstance(key, str):
                raise ValueError("a key that is no string")
            self._expect(":")
            entries[key] = self._value(depth + 1)
            if not self._take(","):
                self._expect("}")
                break
        return entries

    def _peek(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise ValueError("the text ends within a call")
        return self._tokens[self._at]

    def _next(self, kind: str) -> str:
        found, text = self._peek()
        if found != kind:
            raise ValueError(f"{text[:20]!r} where a {kind} should be")
        self._at += 1
        return text

    def _take(self, sign: str) -> bool:
        is_there = self._peek() == ("sign", sign)
        self._at += is_there
        return is_there

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise ValueError(f"no {sign!r}")


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise ValueError(f"no token: {text[at : at + 20]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return tokens


def _number(text: str) -> float:
    return float(text) if any(each in text for each in ".eE") else int(text)


def _unescape(quoted: str) -> str:
    return _ESCAPE.sub(_escaped, quoted[1:-1])


def _escaped(match: re.Match[str]) -> str:
    text = match[1]
    if len(text) > 1:
        code = int(text[1:], 16)
        if code > 0x10FFFF:
            raise ValueError("no character")
        return chr(code)
    if text == "\n":
        return ""
    return _ESCAPED.get(text, text if text in "'\"\\" else f"\\{text}")
