"""What can go wrong with a foreign file, and how pieces of it are shown.

A text from a file may hold anything: escapes that a terminal obeys, or a megabyte. `shown` is the only
way into a message.
"""

from __future__ import annotations

from exo_inference.errors import ExoError

MAX_SHOWN = 256
"""Characters of one foreign piece in a message."""
MAX_MESSAGE = 2000


class ForeignFileError(ExoError):
    """A file cannot be used, whoever reads it again; the text names it and says why."""


class MissingFile(ForeignFileError):
    """There is no such file or folder."""


class ReadingFailed(ExoError):
    """Nothing is known about the file: the disk did not answer in time, or the reader was ended."""


def shown(value: object, limit: int = MAX_SHOWN) -> str:
    """Return a foreign value as one line of printable characters, cut to `limit`."""
    text = value[: limit + 1] if isinstance(value, str) else _written(value)
    text = "".join(each if each.isprintable() else _escaped(each) for each in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def shown_message(text: str) -> str:
    """Return a message that another process wrote, printable and of bounded length."""
    return shown(text, MAX_MESSAGE)


def _written(value: object) -> str:
    if isinstance(value, bool | int | float | None):
        try:
            return repr(value)
        except ValueError:  # more digits than the interpreter writes
            return "a number of thousands of digits"
    if isinstance(value, list | dict):
        return f"{'a list' if isinstance(value, list) else 'an object'} of {len(value)} entries"
    return repr(value)[: MAX_SHOWN + 1]


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
