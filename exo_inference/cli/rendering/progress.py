"""Progress on stderr: one live line on a terminal, one line per change elsewhere.

    with step('Creating model "x"') as running:
        running.detail("downloading 1.2 GiB of 15 GiB")

On a terminal the line has a spinner and the time spent, and ends in ✔ or ✘. Into a pipe or a log
file each new state is a line of its own, without escape sequences. `-Q` silences it. rich is only
imported for a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import click

from exo_inference.cli.durations import format_duration
from exo_inference.cli.rendering.terminal import harmless

if TYPE_CHECKING:
    from rich.console import RenderableType


class Step(Protocol):
    """One thing that is being done."""

    def detail(self, text: str) -> None:
        """Say where it stands; the same text again changes nothing."""


@contextmanager
def step(title: str, *, quiet: bool = False) -> Iterator[Step]:
    """Show that something is being done until the block ends.

    Args:
        title: what is being done, as `Creating model "x"`.
        quiet: show nothing.
    """
    title = harmless(title)
    if quiet:
        yield _Silent()
    elif sys.stderr.isatty():
        with _live_line(title) as running:
            yield running
    else:
        click.echo(f"{title}...", err=True)
        yield _Lines()


class _Silent:
    def detail(self, text: str) -> None:
        pass


class _Lines:
    """One line per change, with the time since the start."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._last = ""

    def detail(self, text: str) -> None:
        text = harmless(text)
        if text != self._last:
            self._last = text
            elapsed = format_duration(time.monotonic() - self._started)
            click.echo(f"  {elapsed}: {text}", err=True)


class _LiveLine:
    """What the live line shows; rich renders it about ten times a second."""

    def __init__(self, title: str) -> None:
        from rich.spinner import Spinner

        self._title = title
        self._detail = ""
        self._started = time.monotonic()
        self._spinner = Spinner("dots")
        self.mark = ""

    def detail(self, text: str) -> None:
        self._detail = harmless(text)

    def __rich__(self) -> RenderableType:
        from rich.table import Table
        from rich.text import Text

        elapsed = format_duration(time.monotonic() - self._started)
        detail = f"  {self._detail}" if self._detail and not self.mark else ""
        line = Text(f"{self._title}... {elapsed}{detail}", no_wrap=True, overflow="ellipsis")
        grid = Table.grid(padding=(0, 1))
        grid.add_row("", Text(self.mark) if self.mark else self._spinner, line)
        return grid


@contextmanager
def _live_line(title: str) -> Iterator[Step]:
    from rich.console import Console
    from rich.live import Live

    line = _LiveLine(title)
    console = Console(stderr=True, highlight=False, markup=False)
    with Live(line, console=console, refresh_per_second=10, redirect_stdout=False):
        try:
            yield line
        except BaseException:
            line.mark = "✘"
            raise
        line.mark = "✔"
