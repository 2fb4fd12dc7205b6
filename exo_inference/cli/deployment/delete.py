"""`deployment delete`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.deletion import Deletable, DeleteOptions, delete_all
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_options
from exo_inference.cli.writes import dry_run_option, force_option


@command(
    "delete",
    aliases=["del", "rm"],
    examples=[
        Example("Delete a deployment, after a question", "exo ai deployment delete chat"),
        Example("Delete two without being asked", "exo ai deployment rm -f chat draft"),
        Example(
            "Go on only when its processes and GPUs are free",
            "exo ai deployment delete chat -f --wait --timeout 2m",
        ),
    ],
)
@click.argument(
    "deployments",
    metavar="<name-or-id>...",
    nargs=-1,
    required=True,
    shell_complete=complete_deployments,
)
@force_option
@wait_options("the deployments are gone")
@dry_run_option
@pass_session
def delete(
    session: Session,
    deployments: tuple[str, ...],
    force: bool,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
) -> None:
    """Delete deployments; their models stay.

    Requests in flight are served first; the key stops to work at once. The command returns when the
    deployments are gone, and ends with exit code 8 if that takes longer than `--timeout`. Without
    `--force` each deletion is asked about, and one no deletes nothing; with it, unknown names are
    only warned about.
    """
    with session.connect() as client:
        what = Deletable(
            kind="deployment",
            listed=client.deployments.list,
            delete=lambda deployment_id, dry: client.deployments.delete(deployment_id, dry_run=dry),
            wait_until_deleted=client.deployments.wait_until_deleted,
        )
        options = DeleteOptions(
            deployments, force, dry_run, wait_timeout if wait else None, wait_timeout
        )
        delete_all(session, client, what, options)
