"""`deployment instance-type`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from exo_inference.cli.rendering.views import INSTANCE_TYPE_LIST
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command
from exo_inference.cli.zone_lists import print_list

if TYPE_CHECKING:
    from exo_inference.sdk import Client
    from exo_inference.wire import InstanceType

_SIMULATED = "(simulated)"


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

    `AUTHORIZED` says whether deployments may use the family. A control plane of your own says, too,
    how many GPUs there are, how many are free now, and how many one replica can have; of `cpu` they
    are cores. On one machine the families are those of its GPUs, and `cpu`. JSON has the engines and
    a description, too, which says `(simulated)` for families of `up --simulate-gpus`.
    """
    simulated: set[str] = set()

    def fetch(client: Client) -> list[InstanceType]:
        types = client.deployments.instance_types()
        simulated.update(each.family for each in types if _SIMULATED in (each.description or ""))
        return types

    print_list(session, INSTANCE_TYPE_LIST, fetch)
    if simulated:
        click.echo(f"note: simulated, not real GPUs: {', '.join(sorted(simulated))}", err=True)
