"""`api-key reveal`."""

from __future__ import annotations

import click

from exo_inference.cli.api_key.views import VALUE, KeyValue
from exo_inference.cli.completion.names import complete_api_keys
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import by_name
from exo_inference.sdk.lookup import find


@command(
    "reveal",
    examples=[
        Example("Show the value of a key", "exo ai api-key reveal phone"),
        Example(
            "Hand it to a program through the environment",
            "export OPENAI_API_KEY=$(exo ai api-key reveal phone --output-template '{{.APIKey}}')",
        ),
        Example("Get it as JSON", "exo ai api-key reveal phone -O json"),
    ],
)
@click.argument("key", metavar="<name-or-id>", shell_complete=complete_api_keys)
@pass_session
def reveal(session: Session, key: str) -> None:
    """Show the value of a key again.

    Keys that were made with `kubectl`, or before values were kept, have none to show; `rotate` gives them
    a new one.
    """
    output = session.output(VALUE.field_names)
    with session.connect() as client:
        found = find(client.api_keys.list(), key, "api-key")
        with by_name(found):
            value = client.api_keys.reveal(found.id)
    output.show(VALUE.record(KeyValue(found.id, found.name, value)))
