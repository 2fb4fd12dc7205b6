"""`deployment list`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from exo_inference.cli.rendering.results import deployment_manifest
from exo_inference.cli.rendering.views import DEPLOYMENT_LIST
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.zone_lists import print_list

if TYPE_CHECKING:
    from exo_inference.sdk import Client
    from exo_inference.wire import Deployment


@command(
    "list",
    aliases=["ls"],
    examples=[
        Example("List the deployments of every zone", "exo ai deployment list"),
        Example("List those of one zone as JSON", "exo ai deployment list -z ch-dk-2 -O json"),
        Example("Print only the names", "exo ai deployment ls --output-template '{{.Name}}'"),
    ],
)
@pass_session
def list_deployments(session: Session) -> None:
    """List the deployments.

    All zones are asked at the same time, or the one of `--zone`. A zone that cannot be reached is a
    warning, and the command then ends with an error after printing what the others have.
    """

    def fetch(client: Client) -> list[Deployment]:
        listed = client.deployments.list()
        if session.known_format != "yaml":
            return listed
        # A list lacks flags and releases of the engines, which a manifest needs.
        return [client.deployments.get(each.id) for each in listed]

    print_list(session, DEPLOYMENT_LIST, fetch, deployment_manifest)
