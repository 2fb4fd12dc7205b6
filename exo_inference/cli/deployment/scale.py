"""`deployment scale`."""

from __future__ import annotations

import click

from exo_inference.cli.completing import complete_deployments
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.waiting import follow, wait_options
from exo_inference.cli.writing import by_name, dry_run_option, finish


@command(
    "scale",
    examples=[
        Example("Serve with three replicas", "exo ai deployment scale chat 3"),
        Example("Wait until all of them are ready", "exo ai deployment scale chat 3 --wait"),
        Example("Free the GPUs but keep the deployment", "exo ai deployment scale chat 0"),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@click.argument("replicas", metavar="<replicas>", type=int)
@wait_options("all replicas are ready")
@dry_run_option
@pass_session
def scale(
    session: Session,
    deployment: str,
    replicas: int,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
) -> None:
    """Change the number of replicas.

    Requests in flight are finished: a replica that has to go first stops to take new ones. With 0
    the deployment keeps its URL and its key, and answers that it is scaled to zero.
    """
    with session.connect() as client:
        found = client.deployments.find(deployment)
        with by_name(found):
            finish(
                session,
                client,
                f"Scaling deployment {deployment} to {replicas}",
                lambda: client.deployments.scale(found.id, replicas, dry_run=dry_run),
            )
        if dry_run:
            session.success(f'Deployment "{found.name}" would be scaled to {replicas} (dry run).')
            return
        session.success(f'Deployment "{found.name}" scaled to {replicas}.')
        if wait:
            title = f'Waiting for deployment "{found.name}"'
            follow(session, title, client.deployments.wait_until_scaled, found.id, wait_timeout)
