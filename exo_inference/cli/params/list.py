"""`params list`."""

from __future__ import annotations

import click

from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command


@command(
    "list",
    aliases=["ls"],
    examples=[
        Example("List the flags of the default release", "exo ai params list"),
        Example("List those of another one", "exo ai params list --version 0.20.0"),
        Example("List those about one subject", "exo ai params list --search 'kv cache'"),
        Example(
            "Print the choices of one flag",
            "exo ai params list --search kv-cache-dtype -O json | jq '.[0].\"allowed-values\"'",
        ),
    ],
)
@click.option("--version", metavar="<version>", help="Release of vLLM (default 0.28.0).")
@click.option("--search", metavar="<text>", help="Only flags about this, such as context.")
@pass_session
def list_parameters(session: Session, version: str | None, search: str | None) -> None:
    """List the flags of vLLM that a deployment may set.

    With their types, defaults and choices in that release. Flags that the platform sets itself,
    such as the port, are left out.
    """
    from exo_inference.cli.deployment.engine_flags import print_parameters
    from exo_inference.engines import vllm

    parameters = vllm.ENGINE.parameters(version or None)
    print_parameters(session, parameters, search)
