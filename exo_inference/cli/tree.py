"""The shape of every command: help in one form, global flags, aliases, lazy loading, did-you-mean.

`command` and `CommandGroup` are used by the files that define commands; nothing here knows any
particular one. A group lists its members as `Member` entries and imports a member's module when
it is asked for, so that starting `exo` costs no more than the command that runs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ParamSpec, TypeVar

import click

from exo_inference.cli.global_options import global_options, is_global

P = ParamSpec("P")
R = TypeVar("R")

ALIKE = 0.75
"""How alike (0 to 1) a name has to be that is suggested for what was typed."""

OTHER_WORDS = {
    "explain": "exo dedicated-inference deployment plan --explain",
    "cost": "exo dedicated-inference deployment plan",
    "price": "exo dedicated-inference deployment plan",
    "start": "exo dedicated-inference up",
    "stop": "exo dedicated-inference down",
    "ps": "exo dedicated-inference deployment list",
    "get": "exo dedicated-inference deployment list",
    "describe": "exo dedicated-inference deployment show",
    "run": "exo dedicated-inference chat",
    "secret": "exo dedicated-inference deployment reveal-api-key",
    "key": "exo dedicated-inference api-key",
}
"""What people type who know other tools, and what does it here."""

_GROUPS = ("dedicated-inference", "deployment", "model", "api-key")
_NEGATIVE_NUMBER = re.compile(r"-\d+(\.\d+)?")


@dataclass(frozen=True)
class Example:
    """One example of a command's help: why one would type it, and what to type."""

    intent: str
    line: str


@dataclass(frozen=True)
class Member:
    """One command of a group.

    Attributes:
        name: what users type.
        target: where the command object is, as `module:attribute`.
        aliases: other names that work as well.
    """

    name: str
    target: str
    aliases: tuple[str, ...] = ()

    def load(self) -> click.Command:
        """Import the module and return the command."""
        module, _, attribute = self.target.partition(":")
        loaded = getattr(importlib.import_module(module), attribute)
        assert isinstance(loaded, click.Command), f"{self.target} is not a command"
        return loaded


class _WithGlobalFlags(click.Command):
    """A command that takes the global flags and prints help in our sections."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[Example] = (),
        aliases: Sequence[str] = (),
        **kwargs: Any,
    ) -> None:
        settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
        kwargs["context_settings"] = settings | kwargs.get("context_settings", {})
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self.aliases = tuple(aliases)
        self._global_options = global_options()

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Add the global flags, except where the command has one of the same name."""
        own = super().get_params(ctx)
        taken = {spelling for param in own for spelling in param.opts}
        return own + [o for o in self._global_options if taken.isdisjoint(o.opts)]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's own options, then the global ones."""
        own: list[tuple[str, str]] = []
        shared: list[tuple[str, str]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                (shared if is_global(param) else own).append(record)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)
        for title, rows in (("Options", own), ("Global options", shared)):
            with formatter.section(title):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the aliases and the examples."""
        if self.aliases:
            with formatter.section("Aliases"):
                formatter.write_text(", ".join(self.aliases))
        if self.examples:
            with formatter.section("Examples"):
                blocks = (f"  # {e.intent}\n  {e.line}\n" for e in self.examples)
                formatter.write("\n".join(blocks))

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the usage line with `[<flags>]` for what the sections below list."""
        pieces = [piece for piece in self.collect_usage_pieces(ctx) if piece != "[OPTIONS]"]
        formatter.write_usage(ctx.command_path, " ".join([*pieces, "[<flags>]"]))


class LeafCommand(_WithGlobalFlags):
    """A command that does something."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; a negative number in it is a number and no option."""
        negative = next((word for word in args if _NEGATIVE_NUMBER.fullmatch(word)), None)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if negative is None or not negative.startswith(error.option_name):
                raise
            raise click.UsageError(
                f"{negative} is negative, where a number from 0 on is expected", ctx=ctx
            ) from error


class CommandGroup(_WithGlobalFlags, click.Group):
    """A command with subcommands. Alone it prints its help, as the `exo` CLI does."""

    def __init__(self, *args: Any, members: Sequence[Member], **kwargs: Any) -> None:
        kwargs.setdefault("invoke_without_command", True)
        kwargs.setdefault("subcommand_metavar", "<command>")
        super().__init__(*args, **kwargs)
        self.members = tuple(members)
        self._by_name = {
            name: member for member in members for name in (member.name, *member.aliases)
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names without the aliases, in the order in which they are declared."""
        return [member.name for member in self.members]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a member by its name or by an alias."""
        member = self._by_name.get(cmd_name)
        return member.load() if member is not None else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; an unknown one is a usage error with a suggestion."""
        typed = args[0]
        member = self._by_name.get(typed)
        if member is None:
            if ctx.resilient_parsing:
                return None, None, args[1:]
            raise click.UsageError(self._unknown(typed), ctx=ctx)
        # The canonical name, so that usage lines and errors do not depend on the alias typed.
        return member.name, member.load(), args[1:]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the subcommand, or print the help when there is none."""
        if not ctx._protected_args and not ctx.args:
            click.echo(ctx.get_help())
            return None
        return super().invoke(ctx)

    def _unknown(self, typed: str) -> str:
        elsewhere = self._elsewhere(typed)
        close = [name for name in self._by_name if sorted(name) == sorted(typed)]  # swapped letters
        close += get_close_matches(typed, list(self._by_name), n=1, cutoff=ALIKE)
        if elsewhere:
            return f"unknown command {typed!r}. Did you mean `{elsewhere}`?"
        suggestion = f" Did you mean {close[0]!r}?" if close else ""
        return f"unknown command {typed!r}.{suggestion}"

    def _elsewhere(self, typed: str) -> str | None:
        """Return the command of that name above this group, the one below it, or what other tools' word means."""
        if (known := OTHER_WORDS.get(typed)) is not None:
            return known
        ctx = click.get_current_context(silent=True)
        path = ctx.command_path if ctx is not None else self.name
        above = ctx.parent if ctx is not None else None
        while above is not None:
            if isinstance(above.command, CommandGroup) and typed in above.command._by_name:
                return f"{above.command_path} {typed}"
            above = above.parent
        groups = [(m, m.load()) for m in self.members if m.name in _GROUPS]
        found = [
            f"{path} {member.name} {typed}"
            for member, group in groups
            if isinstance(group, CommandGroup) and typed in group._by_name
        ]
        return found[0] if len(found) == 1 else None


def command(
    name: str, *, examples: Sequence[Example], aliases: Sequence[str] = (), **attributes: Any
) -> Callable[[Callable[P, R]], LeafCommand]:
    """Make a function a command. Its docstring is the help: a summary line, then a paragraph."""

    def decorate(function: Callable[P, R]) -> LeafCommand:
        return click.command(
            name, cls=LeafCommand, examples=examples, aliases=aliases, **attributes
        )(function)

    return decorate
