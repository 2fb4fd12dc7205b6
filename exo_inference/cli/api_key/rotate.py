"""`api-key rotate`."""

from __future__ import annotations

import click

from exo_inference.cli.api_key.views import VALUE, KeyValue
from exo_inference.cli.completion.names import complete_api_keys
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.writes import by_name
from exo_inference.sdk.lookup import find


@command(
    "rotate",
    examples=[
        Example("Make a lost value useless", "exo ai api-key rotate phone"),
        Example(
            "Hand the new one to a program",
            "export OPENAI_API_KEY=$(exo ai api-key rotate phone --output-template '{{.APIKey}}')",
        ),
        Example("Get it as JSON", "exo ai api-key rotate phone -O json"),
    ],
)
@click.argument("key", metavar="<name-or-id>", shell_complete=complete_api_keys)
@pass_session
def rotate(session: Session, key: str) -> None:
    """Give a key a new value, and print it.

    The old value opens nothing from now on; requests that have begun are finished. Name, id and what it
    opens stay.
    """
    output = session.output(VALUE.field_names)
    with session.connect() as client:
        found = find(client.api_keys.list(), key, "api-key")
        with by_name(found):
            value = client.api_keys.rotate(found.id)
    output.show(VALUE.record(KeyValue(found.id, found.name, value)))
