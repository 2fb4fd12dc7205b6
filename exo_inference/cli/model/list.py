"""`model list`."""

from __future__ import annotations

from exo_inference.cli.rendering.results import model_manifest
from exo_inference.cli.rendering.views import MODEL_LIST
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.zone_lists import print_list


@command(
    "list",
    aliases=["ls"],
    examples=[
        Example("List the models of every zone", "exo ai model list"),
        Example("List those of one zone as JSON", "exo ai model list -z ch-dk-2 -O json"),
        Example(
            "Print only names and states",
            "exo ai model ls --output-template '{{.Name}} {{.State}}'",
        ),
    ],
)
@pass_session
def list_models(session: Session) -> None:
    """List the models.

    All zones are asked at the same time, or the one of `--zone`. A zone that cannot be reached is a
    warning, and the command then ends with an error after printing what the others have.
    """
    print_list(session, MODEL_LIST, lambda client: client.models.list(), model_manifest)
