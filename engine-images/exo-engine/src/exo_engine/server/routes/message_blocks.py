"""The content of an answer of /v1/messages: blocks that grow, and the events that tell of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from exo_engine.server.answer_parsing.formats import AnswerFormat
from exo_engine.server.answer_parsing.pieces import Arguments, Call, Content, Piece, Reasoning
from exo_engine.server.routes.anthropic_request import dump_input

Event = dict[str, Any]


class MessageBlocks:
    """The blocks so far; at most the last one is still growing.

    Attributes:
        blocks: as clients get them.
    """

    def __init__(self, form: AnswerFormat) -> None:
        self._form = form
        self._arguments = ""
        self._is_open = False
        self.blocks: list[dict[str, Any]] = []

    @property
    def has_calls(self) -> bool:
        """Whether the model called a tool."""
        return any(block["type"] == "tool_use" for block in self.blocks)

    def take(self, pieces: Iterable[Piece]) -> list[Event]:
        """Add pieces; return what tells of them."""
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, Content):
                events += [*self._open("text", {"text": ""}), self._grow_text("text", piece.text)]
            elif isinstance(piece, Reasoning):
                empty = {"thinking": "", "signature": ""}
                events += [*self._open("thinking", empty), self._grow_text("thinking", piece.text)]
            elif isinstance(piece, Arguments):
                events += self._grow_input(piece.text)
            else:
                events += [*self.close(), *self._begin_call(piece)]
        return events

    def close(self) -> list[Event]:
        """End the block that is growing."""
        if not self._is_open:
            return []
        self._is_open = False
        block = self.blocks[-1]
        if block["type"] == "tool_use":
            block["input"] = dump_input(self._arguments)
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _open(self, kind: str, empty: dict[str, Any]) -> list[Event]:
        if self._is_open and self.blocks[-1]["type"] == kind:
            return []
        closed = self.close()
        self._is_open = True
        self.blocks.append({"type": kind, **empty})
        begun = {
            "type": "content_block_start",
            "index": len(self.blocks) - 1,
            "content_block": {"type": kind, **empty},
        }
        return [*closed, begun]

    def _begin_call(self, call: Call) -> list[Event]:
        self._arguments = ""
        empty = {"id": self._form.call_id(), "name": call.name, "input": {}}
        return [*self._open("tool_use", empty), *self._grow_input(call.arguments)]

    def _grow_text(self, name: str, text: str) -> Event:
        self.blocks[-1][name] += text
        return self._delta({"type": f"{name}_delta", name: text})

    def _grow_input(self, text: str) -> list[Event]:
        self._arguments += text
        delta = {"type": "input_json_delta", "partial_json": text}
        return [self._delta(delta)] if text else []

    def _delta(self, delta: dict[str, Any]) -> Event:
        index = len(self.blocks) - 1
        return {"type": "content_block_delta", "index": index, "delta": delta}
