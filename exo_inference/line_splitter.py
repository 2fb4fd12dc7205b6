"""Splits bytes that come in pieces into lines, which end with a line feed and with nothing else.

JSON leaves U+0085, U+2028 and U+2029 inside texts as they are, and Python's `splitlines`, as httpx's own lines,
ends a line there: what an engine logs or answers would break the stream that it comes in. Used by the client
library for logs that are followed, and by `chat`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator

from exo_inference.errors import ExoError

MAX_LINE_BYTES = 256 << 20
"""Of one line; the last lines of a log that is not followed come as one."""


class LineSplitter:
    """Holds the line that has not ended.

    Args:
        max_bytes: the longest line that is held.
    """

    def __init__(self, max_bytes: int = MAX_LINE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[str]:
        """Take the next bytes; return the lines that end in them, without their ends.

        Raises:
            ExoError: a line is too long.
        """
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = bytes(self._rest) + ended[0]
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > self._max_bytes:
            raise ExoError(f"the answer has a line of more than {self._max_bytes >> 20} MiB")
        return [_text(line) for line in ended]

    def finish(self) -> list[str]:
        """Return the line that the stream ended in, if it did."""
        return [_text(bytes(self._rest))] if self._rest else []


def lines_of(pieces: Iterable[bytes], *, max_bytes: int = MAX_LINE_BYTES) -> Iterator[str]:
    """Yield the lines of a stream as they come.

    Raises:
        ExoError: a line is too long.
    """
    splitter = LineSplitter(max_bytes)
    for piece in pieces:
        yield from splitter.feed(piece)
    yield from splitter.finish()


async def async_lines_of(pieces: AsyncIterable[bytes]) -> AsyncIterator[str]:
    """Yield the lines of a stream as they come.

    Raises:
        ExoError: a line is too long.
    """
    splitter = LineSplitter()
    async for piece in pieces:
        for line in splitter.feed(piece):
            yield line
    for line in splitter.finish():
        yield line


def _text(line: bytes) -> str:
    return line.removesuffix(b"\r").decode("utf-8", "replace")
