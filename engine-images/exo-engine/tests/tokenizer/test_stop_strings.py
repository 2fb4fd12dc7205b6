"""Stop strings are found across pieces, and nothing of them is shown."""

from __future__ import annotations

import itertools
import sys

from exo_engine.tokenizer import StopStrings
from hypothesis import given
from hypothesis import strategies as st

LETTERS = st.text("ab\n", max_size=12)


def run(
    pieces: list[str], stops: list[str], *, is_included: bool = False
) -> tuple[str, str | None]:
    watcher = StopStrings(stops, is_included=is_included)
    shown = ""
    for piece in pieces:
        text, match = watcher.feed(piece)
        shown += text
        if match:
            return shown, match.stop
    return shown + watcher.flush(), None


def test_stop_string_across_pieces_is_never_shown() -> None:
    watcher = StopStrings(["END"])
    assert watcher.feed("text E") == ("text ", None)
    assert watcher.feed("N") == ("", None)
    text, match = watcher.feed("D and more")
    assert (text, match and match.stop) == ("", "END")


def test_beginning_of_a_stop_string_that_was_none_is_shown() -> None:
    watcher = StopStrings(["END"])
    assert watcher.feed("EN") == ("", None)
    assert watcher.feed("X") == ("ENX", None)
    assert watcher.feed("E") == ("", None)
    assert watcher.flush() == "E"


def test_included_stop_string_ends_the_text() -> None:
    assert run(["a", "bE", "NDc"], ["END"], is_included=True) == ("abEND", "END")


def test_overlapping_starts_are_found() -> None:
    assert run(["a", "a", "a", "b"], ["aab"]) == ("a", "aab")


def test_skipped_text_is_not_searched() -> None:
    watcher = StopStrings(["b"])
    assert watcher.skip("abc") == "abc"
    assert watcher.feed("ab")[1] is not None


@given(
    text=LETTERS,
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    cuts=st.lists(st.integers(0, 12), max_size=6),
)
def test_result_does_not_depend_on_how_text_is_cut(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)]
    assert run(pieces, stops) == run(list(text), stops)


@given(
    text=st.text("ab", max_size=40),
    stops=st.lists(st.text("ab", min_size=1, max_size=9), min_size=1, max_size=4),
)
def test_first_end_wins_and_of_those_the_longest(text: str, stops: list[str]) -> None:
    ends = [
        (end, stop) for end in range(len(text) + 1) for stop in stops if text[:end].endswith(stop)
    ]
    expected: tuple[str, str | None] = (text, None)
    if ends:
        first = min(end for end, _ in ends)
        stop = max((stop for end, stop in ends if end == first), key=len)
        expected = (text[: first - len(stop)], stop)
    assert run(list(text), stops) == expected


def test_long_stop_strings_that_nearly_match_cost_little() -> None:
    """Some 10,000 steps; trying every begin at every character would be a thousand times that."""
    watcher = StopStrings(["a" * 500 + "b" + "a" * 500, "a" * 900 + "b"])
    lines = 0

    def count(frame: object, event: str, argument: object) -> object:
        nonlocal lines
        lines += event == "line"
        return count

    sys.settrace(count)  # type: ignore[arg-type]
    try:
        for _ in range(700):
            watcher.feed("a")
    finally:
        sys.settrace(None)
    assert lines < 100_000
