"""Mistral: `[TOOL_CALLS]` and a list of `{"name": ..., "arguments": {...}}`, or a name and JSON per call.

The list is that of tokenizers up to version 7; later ones write `[TOOL_CALLS]NAME[ARGS]{...}` for each call, with
`[CALL_ID]` and an id between where the template asks for it. Source: the templates of
mistralai/Mistral-7B-Instruct-v0.3 and Mistral-Small-3.2-24B-Instruct-2506.
"""

from __future__ import annotations

import re
from typing import Any

from exo_engine.server.answer_parsing.json_calls import read_call
from exo_engine.server.answer_parsing.json_scan import JsonScan, parse_json
from exo_engine.server.answer_parsing.machine import CallMachine
from exo_engine.server.answer_parsing.pieces import Call, Piece

_START = "[TOOL_CALLS]"
_HEAD = re.compile(r"\s*([^\s\[{]{1,256})\s*(?:\[CALL_ID\]\s*\w{0,64}\s*)?(?:\[ARGS\]\s*)?(?=\{)")
_MAX_HEAD = 400
"""Most characters before the arguments; what is longer is no call."""


class Mistral(CallMachine):
    """Both forms; what follows the marker tells them apart."""

    starts = (_START,)

    def _begin(self, marker: str) -> None:
        self._state = self._in_head
        self._name: str | None = None

    def _in_head(self, pieces: list[Piece]) -> bool:
        body = self._held[len(_START) :].lstrip()
        at = len(self._held) - len(body)
        if body.startswith(("[{", "[ ", "[\n", "{")):
            return self._begin_json(at)
        if head := _HEAD.match(self._held, len(_START)):
            self._name = head[1]
            return self._begin_json(head.end())
        if len(self._held) > _MAX_HEAD or self._is_last:
            self._end_call([], self._take(len(self._held)), pieces)
            return True
        return False

    def _begin_json(self, at: int) -> bool:
        self._json_at = at
        self._scan = JsonScan(at)
        self._state = self._in_json
        return True

    def _in_json(self, pieces: list[Piece]) -> bool:
        status = self._scan.advance(self._held, is_last=self._is_last)
        if status == "open":
            return False
        text = self._take(self._scan.position)
        self._end_call(self._read(text[self._json_at :]), text, pieces)
        return True

    def _read(self, text: str) -> list[Call]:
        try:
            value: Any = parse_json(text)
            if self._name is not None:
                return [Call(self._name, text)]
            calls = value if isinstance(value, list) else [value]
            return [read_call(each) for each in calls]
        except ValueError:
            return []
