"""Questions to the user. Used by the commands that destroy something."""

from __future__ import annotations

import sys

import click

from exo_inference.cli.rendering.terminal import harmless
from exo_inference.errors import ExoError


def confirm(question: str, *, instead: str, on_stderr: bool = False) -> bool:
    """Ask a question that only `y` or `yes` affirms, in the form of the `exo` CLI.

    The answer is one line of stdin, also when that is a pipe, so that answers can be scripted.

    Args:
        question: what to ask, without the question's mark-up.
        instead: the flag that makes the question unnecessary, for the hint.
        on_stderr: stdout is for data.

    Raises:
        ExoError: stdin ended before there was an answer.
    """
    click.echo(f"[+] {harmless(question)} [yN]: ", nl=False, err=on_stderr)
    (sys.stderr if on_stderr else sys.stdout).flush()
    answer = sys.stdin.readline()
    if not answer:
        click.echo(err=on_stderr)
        raise ExoError(
            "no answer to the question: the input ended", hint=f"Use {instead} to skip it."
        )
    return answer.strip().lower() in ("y", "yes")
