"""`params migrate`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from exo_inference.cli.errors.output import print_refusal
from exo_inference.cli.rendering.terminal import print_data
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import Example, command

if TYPE_CHECKING:
    from exo_inference.engines.migration import Migration

REFUSED = 1
"""Exit code when the other release does not take all of the rewritten flags."""


@command(
    "migrate",
    examples=[
        Example(
            "Take flags to a newer release",
            "exo ai params migrate --from 0.12.0 --to 0.28.0 -- --task embed --swap-space 4",
        ),
        Example(
            "See which defaults change between two releases",
            "exo ai params migrate --from 0.19.0 --to 0.20.0",
        ),
        Example(
            "Print the new flags alone, one on each line",
            "exo ai params migrate --from 0.12.0 --to 0.28.0 -O json -- --task embed "
            "| jq -r '.flags[]'",
        ),
    ],
)
@click.option("--from", "old", metavar="<version>", required=True, help="Release of the flags.")
@click.option("--to", "new", metavar="<version>", required=True, help="Release to go to.")
@click.argument("flags", metavar="-- <flags>", nargs=-1, type=click.UNPROCESSED)
@pass_session
def migrate(session: Session, old: str, new: str, flags: tuple[str, ...]) -> int:
    """Take flags of vLLM from one release to another.

    Says what was removed, what was renamed and which defaults change, and prints the flags to use.
    Exits with 1 when some of them are not taken by the other release and nothing replaces them,
    which `-O json` also tells as an error on stderr.
    """
    from exo_inference.engines.migration import migrate as migrate_flags

    result = migrate_flags(flags, old, new)
    output = session.output((), configured=False)
    if output.is_structured:
        fields = ("kind", "flag", "detail")
        changes = [{name: getattr(change, name) for name in fields} for change in result.changes]
        output.print_value({"flags": list(result.flags), "changes": changes})
    else:
        print_data(_format(result, new))
    if result.is_clean:
        return 0
    refused = [change.detail for change in result.changes if change.kind == "refused"]
    print_refusal(output, "; ".join(refused))
    return REFUSED


def _format(result: Migration, new: str) -> str:
    """Return one line for each change, and the flags as a shell takes them."""
    width = max((len(change.kind) for change in result.changes), default=0)
    lines = [f"{change.kind:<{width}}  {change.detail}" for change in result.changes]
    flags = shlex.join(result.flags) or "(none)"
    return "\n".join([*lines, *([""] if lines else []), f"Flags for vLLM {new}:", f"  {flags}", ""])
