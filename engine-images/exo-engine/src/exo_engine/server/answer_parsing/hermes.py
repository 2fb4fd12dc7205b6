"""Hermes, Qwen 2.5 and Qwen 3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

Source: the templates in tokenizer_config.json of NousResearch/Hermes-3-Llama-3.1-8B and Qwen/Qwen3-8B.
"""

from __future__ import annotations

from exo_engine.server.answer_parsing.json_calls import read_call
from exo_engine.server.answer_parsing.json_scan import parse_json
from exo_engine.server.answer_parsing.machine import CallMachine, overlap
from exo_engine.server.answer_parsing.pieces import Call, Piece


class TaggedCalls(CallMachine):
    """Calls between a start and an end marker; what is between them is read once the end is there."""

    starts: tuple[str, ...] = ("<tool_call>",)
    end = "</tool_call>"

    def _begin(self, marker: str) -> None:
        self._state = self._in_call
        self._sought = len(marker)

    def _in_call(self, pieces: list[Piece]) -> bool:
        at = self._held.find(self.end, self._sought)
        if at < 0:
            self._sought = max(self._sought, len(self._held) - overlap(self._held, (self.end,)))
            if not self._is_last:
                return False
            text = self._take(len(self._held))  # the end of an answer ends a call, too
        else:
            text = self._take(at + len(self.end))
        body = text.removesuffix(self.end)
        self._end_call(self._read(body), text, pieces)
        return True

    def _read(self, text: str) -> list[Call]:
        """Return the calls in a text that begins with a start marker and has lost its end marker."""
        raise NotImplementedError


class Hermes(TaggedCalls):
    """One JSON object per pair of tags."""

    def _read(self, text: str) -> list[Call]:
        try:
            return [read_call(parse_json(text.removeprefix("<tool_call>")))]
        except ValueError:
            return []
