"""`api-key list`."""

from __future__ import annotations

from exo_inference.cli.api_key.views import API_KEY, named_all
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command


@command(
    "list",
    aliases=["ls"],
    examples=[
        Example("List the keys", "exo ai api-key list"),
        Example("List those of a zone as JSON", "exo ai api-key list -z ch-dk-2 -O json"),
        Example("Print only the names", "exo ai api-key ls --output-template '{{.Name}}'"),
    ],
)
@pass_session
def list_api_keys(session: Session) -> None:
    """List the further keys of deployments, without their values.

    What each opens is told by name. The keys that deployments have of their own are not among them.
    """
    output = session.output(API_KEY.field_names)
    with session.connect() as client:
        found = named_all(client, client.api_keys.list())
    output.show_list([API_KEY.record(key) for key in found], API_KEY.headers)
