"""`model show`."""

from __future__ import annotations

import click

from exo_inference.cli.completion.names import complete_models
from exo_inference.cli.rendering.results import show_model
from exo_inference.cli.rendering.views import MODEL
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command


@command(
    "show",
    aliases=["get"],
    examples=[
        Example("Show a model", "exo ai model show Qwen/Qwen3-0.6B"),
        Example(
            "Ask for its state in a script",
            "exo ai model show exo/tiny-chat --output-template '{{.State}}'",
        ),
        Example("Show all of it as JSON", "exo ai model get Qwen/Qwen3-0.6B -O json"),
    ],
)
@click.argument("model", metavar="<name-or-id>", shell_complete=complete_models)
@pass_session
def show(session: Session, model: str) -> None:
    """Show one model.

    While it is being fetched, this says how far the download is; after a failure, what went wrong
    and what to do about it.
    """
    output = session.output(MODEL.field_names)
    with session.connect() as client:
        found = client.models.get(client.models.find(model).id)
    show_model(output, found)
