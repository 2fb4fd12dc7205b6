"""`status`: how the control plane of this machine stands."""

from __future__ import annotations

import click

from exo_inference.cli.control_plane.launch import state_dir_of
from exo_inference.cli.control_plane.overview import FIELD_NAMES, look_at
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command

NOT_RUNNING = 3
"""Exit code when nothing runs; that of `systemctl status` and of LSB init scripts."""


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
    runs, even if only in part, 3 that it does not. The secret of the API key is only in the configuration file.
    """
    output = session.output(FIELD_NAMES, configured=False)
    overview = look_at(state_dir_of(session))
    output.show(overview.record(), rows=overview.rows())
    overview.warn()
    if overview.state == "stopped":
        if not session.quiet:
            click.echo("Nothing runs. Run `exo dedicated-inference up`.", err=True)
        ctx.exit(NOT_RUNNING)
