"""A turn of the assistant that comes back in pieces, as the one message that chat templates take.

What a model thought comes as one text from /v1/chat/completions, as items from /v1/responses and as blocks from
/v1/messages. A client may send any of them back; the template gets the same text from all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Turn:
    """What the assistant thought, said and called until somebody else spoke.

    Pieces are kept apart until the end, so that a million of them cost what they are long.

    Attributes:
        thoughts: pieces of its reasoning.
        texts: pieces of what it said.
        calls: of tools, as chat has them.
    """

    def __init__(self) -> None:
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.calls: list[dict[str, Any]] = []

    def message(self) -> dict[str, Any]:
        """Return it as a message of chat."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self.texts) if self.texts else None,
        }
        if self.thoughts:
            message["reasoning_content"] = join_reasoning(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def join_reasoning(pieces: Iterable[str]) -> str:
    """Return reasoning as one text: each piece begins a line.

    A break that a piece brings along is not doubled. Answers put several thoughts behind each other in the same way,
    so that one which is sent back in pieces is what it was.
    """
    joined: list[str] = []
    for piece in filter(None, pieces):
        if joined and not joined[-1].endswith("\n") and not piece.startswith("\n"):
            joined.append("\n")
        joined.append(piece)
    return "".join(joined)
