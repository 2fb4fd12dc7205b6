"""`exo dedicated-inference deployment`: one file per verb."""

from __future__ import annotations

import click

from exo_inference.cli.tree import CommandGroup, Example, Member

_HERE = "exo_inference.cli.deployment"


@click.command(
    "deployment",
    cls=CommandGroup,
    members=[
        Member("plan", f"{_HERE}.plan:plan"),
        Member("create", f"{_HERE}.create:create", aliases=("add",)),
        Member("list", f"{_HERE}.list:list_deployments", aliases=("ls",)),
        Member("show", f"{_HERE}.show:show", aliases=("get",)),
        Member("scale", f"{_HERE}.scale:scale"),
        Member("restart", f"{_HERE}.restart:restart"),
        Member("update", f"{_HERE}.update:update"),
        Member("delete", f"{_HERE}.delete:delete", aliases=("del", "rm")),
        Member("logs", f"{_HERE}.logs:logs"),
        Member("reveal-api-key", f"{_HERE}.reveal_api_key:reveal_api_key"),
        Member("instance-type", f"{_HERE}.instance_type:instance_type"),
    ],
    examples=[
        Example(
            "Serve a model on one GPU and wait until it answers",
            "exo ai deployment create chat --model-name Qwen/Qwen3-0.6B "
            "--gpu-type gpua5000 --gpu-count 1 --wait",
        ),
        Example("See what is served", "exo ai deployment list"),
        Example("Get the key for an OpenAI client", "exo ai deployment reveal-api-key chat"),
    ],
)
def deployment() -> None:
    """Manage deployments.

    A deployment serves one model with one or more engine replicas, behind a URL and an API key of
    its own that every OpenAI client understands.
    """
