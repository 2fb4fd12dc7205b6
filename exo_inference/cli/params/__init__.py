"""`exo dedicated-inference params`: vLLM's flags by release, offline. One file per verb."""

from __future__ import annotations

import click

from exo_inference.cli.tree import CommandGroup, Example, Member

_HERE = "exo_inference.cli.params"


@click.command(
    "params",
    cls=CommandGroup,
    members=[
        Member("list", f"{_HERE}.list:list_parameters", aliases=("ls",)),
        Member("check", f"{_HERE}.check:check"),
        Member("migrate", f"{_HERE}.migrate:migrate"),
    ],
    examples=[
        Example("See the flags of a release about one subject", "exo ai params list --search lora"),
        Example("Check flags before they are used", "exo ai params check -- --max-tokens 8192"),
        Example(
            "Take flags to a newer release",
            "exo ai params migrate --from 0.12.0 --to 0.28.0 -- --task embed --swap-space 4",
        ),
    ],
)
def params() -> None:
    """Look up, check and migrate the flags of vLLM.

    Works offline, without a control plane, from a catalogue of the flags that each release takes. A
    release between two listed ones is judged as the older one.
    """
