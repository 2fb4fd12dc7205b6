"""`status`: how the control plane of this machine stands."""

from __future__ import annotations

import click

from exo_inference.cli.control_plane.launch import state_dir_of
from exo_inference.cli.control_plane.overview import FIELD_NAMES, look_at
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import ConfigurationError


@command(
    "status",
    examples=[
        Example("See what runs, and where it answers", "exo dedicated-inference status"),
        Example("Get everything but the secret as JSON", "exo dedicated-inference status -O json"),
        Example(
            "Start it in a script unless it runs",
            "exo ai status -Q >/dev/null || exo ai up",
        ),
    ],
)
@pass_session
@click.pass_context
def status(ctx: click.Context, session: Session) -> None:
    """Show the control plane of this machine and its processes.

    Works while the control plane is down: it looks at processes and files. Exit code 0 says that it
    runs, even if only in part, 4 that it does not. The secret of the API key is only in the configuration file.
    """
    output = session.output(FIELD_NAMES, configured=False)
    overview = look_at(state_dir_of(session))
    output.show(overview.record(), rows=overview.rows())
    overview.warn()
    if not overview.has_servers:
        if not session.quiet:
            what = "Engines alone run" if overview.has_engines else "Nothing runs"
            click.echo(f"{what}. Run `exo dedicated-inference up`.", err=True)
        ctx.exit(ConfigurationError.exit_code)
