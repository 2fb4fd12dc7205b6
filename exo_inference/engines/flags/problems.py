"""What is wrong with an argument vector, as engines and rules say it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from exo_inference.engines.flags.argument_vector import Use

_SHOWN = 80
"""Characters of a value that a message repeats."""

REASONS = (
    "unknown",  # no release has such a flag
    "not-yet",  # a later release has it
    "removed",  # an earlier release had it
    "owned",  # the platform sets it
    "missing",  # needs a value and has none
    "boolean",  # takes no value and has one
    "no-form",  # has no --no- form
    "type",
    "range",
    "choice",
    "json",
    "key",  # of a JSON object
    "duplicate",
    "stray",  # an item that is neither flag nor value
    "policy",  # allowed only under a condition that is not met
    "model",  # does not go with the model, the GPU or their number
)
"""Why a parameter is refused, for programs."""


@dataclass(frozen=True, slots=True)
class ParameterProblem:
    """One thing that is wrong with an argument vector.

    Attributes:
        index: of the item, from 0.
        detail: for people: the flag, what was found, what is expected, and one next step.
        flag: the flag that is meant, as the engine reads it; empty for an item that is none.
        reason: one of `REASONS`.
    """

    index: int
    detail: str
    flag: str = ""
    reason: str = ""


def problem_of(use: Use, reason: str, detail: str) -> ParameterProblem:
    """Return a problem of one flag as it was written."""
    return ParameterProblem(use.index, detail, use.spelling, reason)


def shorten(text: str) -> str:
    """Return a text in quotes, cut where it is long."""
    return repr(text) if len(text) <= _SHOWN else repr(text[:_SHOWN]) + "…"
