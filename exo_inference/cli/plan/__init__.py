"""`exo dedicated-inference plan`: about plans in general. One plan is made by `deployment plan`."""

from __future__ import annotations

import click

from exo_inference.cli.tree import CommandGroup, Example, Member


@click.command(
    "plan",
    cls=CommandGroup,
    members=[Member("accuracy", "exo_inference.cli.plan.accuracy:accuracy")],
    examples=[
        Example("See how right the plans of this control plane were", "exo ai plan accuracy"),
        Example("See it for starts of others", "exo ai plan accuracy --cases cases.json"),
        Example(
            "Make a plan",
            "exo ai deployment plan --model-name Qwen/Qwen3-8B --gpu-type H100",
        ),
    ],
)
def plan() -> None:
    """See how far plans can be trusted.

    A plan of one deployment is made by `deployment plan`.
    """
