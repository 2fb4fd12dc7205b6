"""What is safe to print, and how wide it is.

Names, log lines and error texts come from elsewhere and may hold escape sequences that move the
cursor, change colours, rewrite the window title or reorder the text around them. `harmless` shows
such characters instead of sending them. Called by everything that prints; prints nothing itself.
"""

from __future__ import annotations

import shutil
import sys
import unicodedata
from typing import IO

# Characters of the category Cf that reorder or hide their surroundings (UAX #9 and friends).
_FORMAT_CONTROLS = frozenset(
    [0x061C, 0x200B, 0x200E, 0x200F, 0x2060, 0xFEFF, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
)
_LINE_SEPARATORS = frozenset([0x2028, 0x2029])


def is_hazardous(character: str) -> bool:
    """Tell whether a terminal might act on `character` instead of showing it."""
    code = ord(character)
    return (
        code < 0x20
        or 0x7F <= code <= 0x9F
        or 0xD800 <= code <= 0xDFFF
        or code in _FORMAT_CONTROLS
        or code in _LINE_SEPARATORS
    )


def escaped(character: str) -> str:
    r"""Return the visible form of one character: `\x1b`, `\u202e`, `\n`."""
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    if named is not None:
        return named
    code = ord(character)
    return f"\\x{code:02x}" if code <= 0xFF else f"\\u{code:04x}"


def harmless(text: str, *, keep: str = "") -> str:
    """Replace what a terminal might act on by its visible form.

    Args:
        text: anything, as it came from a server, a file or a user.
        keep: control characters that are meant here, such as a newline between lines.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        escaped(character) if character not in keep and is_hazardous(character) else character
        for character in text
    )


def for_stream(text: str, stream: IO[str]) -> str:
    """Return `text` ready for `stream`: harmless on a terminal, as it is into a pipe or a file."""
    if stream.isatty():
        return harmless(text, keep="\n\t")
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def print_data(text: str) -> None:
    """Write data to stdout at once.

    Not through `click.echo`, which would drop escape sequences on the way into a pipe.
    """
    sys.stdout.write(for_stream(text, sys.stdout))
    sys.stdout.flush()


def print_drawn(text: str) -> None:
    """Write to stdout what is made of harmless text and colours."""
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode("utf-8"))
    sys.stdout.flush()


def terminal_columns() -> int | None:
    """Return how wide the terminal is: COLUMNS, or what it says; None where nobody knows."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def display_width(text: str) -> int:
    """Return how many columns `text` takes: wide characters two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )
