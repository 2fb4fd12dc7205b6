"""Colours of state words and errors, on a terminal that takes them.

https://no-color.org: a variable `NO_COLOR` that is not empty switches them off, as `TERM=dumb` does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import IO

import click

Paint = Callable[[str, str], str]
"""Colours a text by the state that it shows: state and text in, text out."""

_GOOD = frozenset({"ready", "running", "success", "deleted", "Normal"})
_BAD = frozenset({"error", "failed", "failure", "stopped", "timeout", "Warning"})


def takes_colour(stream: IO[str], environ: Mapping[str, str] | None = None) -> bool:
    """Whether a stream is a terminal whose user wants colours."""
    environ = os.environ if environ is None else environ
    return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def as_it_is(state: str, text: str) -> str:
    """Colour nothing."""
    return text


def by_state(state: str, text: str) -> str:
    """Colour green what is well, red what is not, yellow what is on its way."""
    if not state:
        return text
    return click.style(text, fg="green" if state in _GOOD else "red" if state in _BAD else "yellow")


def with_red_head(text: str) -> str:
    """Colour the `error:` that lines begin with."""
    head = "error:"
    return "\n".join(
        click.style(head, fg="red", bold=True) + line.removeprefix(head)
        if line.startswith(head)
        else line
        for line in text.split("\n")
    )
