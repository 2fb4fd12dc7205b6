"""Reasoning between two markers, before the answer: `<think>` ... `</think>`, and the like.

The prompt may have opened it, and may have closed it again. Blanks at the markers belong to neither part.
"""

from __future__ import annotations

from dataclasses import dataclass

from exo_engine.server.answer_parsing.machine import Machine, first_marker, overlap
from exo_engine.server.answer_parsing.pieces import AnswerParser, Content, Piece, Reasoning


@dataclass(frozen=True, slots=True)
class Markers:
    """How a model marks its reasoning.

    Attributes:
        starts: any of them begins it.
        ends: any of them ends it.
        is_open: the answer begins inside unless the prompt says otherwise.
    """

    starts: tuple[str, ...] = ("<think>",)
    ends: tuple[str, ...] = ("</think>",)
    is_open: bool = False

    def is_open_after(self, prompt: str) -> bool:
        """Say whether an answer to this prompt begins inside the reasoning."""
        end = prompt.rstrip()
        if end.endswith(self.starts):
            return True
        return self.is_open and not end.endswith(self.ends)


class Thinking(Machine):
    """Takes the reasoning off the front, and leaves the rest to another machine."""

    def __init__(self, markers: Markers, rest: AnswerParser | None, *, is_open: bool) -> None:
        """Prepare.

        Args:
            markers: of the model.
            rest: takes what follows the reasoning; None: it is all content.
            is_open: the answer begins inside.
        """
        super().__init__(self._at_start)
        self._markers = markers
        self._rest = rest
        self._is_open = self.is_reasoning = is_open
        self._has_said = False

    def finish(self) -> list[Piece]:
        """Return what was held back."""
        pieces = super().finish()
        return pieces + (self._rest.finish() if self._rest else [])

    def _at_start(self, pieces: list[Piece]) -> bool:
        """Drop a start marker, which a model may write even where the prompt has it already."""
        text = self._held.lstrip()
        starts = self._markers.starts
        may_start = any(start.startswith(text) for start in starts)
        if may_start and not text.startswith(starts) and not self._is_last:
            return False
        found = next((start for start in starts if text.startswith(start)), None)
        if found is not None:
            self._held = text[len(found) :]
        self.is_reasoning = self._is_open or found is not None
        self._state = self._in_reasoning if self.is_reasoning else self._in_rest
        return True

    def _in_reasoning(self, pieces: list[Piece]) -> bool:
        ends = self._markers.ends
        if not self._has_said:
            self._held = self._held.lstrip()
        found = first_marker(self._held, ends)
        sure = (
            found[0]
            if found
            else len(self._held) - (0 if self._is_last else overlap(self._held, ends))
        )
        thought = self._held[:sure].rstrip()
        if thought:
            self._has_said = True
            pieces.append(Reasoning(thought))
        if found:
            self._take(sure + len(found[1]))
            self.is_reasoning = False
            self._state = self._before_rest
        else:
            self._take(sure if self._is_last else len(thought))
        return found is not None

    def _before_rest(self, pieces: list[Piece]) -> bool:
        self._held = self._held.lstrip()
        if self._held:
            self._state = self._in_rest
        return bool(self._held)

    def _in_rest(self, pieces: list[Piece]) -> bool:
        text = self._take(len(self._held))
        pieces += [Content(text)] if self._rest is None else self._rest.feed(text)
        return False
