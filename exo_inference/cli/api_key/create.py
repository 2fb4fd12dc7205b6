"""`api-key create`."""

from __future__ import annotations

import click

from exo_inference.cli.api_key.views import API_KEY, EVERY_DEPLOYMENT, NamedKey
from exo_inference.cli.completion.names import complete_deployments
from exo_inference.cli.rendering.progress import step
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.errors import UsageError


@command(
    "create",
    aliases=["add"],
    examples=[
        Example("Make a key for one deployment", "exo ai api-key create phone --deployment chat"),
        Example("Make one that opens every deployment", "exo ai api-key create ci --all"),
        Example(
            "Hand it to a program through the environment",
            "export OPENAI_API_KEY=$(exo ai api-key create bot --deployment chat "
            "--output-template '{{.APIKey}}')",
        ),
    ],
)
@click.argument("name", metavar="<name>")
@click.option(
    "--deployment",
    metavar="<name-or-id>",
    shell_complete=complete_deployments,
    help="The deployment that it opens.",
)
@click.option("--all", "opens_all", is_flag=True, help="Let it open every deployment.")
@pass_session
def create(session: Session, name: str, deployment: str | None, opens_all: bool) -> None:
    """Make a key, and print its value.

    It works at once. `reveal` prints the value again, `rotate` gives it another one.
    """
    if (deployment is None) is not opens_all:
        raise UsageError(
            "--deployment and --all were both given" if opens_all else "what it opens is missing",
            hint="Name one deployment with --deployment, or give --all.",
        )
    output = session.output(API_KEY.field_names)
    with session.connect() as client:
        found = None if deployment is None else client.deployments.find(deployment)
        with step(f'Creating API key "{name}"', quiet=session.quiet):
            made = client.api_keys.create(name, EVERY_DEPLOYMENT if found is None else found.id)
    shown = NamedKey(made, "" if found is None else found.name, made.value)
    output.show(API_KEY.record(shown))
