"""`deployment scale`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.rendering.results import Answer, conclude, resulting, show_deployment
from exo_inference.cli.rendering.views import DEPLOYMENT
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.wait import wait_options, wait_until_scaled
from exo_inference.cli.writes import by_name, dry_run_option, finish, room_option, titled


@command(
    "scale",
    examples=[
        Example("Serve with three replicas", "exo ai deployment scale chat 3"),
        Example("Wait until all of them are ready", "exo ai deployment scale chat 3 --wait"),
        Example("Free the GPUs but keep the deployment", "exo ai deployment scale chat 0"),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@click.argument("replicas", metavar="<replicas>", type=click.IntRange(min=0))
@wait_options("all replicas are ready")
@dry_run_option
@room_option
@pass_session
def scale(
    session: Session,
    deployment: str,
    replicas: int,
    wait: bool,
    wait_timeout: float,
    dry_run: bool,
    force: bool,
) -> None:
    """Change the number of replicas.

    From 0 to 100. Requests in flight are finished: a replica that has to go first stops to take new
    ones. With 0 the deployment keeps its URL and its key, and answers that it is scaled to zero.
    """
    from exo_inference.cli.plan.notices import warn

    output = session.output(DEPLOYMENT.field_names)
    with session.connect() as client:
        found = client.deployments.find(deployment)
        with by_name(found):
            operation = finish(
                session,
                client,
                titled(f"Scaling deployment {deployment} to {replicas}", dry_run=dry_run),
                lambda: client.deployments.scale(found, replicas, dry_run=dry_run, force=force),
            )
        warn(session, operation.warnings or ())
        if dry_run:
            session.success(f'Deployment "{found.name}" would be scaled to {replicas} (dry run).')
            would = f"would be scaled to {replicas}"
            conclude(output, Answer("deployment", found.id, found.name, would, dry_run=True))
            return
        session.success(f'Deployment "{found.name}" scaled to {replicas}.')
        with (
            by_name(found),
            resulting(output, lambda: show_deployment(output, client.deployments.get(found.id))),
        ):
            if wait:
                asked = {"replicas": replicas}
                wait_until_scaled(session, client, found, wait_timeout, operation, asked=asked)
