"""The top of the command tree: `exo`, and `exo dedicated-inference` with its groups."""

from __future__ import annotations

import click

from exo_inference import __version__
from exo_inference.cli.tree import CommandGroup, Example, Member

PROGRAM = "exo"
COMPLETION_VARIABLE = "_EXO_COMPLETE"
"""Environment variable by which a shell asks the program to complete."""

_GITOPS = "exo_inference.cli.gitops"


@click.command(
    PROGRAM,
    cls=CommandGroup,
    members=[
        Member(
            "dedicated-inference",
            "exo_inference.cli.root:dedicated_inference",
            aliases=("ai", "inference"),
        ),
        Member("completion", "exo_inference.cli.completion.command:completion"),
        Member("version", "exo_inference.cli.version:version"),
        Member("help", "exo_inference.cli.help:help_command"),
    ],
    examples=[
        Example("Start a control plane on this machine", "exo dedicated-inference up"),
        Example("Fetch a model", "exo dedicated-inference model create Qwen/Qwen3-0.6B --wait"),
        Example("See what is deployed", "exo ai deployment list"),
    ],
)
@click.version_option(__version__, message="%(version)s", help="Print the version and exit.")
def root() -> None:
    """Turn an open-weight model into a private, OpenAI-compatible endpoint.

    The commands are under `exo dedicated-inference` (short: `exo ai`). They work with the control
    plane of this machine, unless flags, the environment or a configuration file name another one.
    """


@click.command(
    "dedicated-inference",
    cls=CommandGroup,
    aliases=["ai", "inference"],
    members=[
        Member("model", "exo_inference.cli.model:model"),
        Member("deployment", "exo_inference.cli.deployment:deployment"),
        Member("api-key", "exo_inference.cli.api_key:api_key"),
        Member("events", "exo_inference.cli.events:events"),
        Member("usage", "exo_inference.cli.usage:usage"),
        Member("metrics", "exo_inference.cli.metrics:metrics"),
        Member("plan", "exo_inference.cli.plan:plan"),
        Member("params", "exo_inference.cli.params:params"),
        Member("chat", "exo_inference.cli.chat:chat"),
        Member("apply", f"{_GITOPS}.apply:apply"),
        Member("diff", f"{_GITOPS}.diff:diff"),
        Member("export", f"{_GITOPS}.export:export"),
        Member("up", "exo_inference.cli.control_plane.up:up"),
        Member("down", "exo_inference.cli.control_plane.down:down"),
        Member("status", "exo_inference.cli.control_plane.status:status"),
        Member("serve", "exo_inference.cli.control_plane.serve:serve"),
        Member("help", "exo_inference.cli.help:help_command"),
    ],
    examples=[
        Example("Start a control plane on this machine", "exo dedicated-inference up"),
        Example(
            "Fetch a model and wait until it is there",
            "exo dedicated-inference model create exo/tiny-chat --wait",
        ),
        Example(
            "Serve it and wait until it answers",
            "exo dedicated-inference deployment create demo --model-name exo/tiny-chat "
            "--gpu-type cpu --gpu-count 1 --wait",
        ),
        Example("Talk to it", "exo dedicated-inference chat demo"),
    ],
)
def dedicated_inference() -> None:
    """Manage models, deployments and the control plane.

    A model is fetched once; a deployment serves it on GPUs of your own behind a private endpoint
    and key. `up`, `down`, `status` and `serve` run the control plane itself on this machine.
    """
