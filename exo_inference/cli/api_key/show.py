"""`api-key show`."""

from __future__ import annotations

import click

from exo_inference.cli.api_key.views import API_KEY, named_all
from exo_inference.cli.completion.names import complete_api_keys
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.sdk.lookup import find


@command(
    "show",
    aliases=["get"],
    examples=[
        Example("Show a key", "exo ai api-key show phone"),
        Example("Ask which deployment it opens", "exo ai api-key show phone -O json"),
        Example("Print its id", "exo ai api-key get phone --output-template '{{.ID}}'"),
    ],
)
@click.argument("key", metavar="<name-or-id>", shell_complete=complete_api_keys)
@pass_session
def show(session: Session, key: str) -> None:
    """Show one key, without its value.

    The value is what `reveal` prints.
    """
    output = session.output(API_KEY.field_names)
    with session.connect() as client:
        found = find(client.api_keys.list(), key, "api-key")
        (shown,) = named_all(client, [client.api_keys.get(found.id)])
    output.show(API_KEY.record(shown))
