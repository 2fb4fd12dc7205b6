"""The output of /v1/responses: items that grow, and the events that tell of it.

An answer that is not streamed is what the items are at the end.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable
from typing import Any

from exo_engine.server.answer_parsing.formats import AnswerFormat
from exo_engine.server.answer_parsing.pieces import Arguments, Call, Content, Piece, Reasoning

Event = dict[str, Any]


class OutputItems:
    """The items so far; at most the last one is still growing."""

    def __init__(self, form: AnswerFormat) -> None:
        self._form = form
        self._numbers = itertools.count()
        self._is_open = False
        self.items: list[dict[str, Any]] = []

    def event(self, kind: str, **fields: Any) -> Event:
        """Return an event with the next number."""
        return {"type": f"response.{kind}", "sequence_number": next(self._numbers), **fields}

    def take(self, pieces: Iterable[Piece]) -> list[Event]:
        """Add pieces; return what tells of them."""
        events: list[Event] = []
        for piece in pieces:
            if isinstance(piece, Content):
                events += [*self._open("message"), *self._grow(piece.text)]
            elif isinstance(piece, Reasoning):
                events += [*self._open("reasoning"), *self._grow(piece.text)]
            elif isinstance(piece, Arguments):
                events += self._grow(piece.text)
            else:
                events += [*self.close(), *self._begin_call(piece), *self._grow(piece.arguments)]
        return events

    def close(self, status: str = "completed") -> list[Event]:
        """End the item that is growing."""
        if not self._is_open:
            return []
        self._is_open = False
        item, where = self.items[-1], self._where()
        item["status"] = status
        done: list[Event] = []
        if item["type"] == "function_call":
            done.append(
                self.event(
                    "function_call_arguments.done",
                    arguments=item["arguments"],
                    name=item["name"],
                    **where,
                )
            )
        else:
            part, place = item["content"][0], {**where, "content_index": 0}
            name = "output_text" if item["type"] == "message" else "reasoning_text"
            extra: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            done.append(self.event(f"{name}.done", text=part["text"], **place, **extra))
            done.append(self.event("content_part.done", part=dict(part), **place))
        return [*done, self._item_event("done")]

    def _open(self, kind: str) -> list[Event]:
        """Begin an item of text, unless one of this kind is growing."""
        if self._is_open and self.items[-1]["type"] == kind:
            return []
        closed = self.close()
        if kind == "message":
            part: dict[str, Any] = {
                "type": "output_text",
                "text": "",
                "annotations": [],
                "logprobs": [],
            }
            item: dict[str, Any] = {"role": "assistant"}
        else:
            part = {"type": "reasoning_text", "text": ""}
            item = {"summary": []}
        begun = self._begin({"id": _new_id(kind), "type": kind, "content": [], **item})
        self.items[-1]["content"].append(part)
        place = {**self._where(), "content_index": 0}
        return [*closed, *begun, self.event("content_part.added", part=dict(part), **place)]

    def _begin_call(self, call: Call) -> list[Event]:
        return self._begin(
            {
                "id": _new_id("function_call"),
                "type": "function_call",
                "call_id": self._form.call_id(),
                "name": call.name,
                "arguments": "",
            }
        )

    def _begin(self, item: dict[str, Any]) -> list[Event]:
        self._is_open = True
        self.items.append({**item, "status": "in_progress"})
        return [self._item_event("added")]

    def _grow(self, text: str) -> list[Event]:
        if not text:
            return []
        item, where = self.items[-1], self._where()
        if item["type"] == "function_call":
            item["arguments"] += text
            return [self.event("function_call_arguments.delta", delta=text, **where)]
        item["content"][0]["text"] += text
        place = {**where, "content_index": 0}
        if item["type"] == "reasoning":
            return [self.event("reasoning_text.delta", delta=text, **place)]
        return [self.event("output_text.delta", delta=text, logprobs=[], **place)]

    def _where(self) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}

    def _item_event(self, what: str) -> Event:
        item = self.items[-1]
        shown = {**item, "content": list(map(dict, item["content"]))} if "content" in item else item
        return self.event(f"output_item.{what}", item=dict(shown), output_index=len(self.items) - 1)


def _new_id(kind: str) -> str:
    prefix = {"message": "msg", "reasoning": "rs", "function_call": "fc"}[kind]
    return f"{prefix}_{secrets.token_hex(12)}"
