"""`exo dedicated-inference api-key`: one file per verb."""

from __future__ import annotations

import click

from exo_inference.cli.tree import CommandGroup, Example, Member

_HERE = "exo_inference.cli.api_key"


@click.command(
    "api-key",
    cls=CommandGroup,
    members=[
        Member("create", f"{_HERE}.create:create", aliases=("add",)),
        Member("list", f"{_HERE}.list:list_api_keys", aliases=("ls",)),
        Member("show", f"{_HERE}.show:show", aliases=("get",)),
        Member("update", f"{_HERE}.update:update"),
        Member("reveal", f"{_HERE}.reveal:reveal"),
        Member("rotate", f"{_HERE}.rotate:rotate"),
        Member("delete", f"{_HERE}.delete:delete", aliases=("del", "rm")),
    ],
    examples=[
        Example("Make a key for one deployment", "exo ai api-key create phone --deployment chat"),
        Example("See which keys there are", "exo ai api-key list"),
        Example("Take one back", "exo ai api-key delete phone"),
    ],
)
def api_key() -> None:
    """Manage further keys of deployments.

    Each deployment has a key of its own (`deployment reveal-api-key`). Further ones can be given to
    one deployment or to all, one to each user or program, and taken back one by one.
    """
