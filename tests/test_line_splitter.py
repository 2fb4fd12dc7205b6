"""Lines end with a line feed, and with nothing that a text in JSON may hold."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exo_inference.errors import ExoError
from exo_inference.line_splitter import LineSplitter, async_lines_of, lines_of

TEXT = "data: a\u2028b\u0085c\u2029d\x0be\x0cf\x1cg\rh\r\n\nlast ü"
LINES = ["data: a\u2028b\u0085c\u2029d\x0be\x0cf\x1cg\rh", "", "last ü"]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1000), max_size=12))
def test_lines_are_the_same_however_the_bytes_are_cut(places: list[int]) -> None:
    assert list(lines_of(cut(TEXT.encode(), places))) == LINES


async def test_lines_of_an_async_stream_are_the_same() -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in cut(TEXT.encode(), [5, 9, 30]):
            yield piece

    assert [line async for line in async_lines_of(pieces())] == LINES


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    splitter = LineSplitter(max_bytes=1 << 20)
    for _ in range(16):
        assert splitter.feed(b"x" * (1 << 16)) == []
    with pytest.raises(ExoError, match="a line of more than 1 MiB"):
        splitter.feed(b"x")
