"""Writes `docs/reference/cli.md` from the commands themselves, so that the two cannot differ.

Run as `python -m exo_inference.cli.reference --write`, or with `--check` to only compare.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from exo_inference.cli.root import root
from exo_inference.cli.tree import CommandGroup

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
_WIDTH = 100
_INTRODUCTION = """\
# Command line

<!-- Written by `python -m exo_inference.cli.reference --write`; do not edit. -->

The program is `exo`, or `exo-inference`, which is the same. `exo ai` and `exo inference` are short for
`exo dedicated-inference`. Global options may stand before or after any subcommand. How flags,
environment and configuration file relate: [configuration](configuration.md). What a command ends
with: [exit codes](exit-codes.md).
"""


def walk(
    command: click.Command, ctx: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every command of the tree with its context, parents first."""
    yield command, ctx
    if isinstance(command, CommandGroup):
        for name in command.list_commands(ctx):
            member = command.get_command(ctx, name)
            assert member is not None, f"{name} is listed and missing"
            yield from walk(member, click.Context(member, info_name=name, parent=ctx))


def reference_page() -> str:
    """Return the page as it should be."""
    parts = [_INTRODUCTION]
    top = click.Context(root, info_name="exo", terminal_width=_WIDTH, max_content_width=_WIDTH)
    for command, ctx in walk(root, top):
        formatter = click.HelpFormatter(width=_WIDTH)
        command.format_help(ctx, formatter)
        parts.append(f"## {ctx.command_path}\n\n```text\n{formatter.getvalue().rstrip()}\n```\n")
    return "\n".join(parts)


def main(argv: list[str]) -> int:
    """Write or check the page; return the exit code."""
    if argv not in (["--check"], ["--write"]):
        click.echo("usage: python -m exo_inference.cli.reference --check|--write", err=True)
        return 2
    wanted = reference_page()
    if argv == ["--write"]:
        PAGE.write_text(wanted, encoding="utf-8")
        return 0
    present = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    if present != wanted:
        name = os.path.relpath(PAGE)
        click.echo(
            f"error: {name} is not what the commands say\n"
            "Run `python -m exo_inference.cli.reference --write`.",
            err=True,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
