"""Writes `docs/reference/cli.md` from the commands themselves, so that the two cannot differ.

Run as `python -m scripts.generate_cli_reference --write`, or with `--check` to only compare.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from exo_inference.cli.root import PROGRAM, root
from exo_inference.cli.tree import CommandGroup

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_WIDTH = 100
_GLOBAL_SECTION = re.compile(r"Global options:\n(?:  .*\n)+\n")
_INTRODUCTION = """\
# Command line

<!-- Written by `python -m scripts.generate_cli_reference --write`; do not edit. -->

The program is `exo`, or `exo-inference`, which is the same. `exo ai` and `exo inference` are short for
`exo dedicated-inference`. The global options, listed with `exo` below, work with every command and may
stand before or after any subcommand. How flags, environment and configuration file relate:
[configuration](configuration.md). What a command ends with: [exit codes](exit-codes.md).
"""


def walk_all() -> Iterator[tuple[click.Command, click.Context]]:
    """Yield every command of the program with its context, parents first."""
    yield from _walk(root, PROGRAM, None)


def _walk(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[tuple[click.Command, click.Context]]:
    ctx = click.Context(command, info_name=name, parent=parent, **command.context_settings)
    yield command, ctx
    if isinstance(command, CommandGroup):
        for member in command.members:
            yield from _walk(member.load(), member.name, ctx)


def reference_page() -> str:
    """Return the page as it should be."""
    parts = [_INTRODUCTION]
    for command, ctx in walk_all():
        formatter = click.HelpFormatter(width=_WIDTH)
        command.format_help(ctx, formatter)
        text = formatter.getvalue().rstrip()
        if ctx.parent is not None:
            text = _GLOBAL_SECTION.sub("", text)
        parts.append(f"## {ctx.command_path}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def main(argv: list[str]) -> int:
    """Write or check the page; return the exit code."""
    if argv not in (["--check"], ["--write"]):
        click.echo("usage: python -m scripts.generate_cli_reference --check|--write", err=True)
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
            "Run `python -m scripts.generate_cli_reference --write`.",
            err=True,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
