"""Lets a model reason before an answer that keeps to a grammar."""

from __future__ import annotations

import re
from collections.abc import Callable

from exo_engine.server.answer_parsing.thinking import Markers
from exo_engine.structured_output import grammars

_BLANKS = "/[ \\n]{0,4}/"
_START = re.compile(r"^start:", re.MULTILINE)


def after_reasoning(
    grammar: str, markers: Markers, *, prompt: str, special_token: Callable[[str], int | None]
) -> str:
    """Return a grammar that takes reasoning, and then what another one takes.

    Where the prompt has opened the reasoning it must come to its end; where it has closed it, there is none; and
    otherwise the model may begin with it.

    Args:
        grammar: as `grammars.grammar` makes it.
        markers: of the model.
        prompt: what the model goes on with, or the end of it.
        special_token: the id of a special token that is written so; None: it is ordinary text.
    """
    if prompt.rstrip().endswith(markers.ends):
        return grammar
    thought = f"reasoning {_BLANKS}"
    if not markers.is_open_after(prompt):
        thought = f"({_any_of(markers.starts, special_token)} {thought})?"
    rest = _START.sub("after_reasoning:", grammar, count=1).rstrip("\n")
    ending = _rule_to_end(markers.ends, special_token)
    return (
        rest.replace(
            "after_reasoning:", f"start: {thought} after_reasoning\n{ending}\nafter_reasoning:", 1
        )
        + "\n"
    )


def _any_of(texts: tuple[str, ...], special_token: Callable[[str], int | None]) -> str:
    ids = [special_token(text) for text in texts]
    return grammars.any_of(
        grammars.literal(text) if each is None else grammars.special_token(each)
        for text, each in zip(texts, ids, strict=True)
    )


def _rule_to_end(ends: tuple[str, ...], special_token: Callable[[str], int | None]) -> str:
    """Return the rule for any text up to the first of these ends."""
    ids = [special_token(end) for end in ends]
    if all(each is None for each in ids):
        pattern = grammars.regex_rule(f"(.|\\n)*({'|'.join(map(re.escape, ends))})")
        return f"reasoning[lazy]: {pattern}"
    return f"reasoning: {grammars.ANY_TEXT} {_any_of(ends, special_token)}"
