"""`api-key update`."""

from __future__ import annotations

import click

from exo_inference.cli.api_key.views import API_KEY, EVERY_DEPLOYMENT, named_all
from exo_inference.cli.completion.names import complete_api_keys, complete_deployments
from exo_inference.cli.rendering.progress import step
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import by_name
from exo_inference.errors import UsageError
from exo_inference.sdk.lookup import find


@command(
    "update",
    examples=[
        Example("Rename a key", "exo ai api-key update phone --name tablet"),
        Example("Let it open another deployment", "exo ai api-key update phone --deployment draft"),
        Example("Let it open every deployment", "exo ai api-key update phone --all"),
    ],
)
@click.argument("key", metavar="<name-or-id>", shell_complete=complete_api_keys)
@click.option("--name", metavar="<name>", help="New name.")
@click.option(
    "--deployment",
    metavar="<name-or-id>",
    shell_complete=complete_deployments,
    help="The deployment that it opens from now on.",
)
@click.option("--all", "opens_all", is_flag=True, help="Let it open every deployment.")
@pass_session
def update(
    session: Session, key: str, name: str | None, deployment: str | None, opens_all: bool
) -> None:
    """Change the name of a key, or what it opens.

    Its value stays, and what is not given stays as it is. `rotate` changes the value.
    """
    if deployment is not None and opens_all:
        raise UsageError("--deployment and --all were both given", hint="Leave one of them out.")
    if name is None and deployment is None and not opens_all:
        raise UsageError("nothing to change was given", hint="Give --name, --deployment or --all.")
    output = session.output(API_KEY.field_names)
    with session.connect() as client:
        found = find(client.api_keys.list(), key, "api-key")
        scope = EVERY_DEPLOYMENT if opens_all else None
        if deployment is not None:
            scope = client.deployments.find(deployment).id
        with step(f'Updating API key "{found.name}"', quiet=session.quiet), by_name(found):
            changed = client.api_keys.update(found.id, name=name, scope=scope)
        session.success("API key updated.")
        if output.is_for_programs:
            (shown,) = named_all(client, [changed])
            output.show(API_KEY.record(shown))
