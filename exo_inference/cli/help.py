"""`exo help`: the same as `--help`, for those who type it first."""

from __future__ import annotations

import click

from exo_inference.cli.rendering.output import Field
from exo_inference.cli.session import Session, pass_session
from exo_inference.cli.tree import CommandGroup, Example, command


@command(
    "help",
    examples=[
        Example("See what there is", "exo help"),
        Example("See the commands of this project", "exo help ai"),
        Example("See how one of them is used", "exo ai help deployment create"),
        Example("Get it as JSON", "exo help ai -O json | jq -r .help"),
    ],
)
@click.argument("words", metavar="[<command>...]", nargs=-1)
@pass_session
@click.pass_context
def help_command(ctx: click.Context, session: Session, words: tuple[str, ...]) -> None:
    """Show how a command is used.

    Without a command, what there is at this place. The same as `--help` after that command.
    """
    assert ctx.parent is not None, "it is a member of a group"
    found = ctx.parent
    for word in words:
        group = found.command
        if not isinstance(group, CommandGroup):
            raise click.UsageError(f"{found.command_path} has no commands", ctx=found)
        name, member, _ = group.resolve_command(found, [word])
        assert member is not None, "an unknown one is an error"
        found = click.Context(member, info_name=name, parent=found, **member.context_settings)
    output = session.output(("Command", "Help"), configured=False)
    if output.is_for_programs:
        output.show(
            (
                Field("command", "Command", "Command", found.command_path),
                Field("help", "Help", "Help", found.get_help()),
            )
        )
    else:
        click.echo(found.get_help())
