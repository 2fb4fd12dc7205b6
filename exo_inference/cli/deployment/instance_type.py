"""`deployment instance-type`."""

from __future__ import annotations

from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.views import INSTANCE_TYPE_LIST
from exo_inference.cli.zones import print_list


@command(
    "instance-type",
    examples=[
        Example("List the GPU families of every zone", "exo ai deployment instance-type"),
        Example("List those of one zone", "exo ai deployment instance-type -z ch-dk-2"),
        Example(
            "Print only the families",
            "exo ai deployment instance-type --output-template '{{.Family}}'",
        ),
    ],
)
@pass_session
def instance_type(session: Session) -> None:
    """List the GPU families a deployment may use.

    `AUTHORIZED` says whether a deployment of that family can be placed now. On one machine the
    families are those of its GPUs, and `cpu`.
    """
    print_list(session, INSTANCE_TYPE_LIST, lambda client: client.deployments.instance_types())
