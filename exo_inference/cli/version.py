"""`exo version`."""

from __future__ import annotations

import click

from exo_inference import __version__
from exo_inference.cli.rendering.output import Field
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command


@command(
    "version",
    examples=[
        Example("Print the version", "exo version"),
        Example("Print it through the other name of the program", "exo-inference version"),
        Example("Keep it in a variable", "version=$(exo version)"),
        Example("Get it as JSON", "exo version -O json"),
    ],
)
@pass_session
def version(session: Session) -> None:
    """Print the version of this program.

    The number alone, on one line.
    """
    output = session.output(("Version",), configured=False)
    if output.is_for_programs:
        output.show((Field("version", "Version", "Version", __version__),))
    else:
        click.echo(__version__)
