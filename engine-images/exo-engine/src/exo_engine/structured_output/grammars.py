"""Grammars as text, made from what a request asks for: a schema, an expression, choices, tags.

A grammar is Lark text as llguidance reads it (docs/syntax.md there), ready for
`SamplingParams.structured_outputs`. Rules are pieces of one: put them behind each other with blanks
between, and hand the whole to `grammar`. Nothing is compiled here, so a rule may still be refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from exo_engine.structured_output.formats import exact

_HEAD = '%llguidance {"no_forcing": true}\n'
"""Any tokens that spell the text may come; the engine's core knows bytes, and no way to tokenize."""
WHITESPACE = r"( |\r?\n[ \t]{0,16})?"
"""Between the parts of a JSON text: a model cannot go on for ever with blanks."""
AT_MOST_A_BLANK = " ?"
"""The same where only programs read it, as in the calls of tools."""
_UNESCAPED_SLASH = re.compile(r"(\\.)|/", re.DOTALL)


Schema = Mapping[str, Any] | bool


def grammar(start: str, others: str = "") -> str:
    """Return a grammar whose answers match the rule `start`.

    Args:
        start: a rule's right side, such as `literal("<tool_call>") + " " + json_rule(schema)`.
        others: further rules that it names, a line each.
    """
    return f"{_HEAD}start: {start}\n{others}"


def json_rule(schema: Schema, *, whitespace: str = WHITESPACE) -> str:
    """Return a rule for JSON texts that a schema allows, properties in its order.

    Args:
        schema: has passed `schema_check.check`; what nobody here honours is refused there.
        whitespace: an expression for what may stand between two parts.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    return "%json " + json.dumps(
        {**exact(schema), "x-guidance": {"whitespace_pattern": whitespace}}, ensure_ascii=False
    )


def literal(text: str) -> str:
    """Return a rule for exactly this text; never for a special token that is written so."""
    return json.dumps(text, ensure_ascii=False)


def special_token(token_id: int) -> str:
    """Return a rule for one special token, which nothing else allows."""
    return f"<[{token_id}]>"


def any_of(rules: Iterable[str]) -> str:
    """Return a rule for what one of the rules matches."""
    return "(" + " | ".join(rules) + ")"


def regex_rule(pattern: str) -> str:
    """Return a rule for texts that an expression matches from begin to end (Rust's syntax)."""
    escaped = _UNESCAPED_SLASH.sub(lambda found: found[1] or r"\/", pattern)
    return "/" + escaped.replace("\n", r"\n").replace("\r", r"\r") + "/"


ANY_TEXT = r"/(.|\n)*/"
"""A rule for any text without special tokens."""


def with_options(lark: str) -> str:
    """Return somebody's grammar with our options, which win over those that it names."""
    return _HEAD + lark
