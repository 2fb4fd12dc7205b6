"""Printing an error on stderr: for `main.py`, for several one by one, and beside an answer that refuses."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from exo_inference.cli.errors.text import describe, describe_usage
from exo_inference.cli.rendering.colours import takes_colour, with_red_head
from exo_inference.errors import ExoError

if TYPE_CHECKING:
    from exo_inference.cli.rendering.output import Output


def print_error(error: click.ClickException | ExoError, *, as_json: bool) -> None:
    """Print an error on stderr, for people or as one line of JSON."""
    if as_json:
        from exo_inference.cli.errors.objects import error_line  # not needed by most errors

        text = error_line(error)
    else:
        text = describe(error) if isinstance(error, ExoError) else describe_usage(error)
    if text and not as_json and takes_colour(sys.stderr):
        text = with_red_head(text)
    if text:
        click.echo(text, err=True)


def print_refusal(output: Output, message: str) -> None:
    """Print for programs that what was asked about is refused; people read it in the answer on stdout."""
    if output.template is None and output.format == "json":
        print_error(ExoError(message), as_json=True)
