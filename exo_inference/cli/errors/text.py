"""Errors as text: one line for what failed, one per further problem, one for the next step.

`output.py` and those who put an error into a line of their own call it. What a server said is made
harmless before it is printed. `name_flags` makes the API's fields the flags of the command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click

from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import ApiError, ExoError

# Fields of the API whose flags have other names; all others are called like their flags.
_FLAGS = {
    "model": "--model-name",
    "model.name": "--model-name",
    "model.id": "--model-id",
    "inference-engine-parameters": "--inference-engine-params",
    "version": "--inference-engine-version",
}
# What the parser calls the type of a number, in words of the reader.
_NUMBERS = {
    "not a valid integer range": "not a whole number",
    "not a valid integer": "not a whole number",
    "not a valid float range": "not a number",
    "not a valid float": "not a number",
}
_INDEX = re.compile(r"\.\d+\Z")


class Interrupted(ExoError):
    """Ctrl-C; the message says what goes on all the same, and is empty where nothing does."""

    exit_code = 130


class SeveralFailed(ExoError):
    """Some of several objects could not be changed.

    Attributes:
        errors: what went wrong, one by one.
    """

    def __init__(self, message: str, errors: Sequence[ExoError]) -> None:
        super().__init__(message)
        self.errors = tuple(errors)


def describe(error: ExoError) -> str:
    """Return what is printed for one of our errors, without a final newline."""
    if isinstance(error, SeveralFailed):
        each = [describe(one) for one in error.errors]
        return "\n".join([*each, harmless(f"error: {error.message}")])
    if isinstance(error, Interrupted):
        head = f"interrupted: {error.message}" if error.message else ""
        return harmless("\n".join(filter(None, [head, error.hint])), keep="\n")
    lines = [f"error: {error.message}"]
    if isinstance(error, ApiError):
        if len(error.problems) == 1 and (one_line := _with_flag(error)):
            lines = [f"error: {one_line}"]
        else:
            lines += [f"  - {line}" for line in _problems(error) if line not in error.message]
        lines += [f"  - in use by deployment {name}" for name in _unnamed_deployments(error)]
    if error.hint:
        lines.append(error.hint)
    return harmless("\n".join(lines), keep="\n\t")


def name_flags(error: ApiError, command: click.Command) -> None:
    """Turn the fields that an error names into the flags and arguments of a command."""
    spellings = {}
    for param in command.params:
        is_flag = isinstance(param, click.Option)
        for spelling in param.opts:
            spellings[spelling] = spelling if is_flag else f"<{spelling}>"
    problems = []
    for location, detail in error.problems:
        field = _INDEX.sub("", location)
        wanted = (_FLAGS.get(field, f"--{field}"), field)
        found = next((spellings[name] for name in wanted if name in spellings), location)
        problems.append((found, detail))
    error.problems = tuple(problems)


def describe_usage(error: click.ClickException) -> str:
    """Return what is printed for a wrong command line, without a final newline."""
    return harmless(f"error: {usage_message(error)}\n{usage_hint(error)}", keep="\n\t")


def usage_message(error: click.ClickException) -> str:
    """Say what is wrong with a command line."""
    message = error.format_message().strip().removesuffix(".")
    for ending, plain in _NUMBERS.items():
        if message.endswith(ending):
            message = message.removesuffix(ending) + plain
    return f"{message[:1].lower()}{message[1:]}"


def usage_hint(error: click.ClickException) -> str:
    """Say where the right form of a command line is told."""
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "exo"
    return f"Run `{path} --help` for usage."


def _problems(error: ApiError) -> Iterator[str]:
    for where, detail in error.problems:
        yield f"{where}: {detail}" if where else detail


def _with_flag(error: ApiError) -> str | None:
    """Return the message with the flag in it where it says all of the one problem already."""
    where, detail = error.problems[0]
    if not error.detail or error.detail not in error.message:
        return None
    fields = [where.strip("-<>"), *(field for field, flag in _FLAGS.items() if flag == where)]
    named = next((field for field in fields if error.detail.startswith(f"{field} ")), None)
    if named is None and detail not in error.detail:
        return None
    if not where.startswith(("-", "<")):
        return error.message
    rest = error.detail.removeprefix(f"{named} ")
    told = f"{where}: {rest}" if named is None else f"{where} {rest}"
    return error.message.replace(error.detail, told)


def _unnamed_deployments(error: ApiError) -> Iterator[str]:
    return (name for name in error.deployments if name not in error.message)
