"""gpt-oss: messages in channels, `<|channel|>analysis<|message|>...<|end|><|start|>assistant...`.

`analysis` is reasoning, `final` and a `commentary` to nobody are content, and what goes `to=functions.NAME` is a
call. Source: the description of the harmony format, github.com/openai/harmony, docs/format.md.
"""

from __future__ import annotations

import re

from exo_engine.server.answer_parsing.json_scan import parse_json
from exo_engine.server.answer_parsing.machine import Machine, first_marker, overlap
from exo_engine.server.answer_parsing.pieces import Call, Content, Piece, Reasoning

_MESSAGE = "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>")
_START = "<|start|>"
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_HEADER_STARTS = ("<|start|>", "<|channel|>", "to=")
_MAX_HEADER = 1000
_FUNCTIONS = "functions."


class Harmony(Machine):
    """Reads all messages of an answer."""

    def __init__(self, *, prompt: str = "", has_calls: bool = True) -> None:
        """Prepare.

        Args:
            prompt: what the model goes on with; it may end inside a message.
            has_calls: calls are looked for; otherwise they are content.
        """
        super().__init__(self._in_header)
        self._has_calls = has_calls
        self._kind: type[Reasoning] | type[Content] = Content
        self._recipient: str | None = None
        self._seen: set[type] = set()
        self._is_apart = False
        _, start, tail = prompt.rpartition(_START)
        if start and _MESSAGE in tail and not any(end in tail for end in _ENDS):
            self._begin_message(tail.partition(_MESSAGE)[0])

    def _in_header(self, pieces: list[Piece]) -> bool:
        text = self._held.lstrip()
        if any(each.startswith(text) or text.startswith(each) for each in _HEADER_STARTS):
            end = text.find(_MESSAGE, 0, _MAX_HEADER) + len(_MESSAGE)
            if end >= len(_MESSAGE):
                self._take(len(self._held) - len(text) + end)
                self._begin_message(text[:end])
                return True
            if not self._is_last and len(text) < _MAX_HEADER:
                return False
            if self._is_last and text.startswith(_HEADER_STARTS):
                self._held = ""  # an answer cut inside a header has said nothing
                return False
        self._held = self._held.removeprefix(_START)
        self._begin_message("")
        return True

    def _begin_message(self, header: str) -> None:
        channel = _CHANNEL.search(header)
        recipient = _RECIPIENT.search(header)
        self._recipient = recipient[1] if recipient else None
        self._kind = Reasoning if channel and channel[1] == "analysis" else Content
        self.is_reasoning = self._kind is Reasoning and self._recipient is None
        self._is_apart = self._kind in self._seen
        is_call = self._has_calls and (self._recipient or "").startswith(_FUNCTIONS)
        self._state = self._in_call if is_call else self._in_message

    def _in_message(self, pieces: list[Piece]) -> bool:
        found = first_marker(self._held, _ENDS)
        sure = found[0] if found else len(self._held)
        if not found and not self._is_last:
            sure -= overlap(self._held, _ENDS)
        self._say(self._take(sure), pieces)
        if found:
            self._end_message(found[1])
        return found is not None

    def _in_call(self, pieces: list[Piece]) -> bool:
        found = first_marker(self._held, _ENDS)
        if not found and not self._is_last:
            return False
        text = self._take(found[0] if found else len(self._held)).strip()
        try:
            parse_json(text)
            pieces.append(Call((self._recipient or "").removeprefix(_FUNCTIONS), text))
        except ValueError:
            self._kind, self._is_apart = Content, Content in self._seen
            self._say(text, pieces)
        if found:
            self._end_message(found[1])
        return found is not None

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if not text:
            return
        if self._is_apart:
            text = "\n" + text
        self._is_apart = False
        self._seen.add(self._kind)
        pieces.append(self._kind(text))

    def _end_message(self, marker: str) -> None:
        if marker != _START:  # that belongs to the next header
            self._take(len(marker))
        self._state = self._in_header
        self.is_reasoning = False
