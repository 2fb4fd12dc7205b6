"""DeepSeek V3, R1 and V3.1, whose calls are between special tokens.

V3 and R1 write `function`, a separator, the name and a fenced block of JSON; V3.1 the name, a separator and
JSON. Source: the templates of deepseek-ai/DeepSeek-V3, DeepSeek-R1-0528 and DeepSeek-V3.1.
"""

from __future__ import annotations

import re

from exo_engine.server.answer_parsing.hermes import TaggedCalls
from exo_engine.server.answer_parsing.json_scan import parse_json
from exo_engine.server.answer_parsing.pieces import Call, Piece

_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCED = re.compile(r"\s*([^\n]+?)\s*\n```json\n(.*?)\n?```\s*", re.DOTALL)


class DeepSeek(TaggedCalls):
    """Both forms; a fence after the separator tells them apart."""

    starts = (_ALL_BEGIN, _ALL_END, _BEGIN)
    end = _END

    def _begin(self, marker: str) -> None:
        if marker == _BEGIN:
            super()._begin(marker)
        else:
            self._state = self._at_frame
            self._frame = marker

    def _at_frame(self, pieces: list[Piece]) -> bool:
        """Drop what begins or ends all calls."""
        self._take(len(self._frame))
        self._state = self._in_content
        self._is_after_call = True
        return True

    def _read(self, text: str) -> list[Call]:
        first, _, second = text.removeprefix(_BEGIN).partition(_SEPARATOR)
        fenced = _FENCED.fullmatch(second)
        name, arguments = fenced.groups() if fenced else (first.strip(), second.strip())
        try:
            is_object = isinstance(parse_json(arguments), dict)
        except ValueError:
            return []
        return [Call(name, arguments)] if name and is_object else []
