"""An answer that keeps to its grammar once the model has thought."""

from __future__ import annotations

import json
from collections.abc import Sequence

from exo_engine.structured_output.grammars import (
    ANY_TEXT,
    any_of,
    literal,
    special_token,
    with_options,
)

_BLANKS = r"/[ \t\r\n]{0,8}/"
_NAME = "answer"
Mark = tuple[str, int | None]
"""A text that marks reasoning, and the special token that it is, if it is one."""


def behind_reasoning(
    grammar: str, starts: Sequence[Mark], ends: Sequence[Mark], *, is_open: bool
) -> str:
    """Return a grammar for reasoning and then what another grammar allows.

    Args:
        grammar: of the answer proper.
        starts: any of them begins the reasoning.
        ends: any of them ends it.
        is_open: the prompt has begun it; otherwise there may be none.
    """
    rules: list[str] = []
    thought = f"{any_of(_up_to(mark, rules) for mark in ends)} {_BLANKS}"
    head = thought if is_open else f"({any_of(map(_mark, starts))} {thought})?"
    parts = [
        {
            "name": "thinking",
            "lark_grammar": with_options(f"start: {head} @{_NAME}\n{''.join(rules)}"),
        },
        {"name": _NAME, "lark_grammar": grammar},
    ]
    return json.dumps({"grammars": parts})


def _mark(mark: Mark) -> str:
    text, token_id = mark
    return literal(text) if token_id is None else special_token(token_id)


def _up_to(mark: Mark, rules: list[str]) -> str:
    """Return a rule for any text up to a mark; lazy ones need a name, and are added to `rules`."""
    if mark[1] is not None:
        return f"{ANY_TEXT} {_mark(mark)}"
    name = f"thought_{len(rules)}"
    rules.append(f"{name}[lazy]: {ANY_TEXT} {_mark(mark)}\n")
    return name
