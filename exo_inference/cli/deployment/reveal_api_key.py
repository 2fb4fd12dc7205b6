"""`deployment reveal-api-key`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.rendering.views import API_KEY
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import by_name


@command(
    "reveal-api-key",
    examples=[
        Example("Show the key of a deployment", "exo ai deployment reveal-api-key chat"),
        Example(
            "Hand it to a program through the environment",
            "export OPENAI_API_KEY=$(exo ai deployment reveal-api-key chat -O text)",
        ),
        Example("Get it as JSON", "exo ai deployment reveal-api-key chat -O json"),
    ],
)
@click.argument("deployment", metavar="<name-or-id>", shell_complete=complete_deployments)
@pass_session
def reveal_api_key(session: Session, deployment: str) -> None:
    """Show the API key of a deployment.

    OpenAI clients send it as their API key, together with the deployment's URL as their base URL.
    Whoever has it can use this deployment and nothing else.
    """
    output = session.output(API_KEY.field_names)
    with session.connect() as client:
        found = client.deployments.find(deployment)
        with by_name(found):
            key = client.deployments.reveal_api_key(found.id)
    output.show(API_KEY.record(key))
