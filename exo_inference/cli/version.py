"""`exo version`."""

from __future__ import annotations

import click

from exo_inference import __version__
from exo_inference.cli.tree import Example, command


@command(
    "version",
    examples=[
        Example("Print the version", "exo version"),
        Example("Print it through the other name of the program", "exo-inference version"),
        Example("Keep it in a variable", "version=$(exo version)"),
    ],
)
def version() -> None:
    """Print the version of this program.

    The number alone, on one line.
    """
    click.echo(__version__)
