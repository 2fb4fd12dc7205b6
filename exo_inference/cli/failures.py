"""Errors as text: one line for what failed, one per further problem, one for the next step.

Called by `main.py` alone. What a server said is made harmless before it is printed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import click

from exo_inference.cli.terminal import harmless
from exo_inference.errors import ApiError, ExoError

# Fields of the API whose flags have other names; all others are called like their flags.
_FLAGS = {
    "name": "<name>",
    "model": "--model-name",
    "model.name": "--model-name",
    "model.id": "--model-id",
    "inference-engine-parameters": "--inference-engine-params",
}
_FIELD = re.compile(r"[a-z][a-z0-9-]*\Z")


def describe(error: ExoError) -> str:
    """Return what is printed for one of our errors, without a final newline."""
    lines = [f"error: {error.message}"]
    if isinstance(error, ApiError):
        lines += [f"  - {line}" for line in _problems(error) if line not in error.message]
        lines += [f"  - in use by deployment {name}" for name in _unnamed_deployments(error)]
    if error.hint:
        lines.append(error.hint)
    return harmless("\n".join(lines), keep="\n\t")


def describe_usage(error: click.ClickException) -> str:
    """Return what is printed for a wrong command line, without a final newline."""
    message = error.format_message().strip().removesuffix(".")
    lines = [f"error: {message[:1].lower()}{message[1:]}"]
    ctx = getattr(error, "ctx", None)
    path = ctx.command_path if ctx is not None else "exo"
    lines.append(f"Run `{path} --help` for usage.")
    return harmless("\n".join(lines), keep="\n\t")


def _problems(error: ApiError) -> Iterator[str]:
    for location, detail in error.problems:
        where = _FLAGS.get(location) or (f"--{location}" if _FIELD.match(location) else location)
        yield f"{where}: {detail}" if where else detail


def _unnamed_deployments(error: ApiError) -> Iterator[str]:
    return (name for name in error.deployments if name not in error.message)
