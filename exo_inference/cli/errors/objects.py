"""Errors as data: what `-O json` writes to stderr as `{"error": {…}}`. `main.py` is the caller.

The keys are frozen by a test. `type` is the class of the client library; what an error does not have
is left out, except for message, hint and exit code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import click

from exo_inference import errors
from exo_inference.cli.errors.text import Interrupted, SeveralFailed, usage_hint, usage_message
from exo_inference.cli.rendering.output import to_json
from exo_inference.errors import (
    ApiError,
    AuthenticationFailed,
    ConfigurationError,
    ExoError,
    NotReady,
    OperationFailed,
)

_CLUSTER_OF_FLAGS = re.compile(r"-[A-Za-z]*?O=?(.+)", re.DOTALL)


def asks_for_json(argv: Sequence[str]) -> bool:
    """Whether a command line asks for JSON; it may be one that cannot be parsed."""
    chosen, words = "", iter(argv)
    for word in words:
        if word == "--":
            break
        if word == "--output-format" or re.fullmatch(r"-[A-Za-z]*O", word):
            chosen = next(words, "")
        elif word.startswith("--output-format="):
            chosen = word.partition("=")[2]
        elif not word.startswith("--") and (joined := _CLUSTER_OF_FLAGS.fullmatch(word)):
            chosen = joined[1] if joined[1].lower() in ("json", "yaml", "table", "text") else chosen
    return chosen.lower() == "json"


def error_line(error: click.ClickException | ExoError) -> str:
    """Return an error as one line of JSON."""
    found = as_object(error) if isinstance(error, ExoError) else usage_as_object(error)
    return to_json({"error": found})


def as_object(error: ExoError) -> dict[str, Any]:
    """Return one of our errors as data."""
    found: dict[str, Any] = {
        "type": _public_name(error),
        "message": error.message or "interrupted",
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    if isinstance(error, ApiError):
        found |= _answer(error)
    elif isinstance(error, OperationFailed):
        found["reason"] = error.reason
    elif isinstance(error, NotReady):
        found |= {"state": error.state, "state_details": error.state_details}
    elif isinstance(error, SeveralFailed):
        found["errors"] = [as_object(each) for each in error.errors]
    return found


def usage_as_object(error: click.ClickException) -> dict[str, Any]:
    """Return a wrong command line as data."""
    return {
        "type": "UsageError",
        "message": usage_message(error),
        "hint": usage_hint(error),
        "exit_code": error.exit_code,
    }


def _answer(error: ApiError) -> dict[str, Any]:
    found: dict[str, Any] = {"status_code": error.status_code}
    if error.problems:
        found["problems"] = [{"field": where, "detail": what} for where, what in error.problems]
    if error.deployments:
        found["deployments"] = list(error.deployments)
    if error.retry_after_seconds is not None:
        found["retry_after_seconds"] = error.retry_after_seconds
    if error.plan is not None:
        from exo_inference.cli.plan.fields import as_json

        found["plan"] = as_json(error.plan)
    return found


def _public_name(error: ExoError) -> str:
    """Return the class that the client library documents; a command's own are its subclasses."""
    if isinstance(error, Interrupted):
        return "Interrupted"
    if error.exit_code == AuthenticationFailed.exit_code and not isinstance(
        error, ConfigurationError
    ):
        return AuthenticationFailed.__name__
    return next(kind.__name__ for kind in type(error).__mro__ if hasattr(errors, kind.__name__))
