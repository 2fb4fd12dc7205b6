"""`deployment restart`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.rendering.results import Answer, conclude, resulting, show_deployment
from exo_inference.cli.rendering.views import DEPLOYMENT
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_options, wait_until_scaled
from exo_inference.cli.writes import by_name, dry_run_option, finish, titled


@command(
    "restart",
    examples=[
        Example("Replace all replicas by new ones", "exo ai deployment restart chat"),
        Example(
            "Go on when the new ones serve", "exo ai deployment restart chat --wait --timeout 10m"
        ),
        Example("See whether it would be accepted", "exo ai deployment restart chat --dry-run"),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@wait_options("the new replicas are ready")
@dry_run_option
@pass_session
def restart(
    session: Session, deployment: str, wait: bool, wait_timeout: float, dry_run: bool
) -> None:
    """Replace all replicas of a deployment by new ones.

    One after the other, as `update` does it: a replica goes only when its successor answers, and
    requests in flight are finished. Flags, URL and key stay.
    """
    output = session.output(DEPLOYMENT.field_names)
    with session.connect() as client:
        found = client.deployments.find(deployment)
        with by_name(found):
            present = client.deployments.get(found.id) if wait else None
            finish(
                session,
                client,
                titled(f'Restarting deployment "{found.name}"', dry_run=dry_run),
                lambda: client.deployments.restart(found.id, dry_run=dry_run),
            )
        if dry_run:
            session.success(f'Deployment "{found.name}" would be restarted (dry run).')
            would = Answer("deployment", found.id, found.name, "would be restarted", dry_run=True)
            conclude(output, would)
            return
        session.success(f'Deployment "{found.name}" is being restarted.')
        with (
            by_name(found),
            resulting(output, lambda: show_deployment(output, client.deployments.get(found.id))),
        ):
            if present is not None:
                names = [replica.name for replica in present.replica_status or ()]
                wait_until_scaled(session, client, found, wait_timeout, replaced=names)
