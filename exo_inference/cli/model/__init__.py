"""`exo dedicated-inference model`: one file per verb."""

from __future__ import annotations

import click

from exo_inference.cli.tree import CommandGroup, Example, Member

_HERE = "exo_inference.cli.model"


@click.command(
    "model",
    cls=CommandGroup,
    members=[
        Member("create", f"{_HERE}.create:create", aliases=("add", "download")),
        Member("list", f"{_HERE}.list:list_models", aliases=("ls",)),
        Member("show", f"{_HERE}.show:show", aliases=("get",)),
        Member("delete", f"{_HERE}.delete:delete", aliases=("del", "rm")),
    ],
    examples=[
        Example("Fetch a model from the Hugging Face Hub", "exo ai model create Qwen/Qwen3-0.6B"),
        Example("See which models are there", "exo ai model list"),
        Example("Make room again", "exo ai model delete Qwen/Qwen3-0.6B"),
    ],
)
def model() -> None:
    """Manage models.

    A model is fetched once, from the Hugging Face Hub, from a directory of the server or out of the
    program itself, and can then be deployed any number of times.
    """
