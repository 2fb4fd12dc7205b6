"""Plans on the command line: who makes them, how they are shown, and how right they were (`plan accuracy`).

`deployment plan`, `create`, `update` and `apply` make plans with what lies here; the plans themselves are
`exo_inference.preflight`'s, on this machine or on the control plane. No command imports that before it
runs, since planner and rich take their time.
"""

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
