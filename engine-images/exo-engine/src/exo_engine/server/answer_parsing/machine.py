"""What the machines share: text that is held until it is sure, markers in it, and blanks around calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from exo_engine.server.answer_parsing.pieces import Content, Piece

State = Callable[[list[Piece]], bool]
"""Takes from the held text, adds what is sure, and says whether to go on; False: more text is needed."""

_PART_CHARACTERS = 1000


class Machine:
    """Holds text and runs states over it until one needs more.

    A state is a method. It takes text off the front of `_held`, may set `_state`, and must wait for more text
    (return False) rather than decide by what has not come yet, unless `_is_last`.
    """

    is_reasoning = False

    def __init__(self, first: State) -> None:
        self._held = ""
        self._is_last = False
        self._state = first

    def feed(self, text: str) -> list[Piece]:
        """Add text; return what is sure."""
        pieces: list[Piece] = []
        # In parts, as taking from the front copies what is left.
        for at in range(0, len(text), _PART_CHARACTERS):
            self._held += text[at : at + _PART_CHARACTERS]
            self._run(pieces)
        return pieces

    def finish(self) -> list[Piece]:
        """Return what was held back."""
        self._is_last = True
        pieces: list[Piece] = []
        self._run(pieces)
        assert not self._held, "a state must use up its text at the end"
        return pieces

    def _run(self, pieces: list[Piece]) -> None:
        while self._held and self._state(pieces):
            pass

    def _take(self, length: int) -> str:
        taken, self._held = self._held[:length], self._held[length:]
        return taken


class CallMachine(Machine):
    """Content until a marker; subclasses read what follows it, and go back to `_in_content`.

    Blanks beside a call are part of its format, and are dropped.
    """

    starts: tuple[str, ...] = ()
    """Each of them begins something that is no content."""

    def __init__(self) -> None:
        super().__init__(self._in_content)
        self._is_after_call = False
        self._gap = ""

    def _in_content(self, pieces: list[Piece]) -> bool:
        if self._is_after_call:
            self._held = self._held.lstrip()
        found = first_marker(self._held, self.starts)
        if found is not None:
            at, marker = found
            text = self._take(at)
            self._say(text.rstrip(), pieces)
            self._gap += text[len(text.rstrip()) :]
            self._begin(marker)
            return True
        sure = len(self._held)
        if not self._is_last:
            sure = len(self._held[: sure - overlap(self._held, self.starts)].rstrip())
        self._say(self._take(sure), pieces)
        return False

    def _begin(self, marker: str) -> None:
        """Begin to read what starts with this marker, which is the front of the held text."""
        raise NotImplementedError

    def _say(self, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(Content(self._gap + text))
            self._is_after_call, self._gap = False, ""

    def _end_call(self, calls: Sequence[Piece], text: str, pieces: list[Piece]) -> None:
        """Go back to content after some text, which is calls, or, where there are none, content itself."""
        self._state = self._in_content
        if calls:
            pieces.extend(calls)
            self._is_after_call, self._gap = True, ""
        else:
            self._say(text, pieces)


def first_marker(text: str, markers: Iterable[str]) -> tuple[int, str] | None:
    """Return where the first of the markers is, and which; the longest of those at one place."""
    found = [(text.find(marker), -len(marker), marker) for marker in markers]
    known = [each for each in found if each[0] >= 0]
    if not known:
        return None
    at, _, marker = min(known)
    return at, marker


def overlap(text: str, markers: Iterable[str]) -> int:
    """Return how many characters at the end of a text may be the beginning of a marker."""
    return max((_overlap(text, marker) for marker in markers), default=0)


def _overlap(text: str, marker: str) -> int:
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
