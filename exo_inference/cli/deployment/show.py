"""`deployment show`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.rendering.results import show_deployment
from exo_inference.cli.rendering.views import DEPLOYMENT
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command


@command(
    "show",
    aliases=["get"],
    examples=[
        Example("Show a deployment and its replicas", "exo ai deployment show chat"),
        Example(
            "Get the URL for an OpenAI client",
            "exo ai deployment show chat --output-template '{{.DeploymentURL}}'",
        ),
        Example("Show all of it as JSON", "exo ai deployment get chat -O json"),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@pass_session
def show(session: Session, deployment: str) -> None:
    """Show one deployment.

    Besides what was asked for, this says where each replica stands, and after a failure what went
    wrong and what to do about it.
    """
    output = session.output(DEPLOYMENT.field_names)
    with session.connect() as client:
        found = client.deployments.get(client.deployments.find(deployment).id)
    show_deployment(output, found)
