"""Llama 3.1, 3.2 and 4: `{"name": ..., "parameters": {...}}`, several with `;` between.

`<|python_tag|>` may stand before them. Source: the templates of meta-llama/Llama-3.1-8B-Instruct and
Llama-3.2-3B-Instruct.
"""

from __future__ import annotations

from exo_engine.server.answer_parsing.json_calls import read_call
from exo_engine.server.answer_parsing.json_scan import JsonScan, Status, parse_json
from exo_engine.server.answer_parsing.machine import CallMachine
from exo_engine.server.answer_parsing.pieces import Piece

_TAG = "<|python_tag|>"


class LlamaJson(CallMachine):
    """Any JSON object with a name and parameters is a call, wherever it stands."""

    starts = ("{", _TAG)

    def _begin(self, marker: str) -> None:
        self._scan = JsonScan()
        self._state = self._at_tag if marker == _TAG else self._in_object

    def _at_tag(self, pieces: list[Piece]) -> bool:
        self._take(len(_TAG))
        self._state = self._in_content
        return True

    def _in_object(self, pieces: list[Piece]) -> bool:
        status: Status = self._scan.advance(self._held, is_last=self._is_last)
        if status == "open":
            return False
        # What is no JSON is given back up to where that showed, so that no text is looked at twice.
        text = self._take(
            max(1, self._scan.position) if status == "broken" else self._scan.position
        )
        try:
            calls = [read_call(parse_json(text), keys=("arguments", "parameters"))]
        except ValueError:
            calls = []
        self._end_call(calls, text, pieces)
        if calls:
            self._state = self._after_object
        return True

    def _after_object(self, pieces: list[Piece]) -> bool:
        """Drop what separates two calls."""
        self._held = self._held.lstrip()
        if self._held:
            self._held = self._held.removeprefix(";")
            self._state = self._in_content
        return bool(self._held)
